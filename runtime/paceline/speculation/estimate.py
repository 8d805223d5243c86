"""What speculation costs, from the times of forward passes. Pure; every gain rests on an assumed acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

ASSUMED_RATES = (0.6, 0.7, 0.8, 0.9)
"""Chances that a drafted token is accepted when those before it were."""
LEAST_ROUNDS = 2
"""One for each half."""

Rounds = Mapping[int, Sequence[float]]
"""Seconds of each pass over so many tokens."""


@dataclass(frozen=True, slots=True)
class Point:
    """One K. Lengths are tokens per verification, the model's own included."""

    k: int
    seconds: float
    """Of one speculative step."""
    draft_seconds: float
    """The drafter's part of it."""
    break_even: float
    """The acceptance length at which speculation is as fast as none: this step's time over that of a plain one."""
    break_even_low: float
    break_even_high: float
    """From each half of the passes alone."""

    @property
    def break_even_rate(self) -> float | None:
        """The share of drafted tokens that must be accepted; None where even all of them are too few."""
        rate = (self.break_even - 1) / self.k
        return max(rate, 0.0) if rate <= 1 else None

    def speed_up(self, rate: float) -> float:
        """Speed relative to no speculation, should each drafted token be accepted with this chance."""
        return expected_length(rate, self.k) / self.break_even


def points(target: Rounds, drafter: Rounds | None, most: int) -> list[Point]:
    """The cost of K = 1 to `most`; the times are needed for 1 to `most` + 1 tokens and at least two passes.

    The fastest pass counts: whatever else runs on a machine only ever adds time.
    """
    return [_point(k, target, drafter) for k in range(1, most + 1)]


def unrest(target: Rounds) -> float:
    """How many times as long as the fastest a middling pass took: what else the machine was doing."""
    return median(median(rounds) / min(rounds) for rounds in target.values())


def expected_length(rate: float, k: int) -> float:
    """Mean acceptance length when each of K tokens is accepted with chance `rate` if those before it were."""
    return sum(rate**position for position in range(k + 1))


def best(found: Sequence[Point], rate: float) -> Point | None:
    """The fastest K for an assumed rate; None where plain decoding is faster."""
    point = max(found, key=lambda point: point.speed_up(rate))
    return point if point.speed_up(rate) > 1 else None


def _point(k: int, target: Rounds, drafter: Rounds | None) -> Point:
    halves = [_seconds(k, _half(target, half), drafter and _half(drafter, half)) for half in range(LEAST_ROUNDS)]
    ratios = [(draft + check) / plain for draft, check, plain in halves]
    draft, check, plain = _seconds(k, target, drafter)
    break_even = (draft + check) / plain
    low, high = min(break_even, *ratios), max(break_even, *ratios)
    return Point(k, draft + check, draft, break_even, low, high)


def _half(rounds: Rounds, which: int) -> Rounds:
    """Every other pass: both halves have the same of any drift."""
    return {tokens: seconds[which::LEAST_ROUNDS] for tokens, seconds in rounds.items()}


def _seconds(k: int, target: Rounds, drafter: Rounds | None) -> tuple[float, float, float]:
    """Drafting, checking, and a plain step.

    As vLLM drafts: the first pass takes in what was verified last, K + 1 tokens; the others take one token each.
    """
    draft = min(drafter[k + 1]) + (k - 1) * min(drafter[1]) if drafter else 0.0
    return draft, min(target[k + 1]), min(target[1])
