"""Programs to repair and their tests: loading, the split into shown and hidden, and running them."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InvalidArgument
from paceline_agents.repair.sandbox import Limits, run_limited

_HARNESS = Path(__file__).with_name("harness.py")
_SECONDS_PER_CALL = 1.0
_BARE_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True, slots=True)
class Case:
    """One test: call the function with `arguments` (JSON values, by position) and compare with `expected`."""

    arguments: tuple[Any, ...]
    expected: Any

    def call(self, function: str) -> str:
        """The call as Python text."""
        return f"{function}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Program:
    """A program to repair. Its function has the program's name."""

    name: str
    source: str
    shown: tuple[Case, ...]
    """The tests that the model may see."""
    hidden: tuple[Case, ...]
    """The tests that only judge the result."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one call did."""

    case: Case
    passed: bool
    got: str
    """The value as text, or the exception with its message."""
    line: int | None = None
    """Line of the program where the exception came from, or where time ran out."""
    lines: frozenset[int] = frozenset()
    """Lines that the call executed; empty without tracing."""


def load_suite(path: Path) -> list[Program]:
    """Read a JSONL suite of {name, buggy_source, tests: [[arguments, expected], ...]}.

    Raises InvalidArgument with the line number when a line is not like that, OSError when there is no such file.
    """
    programs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            programs.append(_program(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            wanted = "{name, buggy_source, tests: [[arguments, expected], ...]}"
            message = f"{path}, line {number}: expected {wanted}: {error}"
            raise InvalidArgument(message, field="suite") from error
    if not programs:
        raise InvalidArgument(f"{path} has no program", field="suite")
    return programs


def _program(record: dict[str, Any]) -> Program:
    cases = [Case(tuple(arguments), expected) for arguments, expected in record["tests"]]
    if not cases:
        raise ValueError("tests is empty")
    shown, hidden = split(cases)
    return Program(str(record["name"]), str(record["buggy_source"]), shown, hidden)


def split(cases: Sequence[Case]) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Every second test from the first on may be shown, the others stay hidden. A single test is shown."""
    return tuple(cases[0::2]), tuple(cases[1::2])


async def run_cases(
    source: str, function: str, cases: Sequence[Case], *, trace: bool = False, seconds: float = _SECONDS_PER_CALL
) -> list[CaseResult]:
    """Run the calls in one sandboxed process, each for at most `seconds`."""
    limits = Limits(seconds=5.0 + seconds * len(cases))
    with tempfile.TemporaryDirectory(prefix="paceline-agent-") as name:
        folder = Path(name)
        request, results = folder / "request.json", folder / "results.jsonl"
        calls = [case.arguments for case in cases]
        request.write_text(
            json.dumps(
                {"source": source, "function": function, "calls": calls, "seconds": seconds, "trace": trace}
            ),
            encoding="utf-8",
        )
        command = [sys.executable, "-I", str(_HARNESS), str(request), str(results)]
        run = await run_limited(command, cwd=folder, limits=limits, env=_BARE_ENVIRONMENT)
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    outcomes = [json.loads(line) for line in lines[: len(cases)]]
    lost = {"error": "killed", "message": f"the process ended early ({run.end}, exit code {run.exit_code})"}
    outcomes += [lost] * (len(cases) - len(outcomes))
    return [_result(case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]


def _result(case: Case, outcome: dict[str, Any]) -> CaseResult:
    lines = frozenset(outcome.get("lines", ()))
    if "value" in outcome:
        return CaseResult(case, same(outcome["value"], case.expected), outcome["shown"], lines=lines)
    got = f"{outcome['error']}: {outcome['message']}".removesuffix(": ")
    if outcome["error"] == "TimeUp":
        got = "no result in time (endless loop?)"
    return CaseResult(case, passed=False, got=got, line=outcome.get("line"), lines=lines)


def same(value: object, expected: object) -> bool:
    """Equal as JSON values; floats up to rounding, and true is not 1."""
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in value)
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        return value == expected or math.isclose(value, expected, rel_tol=1e-9)
    return value == expected
