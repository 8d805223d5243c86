"""Draft and verify, on ids that are known beforehand: what a drafter proposes and how much of it is accepted.

The reply of a request is fixed, so verification compares the draft with the ids that come next. `PromptLookup`
drafts as vLLM's ngram method does. `AcceptanceCurve` needs no draft: it draws how many tokens are accepted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.speculation.promptlookup import lookup


@dataclass(slots=True)
class DraftCounts:
    """What speculation did in one request, or in all of them."""

    histogram: list[int]
    """How many steps accepted 0, 1, 2, ... drafted tokens."""
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def empty(cls, most: int) -> DraftCounts:
        """Counts for drafts of at most `most` tokens."""
        return cls(histogram=[0] * (most + 1))

    @property
    def steps(self) -> int:
        """Steps that had a draft."""
        return sum(self.histogram)

    def add(self, drafted: int, accepted: int) -> None:
        """Count one step."""
        self.histogram[accepted] += 1
        self.drafted += drafted
        self.accepted += accepted


class Drafter(Protocol):
    """Proposes tokens after a context and says how many of them hold."""

    @property
    def most(self) -> int:
        """The most tokens of one draft."""
        ...

    def draft(self, context: bytes | bytearray, upcoming: Sequence[int], rng: random.Random) -> tuple[int, int]:
        """(drafted, accepted) for uint32 `context`, when the target will emit `upcoming`."""
        ...


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Drafts what followed the earliest occurrence of the context's longest ending of `shortest` to `longest`."""

    most: int
    shortest: int
    longest: int

    def draft(self, context: bytes | bytearray, upcoming: Sequence[int], rng: random.Random) -> tuple[int, int]:
        """(drafted, accepted); (0, 0) when no ending repeats."""
        del rng
        return lookup(context, upcoming, self.most, self.shortest, self.longest)


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """Always drafts `most` tokens; `rates[i]` is the share of steps that accept at least i + 1 of them."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        falling = all(later <= earlier for earlier, later in zip(self.rates, self.rates[1:], strict=False))
        if not self.rates or not falling or self.rates[0] > 1 or self.rates[-1] < 0:
            raise ValueError("acceptance: give falling rates between 1 and 0, one per drafted token")

    @property
    def most(self) -> int:
        """The tokens of every draft."""
        return len(self.rates)

    def draft(self, context: bytes | bytearray, upcoming: Sequence[int], rng: random.Random) -> tuple[int, int]:
        """(drafted, accepted), drawn from the curve; never more than what is left to emit."""
        del context
        draw = rng.random()
        accepted = sum(1 for rate in self.rates if draw < rate)
        return self.most, min(accepted, max(0, len(upcoming) - 1))
