"""Runs in the sandbox: call one function of a program on several inputs and say what happened.

Usage: `python -I harness.py REQUEST RESULT`. REQUEST is a JSON file {source, function, calls, seconds, trace};
RESULT gets one JSON line per call as soon as it is known, so that a killed run loses only what it had not done.
Standard library only, and nothing of this package: it runs by its path.
"""

# What a call or the program may raise is unknown, so this file catches everything on purpose.
# ruff: noqa: BLE001, S102

import json
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROGRAM = "program.py"
_MOST_ITEMS = 10_000
_LONGEST_REPR = 300


class TimeUp(BaseException):
    """A call took too long. Not an Exception, so that the program does not catch it by accident."""


def main(request_path: str, result_path: str) -> None:
    """Run the calls of the request."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    signal.signal(signal.SIGALRM, _time_up)
    with Path(result_path).open("w", encoding="utf-8") as results:
        function, failure = _load(request["source"], request["function"], request["seconds"])
        for call in request["calls"]:
            outcome = failure or _run(function, call, request["seconds"], trace=request["trace"])
            results.write(json.dumps(outcome) + "\n")
            results.flush()


def _load(source: str, name: str, seconds: float) -> tuple[Any, dict[str, Any] | None]:
    """The program's function, or the failure to load it."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        exec(compile(source, PROGRAM, "exec"), module.__dict__)
        return getattr(module, name), None
    except BaseException as error:
        return None, _failure(error, [])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _run(function: Callable[..., Any], arguments: list[Any], seconds: float, *, trace: bool) -> dict[str, Any]:
    """Call the function; the result is `ok` with a JSON value, or a failure with exception and line."""
    lines: set[int] = set()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    if trace:
        sys.settrace(_line_tracer(lines))
    try:
        value = function(*arguments)
        value = _first_items(value) if isinstance(value, Iterator) else value
        sys.settrace(None)
        return {"value": _jsonable(value), "shown": _shown(value), "lines": sorted(lines)}
    except BaseException as error:
        sys.settrace(None)
        return _failure(error, sorted(lines))
    finally:
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _first_items(values: Iterator[Any]) -> list[Any]:
    """The items of a generator, as far as anybody wants to compare them."""
    items = []
    for value in values:
        items.append(list(value) if isinstance(value, types.GeneratorType) else value)
        if len(items) >= _MOST_ITEMS:
            break
    return items


def _jsonable(value: object) -> object:
    """The value as JSON would carry it; None stands for what JSON cannot carry, whose `shown` differs anyway."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return {"not_json": type(value).__name__}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_REPR else text[:_LONGEST_REPR] + "..."


def _failure(error: BaseException, lines: list[int]) -> dict[str, Any]:
    """Exception type, message and the innermost line of the program."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == PROGRAM:
            line = at.tb_lineno
        at = at.tb_next
    return {"error": type(error).__name__, "message": _shown_message(error), "line": line, "lines": lines}


def _shown_message(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST_REPR]
    except BaseException:
        return ""


def _line_tracer(lines: set[int]) -> Callable[..., Any]:
    """A trace function that notes the program's lines."""

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != PROGRAM:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    return trace


def _time_up(_signal: int, _frame: object) -> None:
    raise TimeUp


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
