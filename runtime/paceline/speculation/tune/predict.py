"""Every smaller K from one measurement at the largest. Pure.

Acceptance length: a drafted token counts only if all before it were accepted, so the first K tokens of a longer
draft are accepted as those of a draft of K are: length(K) = 1 + sum over i <= K of P(accepted >= i). That holds
where drafts do not depend on where they begin; a lookup in a text (ngram) is near it, not exact.

Speed: a step that checks a draft lasts T(K) = a + b * K, through the smallest and the largest measured K; a step
without a draft lasts what one lasts with speculation off. Tokens that no draft covered at the largest K
stay uncovered at every K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.speculation.tune.counters import Counters
from paceline.speculation.tune.points import Point


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one decode step."""

    plain: float
    """With speculation off."""
    base: float
    per_token: float

    def at(self, k: int) -> float:
        """Of a step that checks K drafted tokens."""
        return self.base + self.per_token * k


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of one K."""

    k: int
    acceptance_length: float
    tokens_per_second: float


def acceptance_length(counters: Counters, k: int) -> float:
    """Tokens per check of a draft of K, from counts at K or more. Needs at least one draft."""
    return 1 + sum(counters.per_position[:k]) / counters.drafts


def fit_times(points: Mapping[int, Point]) -> StepTimes | None:
    """The times through off, the smallest and the largest K; None where off or every draft is missing.

    With a single K the line goes through it and off.
    """
    off, drafting = points.get(0), _drafting(points)
    if off is None or not off.speed or not drafting:
        return None
    plain = 1 / off.speed
    low, high = min(drafting, key=_k), max(drafting, key=_k)
    top = _check_seconds(high, plain)
    if low is high:
        return StepTimes(plain, plain, (top - plain) / high.k)
    per_token = (top - _check_seconds(low, plain)) / (high.k - low.k)
    return StepTimes(plain, top - per_token * high.k, per_token)


def predict(points: Mapping[int, Point]) -> dict[int, Prediction]:
    """What every K up to the largest measured one would do. Empty where the measurement does not allow it."""
    times = fit_times(points)
    if times is None:
        return {}
    largest = max(_drafting(points), key=_k)
    counters, plain_steps = largest.counters, largest.plain_steps
    covered = largest.tokens - plain_steps
    found = {}
    for k in range(1, largest.k + 1):
        length = acceptance_length(counters, k)
        seconds = plain_steps * times.plain + covered / length * times.at(k)
        if seconds > 0:
            found[k] = Prediction(k, length, largest.tokens / seconds)
    return found


def error(predicted: float, measured: float) -> float:
    """How far a prediction is off, as a share of what was measured."""
    return (predicted - measured) / measured


def _drafting(points: Mapping[int, Point]) -> list[Point]:
    return [point for point in points.values() if point.counters.drafts and point.tokens]


def _k(point: Point) -> int:
    return point.k


def _check_seconds(point: Point, plain: float) -> float:
    """Mean seconds of a step that checks a draft: those of steps without one taken out."""
    covered = point.tokens - point.plain_steps
    checks = covered / (point.acceptance_length or 1)
    return (point.seconds - point.plain_steps * plain) / checks
