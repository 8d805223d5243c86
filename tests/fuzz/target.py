"""What a fuzz target is, and how its cases are played: seeded, counted and watched."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

SECONDS = 2.0
"""Most CPU time that a case may take; what takes longer is a hang."""

Check = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Target:
    """Something that is fuzzed."""

    name: str
    cases: SearchStrategy[Any]
    check: Callable[[], AbstractContextManager[Check]]
    """Opens what the cases need; the check takes one and raises if something is wrong."""
    per_10_000: int
    """How many of 10,000 cases are its own."""


class HangError(AssertionError):
    """A case takes too long."""


def checked_by(check: Check) -> Callable[[], AbstractContextManager[Check]]:
    """The `check` of a target that needs nothing opened."""
    return lambda: nullcontext(check)


def play(target: Target, check: Check, count: int, number: int) -> int:
    """Play `count` cases of the seed `number`, and return how many were played: a few more or less.

    Raises what the check raises, with the smallest such case in its notes.
    """
    played = 0
    hung: list[str] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(target.cases)
    def play_one(case: Any) -> None:
        nonlocal played
        played += 1
        if hung and hung != [repr(case)]:
            return  # a smaller one is not looked for: each try would take as long
        try:
            with watched(SECONDS):
                check(case)
        except HangError:
            hung[:] = [repr(case)]
            raise

    play_one()
    return played


@contextmanager
def watched(seconds: float) -> Iterator[None]:
    """Turn what takes more CPU time into a `HangError`, where it is. In the main thread only."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise HangError(f"more than {seconds} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
