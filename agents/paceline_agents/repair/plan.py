"""Which turn comes next: the prompt, how to sample, what to continue, and how to read the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline_agents.repair import prompts
from paceline_agents.repair.edits import EditError, apply_functions
from paceline_agents.repair.gaps import GAP, Gap, find_gaps
from paceline_agents.repair.subject import Diagnosis
from paceline_agents.types import SamplingOptions

_LEAST_ROOM, _MOST_ROOM = 256, 2048
"""Output tokens of a step: so many, and one for each two characters of the program, up to so many."""
_VARIED = 0.8
"""Temperature where a repetition is worthless."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One question to the model."""

    prompt: str
    sampling: SamplingOptions
    fresh: bool
    """Start a new conversation; else go on with the last one."""
    read: Callable[[str], str]
    """The version of the program in an answer. Raises EditError."""
    line: int | None = None
    """The line with the gap."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a turn: the wrong version with its diagnosis, None when there was no new one."""

    turn: Turn
    failed: Diagnosis | None


class Planner:
    """Plans the repair of one program.

    First the whole function is asked for; a version that is new and wrong is fed back once. Then the suspicious
    expressions are cut out one after the other, most suspicious first, in conversations that never show what was
    there. When all were tried, they are tried again with sampling.
    """

    def __init__(self, source: str, function: str, diagnosis: Diagnosis) -> None:
        self._source, self._function, self._diagnosis = source, function, diagnosis
        self._room = min(_MOST_ROOM, _LEAST_ROOM + len(source) // 2)
        gaps = find_gaps(source)
        self._gaps = [gaps[line] for line in diagnosis.suspects if line in gaps]

    def next_turn(self, history: Sequence[Tried]) -> Turn:
        """The turn after those of `history`."""
        if not history:
            prompt = prompts.first(self._source, self._function, self._diagnosis.failures)
            return Turn(prompt, self._greedy(), fresh=True, read=self._read)
        failed = history[-1].failed
        if len(history) == 1 and failed is not None:
            prompt = prompts.again(self._function, failed.failures)
            return Turn(prompt, self._varied(1), fresh=False, read=self._read)
        return self._gap_turn(sum(tried.turn.line is not None for tried in history), len(history))

    def _gap_turn(self, number: int, seed: int) -> Turn:
        if not self._gaps:
            prompt = prompts.first(self._source, self._function, self._diagnosis.failures)
            return Turn(prompt, self._varied(seed), fresh=True, read=self._read)
        gap: Gap = self._gaps[number % len(self._gaps)]
        prompt = prompts.fill(gap.program, self._function, self._diagnosis.examples)
        sampling = self._greedy() if number < len(self._gaps) else self._varied(seed)
        return Turn(prompt, sampling, fresh=True, read=self._read, line=gap.line)

    def _read(self, answer: str) -> str:
        version = apply_functions(self._source, answer)
        if GAP in version and GAP not in self._source:
            raise EditError("Your code still has the gap.")
        return version

    def _greedy(self) -> SamplingOptions:
        return {"temperature": 0.0, "max_output_tokens": self._room}

    def _varied(self, seed: int) -> SamplingOptions:
        return {"temperature": _VARIED, "top_p": 0.95, "seed": seed, "max_output_tokens": self._room}
