"""The texts that the agent sends. Nothing here knows any program."""

from __future__ import annotations

from collections.abc import Sequence

from paceline_agents.repair.suite import CaseResult, Program

SYSTEM = "You are an expert Python programmer who finds and fixes bugs. You change as little as possible."
_MOST_FAILURES = 3
_MOST_PASSES = 2


def first(program: Program, results: Sequence[CaseResult], suspicious: Sequence[int]) -> str:
    """Ask for the corrected function, with the program, failing and passing tests and suspicious lines."""
    parts = [
        f"The function `{program.name}` in this Python program has a bug:",
        f"```python\n{program.source.strip()}\n```",
        describe(program.name, program.source, results),
    ]
    if suspicious:
        lines = program.source.splitlines()
        shown = "\n".join(f"    {lines[number - 1].strip()}" for number in suspicious)
        parts.append(f"Failing tests run these lines most often, so look at them first:\n{shown}")
    parts.append(
        f"Find the bug and fix it. Answer with the corrected function `{program.name}` in one ```python block."
    )
    return "\n\n".join(parts)


def describe(function: str, source: str, results: Sequence[CaseResult]) -> str:
    """Failing calls with expected and got and the line of an exception, then a few that are right."""
    failing = [result for result in results if not result.passed]
    passing = [result for result in results if result.passed]
    texts = ["These calls go wrong:" if failing else "All known calls give the right result, but others do not."]
    texts += [_failure(function, source, result) for result in failing[:_MOST_FAILURES]]
    if failing and passing:
        texts.append("These calls are right and must stay so:")
    texts += [f"- `{result.case.call(function)}` gives `{result.got}`" for result in passing[:_MOST_PASSES]]
    return "\n".join(texts)


def _failure(function: str, source: str, result: CaseResult) -> str:
    text = f"- `{result.case.call(function)}` should give `{result.case.expected!r}` but gives `{result.got}`"
    lines = source.splitlines()
    if result.line is not None and 0 < result.line <= len(lines):
        text += f" at the line `{lines[result.line - 1].strip()}`"
    return text


def retry(function: str, source: str, results: Sequence[CaseResult]) -> str:
    """Feed the failures of the last edit back."""
    return (
        f"Your version is still wrong.\n{describe(function, source, results)}\n\n"
        f"Think about which line causes this. Answer with the corrected function `{function}` in one ```python block."
    )


def one_line(program: Program, results: Sequence[CaseResult], suspicious: Sequence[int]) -> str:
    """Ask for a fix of one line."""
    return "\n\n".join(
        [
            f"Exactly one line of the function `{program.name}` is wrong:",
            f"```python\n{program.source.strip()}\n```",
            describe(program.name, program.source, results),
            "Answer with the wrong line and the corrected line, nothing else:\nOLD: the wrong line\nNEW: the corrected line",
        ]
    )
