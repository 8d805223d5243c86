"""Every smaller K from one measurement at the largest. Pure.

How many checks and how many steps without a draft it takes: `tune.forecast`. How long they last: one without a
draft what it lasts with speculation off; one that checks a draft by the smallest and the largest measured K. Where
drafting takes passes of its own, T(K) = a + b * K. Where it is a lookup, only the check grows: it lasts what
reading the weights takes however few tokens it has, and from some K on in proportion to its K + 1 tokens,
whichever is more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.speculation.tune.forecast import Forecast, by_places, by_positions, total
from paceline.speculation.tune.measure import StepRun
from paceline.speculation.tune.points import Point, Study

Forecaster = Callable[[StepRun, int], Forecast]
"""What drafts of K do in a step that was measured with a larger one."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step of the engine."""

    plain: float
    """With speculation off."""
    low_k: int
    low: float
    """Of one that checks `low_k` drafted tokens; 0 is the plain one."""
    high_k: int
    high: float
    passes: bool
    """Whether drafting takes passes of its own."""

    def at(self, k: int) -> float:
        """Of a step that checks K drafted tokens."""
        if self.passes:
            return self.low + (self.high - self.low) * (k - self.low_k) / (self.high_k - self.low_k)
        return max(min(self.low, self.high), self.high * (k + 1) / (self.high_k + 1))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of one K."""

    k: int
    acceptance_length: float
    tokens_per_second: float


def forecaster(method: str, *, emulated: bool) -> Forecaster:
    """The way that fits a method. The emulator draws acceptance by position in the draft, whatever the method."""
    if emulated:
        return lambda run, k: by_positions(run.checks, run.plain, k)
    if method == "ngram":
        return lambda run, k: run.forecasts[k - 1]
    if method == "draft_model":
        return lambda run, k: by_places(run.checks, run.plain, k)
    return lambda run, k: by_positions(run.checks, run.plain, k)


def drafts_in_passes(method: str, *, emulated: bool) -> bool:
    """Whether drafting takes passes of its own. The emulator adds the same time for each drafted token."""
    return emulated or method not in ("ngram", "suffix")


def fit_times(off: Point | None, points: Sequence[Point], *, passes: bool) -> StepTimes | None:
    """The times by off, the smallest and the largest K; None where off or every draft is missing.

    With a single K, off stands for the smallest.
    """
    drafting = [point for point in points if point.checks and point.tokens]
    if off is None or not off.speed or not drafting:
        return None
    plain = 1 / off.speed
    low, high = drafting[0], drafting[-1]
    low_k, low_seconds = (0, plain) if low is high else (low.k, _check_seconds(low, plain))
    return StepTimes(plain, low_k, low_seconds, high.k, _check_seconds(high, plain), passes)


def predict(study: Study, draft: str, times: StepTimes | None, forecast: Forecaster) -> dict[int, Prediction]:
    """What every K up to the largest measured one would do. Empty where the measurement does not allow it."""
    points = [point for point in study.of(draft) if point.tokens]
    if times is None or not points:
        return {}
    largest = points[-1]
    found = {}
    for k in range(1, largest.k + 1):
        expected = total(forecast(run, k) for run in largest.runs)
        seconds = expected.plain * times.plain + expected.checks * times.at(k)
        if seconds > 0:
            found[k] = Prediction(k, expected.acceptance_length, largest.tokens / seconds)
    return found


def error(predicted: float, measured: float) -> float:
    """How far a prediction is off, as a share of what was measured."""
    return (predicted - measured) / measured


def _check_seconds(point: Point, plain: float) -> float:
    """Mean seconds of a step that checks a draft: those of steps without one taken out."""
    return (point.decode_seconds - point.plain * plain) / point.checks
