"""The texts that the agent sends. Nothing here knows any program."""

from __future__ import annotations

from collections.abc import Sequence

from paceline_agents.repair.gaps import GAP, Gap
from paceline_agents.repair.suite import CaseResult

SYSTEM = "You are an expert Python programmer who finds and fixes bugs. You change as little as possible."
_MOST_FAILURES = 3
_MOST_PASSES = 2
_LONGEST_CALL = 400


def first(source: str, function: str, failures: str) -> str:
    """Ask for the corrected function, with the program and what goes wrong."""
    where = f"The function `{function}` in this" if function else "This"
    wanted = f"the corrected function `{function}`" if function else "each function that you correct, whole,"
    return (
        f"{where} Python program has a bug:\n\n```python\n{source.strip()}\n```\n\n{failures}\n\n"
        f"Find the bug and fix it. Answer with {wanted} in one ```python block."
    )


def again(function: str, failures: str) -> str:
    """Feed the failures of an edit back."""
    wanted = f"the corrected function `{function}`" if function else "each function that you correct, whole,"
    return (
        f"Your version is still wrong.\n\n{failures}\n\n"
        f"Find out why, and answer with {wanted} in one ```python block."
    )


def fill(gap: Gap, function: str, examples: str, wrong: Sequence[str]) -> str:
    """Ask for the function with the gap filled; `wrong` does not belong there.

    What changes from gap to gap comes late, for the prefix cache.
    """
    known = ", ".join(f"`{part}`" for part in wrong)
    warning = f"Wrong in its place: {known}.\n\n" if wrong else ""
    where = f"In the function `{function}`" if function else "In this program"
    wanted = f"the whole function `{function}`" if function else "the whole function that has the gap,"
    return (
        f"{examples}\n\n{where} one {gap.kind} was wrong. It is replaced by `{GAP}` here:\n\n"
        f"```python\n{gap.program.strip()}\n```\n\n{warning}"
        f"Write {wanted} with the right {gap.kind} in place of `{GAP}`, in one ```python block. "
        "Keep everything else as it is."
    )


def failures(function: str, source: str, results: Sequence[CaseResult]) -> str:
    """Failing calls with expected and got and the line of an exception, then a few calls that are right."""
    failing = [result for result in results if not result.passed]
    passing = [result for result in results if result.passed]
    texts = ["These calls go wrong:" if failing else "All known calls give the right result, but others do not."]
    texts += [_failure(function, source, result) for result in failing[:_MOST_FAILURES]]
    if failing and passing:
        texts.append("These calls are right and must stay so:")
    texts += [f"- `{_call(function, result)}` gives `{result.got}`" for result in passing[:_MOST_PASSES]]
    return "\n".join(texts)


def examples(function: str, results: Sequence[CaseResult]) -> str:
    """What some calls must give, those that go wrong first."""
    shown = sorted(results, key=lambda result: result.passed)[: _MOST_FAILURES + _MOST_PASSES]
    lines = [f"- `{_call(function, result)}` must give `{_short(repr(result.case.expected))}`" for result in shown]
    return "\n".join(["Examples:", *lines])


def _failure(function: str, source: str, result: CaseResult) -> str:
    call = _call(function, result)
    text = f"- `{call}` should give `{_short(repr(result.case.expected))}` but gives `{result.got}`"
    lines = source.splitlines()
    if result.line is not None and 0 < result.line <= len(lines):
        text += f" at the line `{lines[result.line - 1].strip()}`"
    return text


def _call(function: str, result: CaseResult) -> str:
    return _short(result.case.call(function))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_CALL else text[:_LONGEST_CALL] + "..."
