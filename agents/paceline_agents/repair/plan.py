"""Which turn comes next: the prompt, how to sample, what to continue, and how to read the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline_agents.repair import prompts
from paceline_agents.repair.edits import EditError, apply_functions, fingerprint
from paceline_agents.repair.gaps import GAP, Gap, find_gaps
from paceline_agents.repair.subject import Diagnosis
from paceline_agents.types import SamplingOptions

_LEAST_ROOM, _MOST_ROOM = 256, 4096
"""Output tokens of a step: so many, and one for each character of the program, up to so many."""
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
    gap: Gap | None = None
    """What was cut out of the prompt's program."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a turn: a version, empty if none could be read, and its diagnosis if it was new."""

    turn: Turn
    version: str
    failed: Diagnosis | None


class Planner:
    """Plans the repair of one program.

    First the whole function is asked for; a version that is new and wrong is fed back once. Then the suspicious
    parts are cut out one after the other, most suspicious first, in conversations that never show what was
    there. When all had their turn, they have another one that names what is known to be wrong. All this is greedy:
    the prompts differ enough. Sampling begins with the third turn of a gap.
    """

    def __init__(self, source: str, function: str, diagnosis: Diagnosis) -> None:
        self._source, self._function, self._diagnosis = source, function, diagnosis
        self._room = min(_MOST_ROOM, _LEAST_ROOM + len(source))
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
            return Turn(prompt, self._greedy(), fresh=False, read=self._read)
        return self._gap_turn(history)

    def _gap_turn(self, history: Sequence[Tried]) -> Turn:
        if not self._gaps:
            prompt = prompts.first(self._source, self._function, self._diagnosis.failures)
            return Turn(prompt, self._varied(len(history)), fresh=True, read=self._read)
        before = sum(tried.turn.gap is not None for tried in history)
        gap = self._gaps[before % len(self._gaps)]
        wrong = _known_wrong(gap, history)
        prompt = prompts.fill(gap, self._function, self._diagnosis.examples, wrong)
        sampling = self._greedy() if before < 2 * len(self._gaps) else self._varied(len(history))
        return Turn(prompt, sampling, fresh=True, read=self._read, gap=gap)

    def _read(self, answer: str) -> str:
        version = apply_functions(self._source, answer)
        if GAP in version and GAP not in self._source:
            raise EditError("Your code still has the gap.")
        return version

    def _greedy(self) -> SamplingOptions:
        return {"temperature": 0.0, "max_output_tokens": self._room}

    def _varied(self, seed: int) -> SamplingOptions:
        return {"temperature": _VARIED, "top_p": 0.95, "seed": seed, "max_output_tokens": self._room}


def _known_wrong(gap: Gap, history: Sequence[Tried]) -> list[str]:
    """What is known to be wrong in a gap; empty in its first turn."""
    versions = [tried.version for tried in history if tried.turn.gap == gap]
    mark = fingerprint(gap.program)
    found = [other for version in versions for other in find_gaps(version).values()]
    tried = [other.part for other in found if fingerprint(other.program) == mark]
    return list(dict.fromkeys([gap.part, *tried])) if versions else []
