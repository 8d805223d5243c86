"""Which turn comes next: the prompt, how to sample, where to branch, and how to read the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline_agents.repair import edits, prompts
from paceline_agents.repair.subject import Diagnosis
from paceline_agents.types import SamplingOptions

_VERSIONS = 6
_WHOLE_TOKENS = 1024
_LINE_TOKENS = 256
_VARIED = 0.8
"""Temperature where a repetition is worthless."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One question to the model."""

    prompt: str
    sampling: SamplingOptions
    parent_step_id: str
    """The step to branch from; empty: go on where the last one ended."""
    read: Callable[[str], list[str]]
    """The versions of the program in an answer. Raises EditError."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a turn."""

    turn: Turn
    step_id: str
    failed: tuple[tuple[str, Diagnosis], ...]
    """New versions of the program, all wrong, with their diagnoses."""


def next_turn(source: str, function: str, diagnosis: Diagnosis, history: Sequence[Tried]) -> Turn:
    """First the whole function, then its failures once more, then line by line, most suspicious first.

    The line turns branch from the first step: they share its context and do not see each other's mistakes.
    """

    def whole(answer: str) -> list[str]:
        return [edits.apply_functions(source, answer)]

    if not history:
        prompt = prompts.first(source, function, diagnosis.text)
        return Turn(prompt, {"temperature": 0.0, "max_output_tokens": _WHOLE_TOKENS}, "", whole)
    if len(history) == 1 and history[0].failed:
        _, failure = history[0].failed[0]
        prompt = prompts.again(function, failure.text)
        return Turn(prompt, _varied(1, _WHOLE_TOKENS), "", whole)
    line_turns = sum(tried.turn.parent_step_id != "" for tried in history)
    return _line_turn(source, diagnosis.suspects, line_turns, history[0].step_id)


def _line_turn(source: str, suspects: Sequence[int], number: int, root: str) -> Turn:
    line = suspects[number % len(suspects)]
    prompt = prompts.other_lines(source.splitlines()[line - 1], _VERSIONS)
    is_repeated = number >= len(suspects)
    greedy: SamplingOptions = {"temperature": 0.0, "max_output_tokens": _LINE_TOKENS}
    sampling = _varied(number, _LINE_TOKENS) if is_repeated else greedy
    return Turn(prompt, sampling, root, lambda answer: edits.replace_line(source, line, answer))


def _varied(seed: int, tokens: int) -> SamplingOptions:
    return {"temperature": _VARIED, "top_p": 0.95, "seed": seed, "max_output_tokens": tokens}
