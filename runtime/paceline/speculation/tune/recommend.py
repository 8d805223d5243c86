"""The setting to take, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.speculation.tune.points import Point
from paceline.speculation.tune.predict import Prediction


@dataclass(frozen=True, slots=True)
class Recommendation:
    """`k` 0: no speculation."""

    k: int
    reasons: tuple[str, ...]


def recommend(points: Mapping[int, Point], predictions: Mapping[int, Prediction]) -> Recommendation | None:
    """The fastest measured setting; of those within the spread of it, the smallest K.

    No speculation where none is faster than off by more than the spread, which is the larger one of the two
    settings compared. None while off has no speed or no other setting is measured.
    """
    off, drafting = points.get(0), [point for k, point in points.items() if k]
    if off is None or not off.speed or not drafting:
        return None
    fastest = max(drafting, key=lambda point: point.speed)
    if fastest.speed <= off.speed + _spread(fastest, off):
        return Recommendation(0, (_not_faster(fastest, off), *_doubts(points, predictions, off)))
    chosen = next(point for point in drafting if point.speed >= fastest.speed - _spread(point, fastest))
    reasons = [f"K = {chosen.k} generates {chosen.speed / off.speed:.2f} times as fast as no speculation."]
    if chosen is not fastest:
        reasons.append(f"K = {fastest.k} was fastest, but not by more than the spread of the repeats.")
    return Recommendation(chosen.k, (*reasons, *_doubts(points, predictions, chosen)))


def _not_faster(fastest: Point, off: Point) -> str:
    ratio = fastest.speed / off.speed
    return f"The fastest, K = {fastest.k}, is {ratio:.2f} times as fast: not above off by more than the spread."


def _doubts(points: Mapping[int, Point], predictions: Mapping[int, Prediction], chosen: Point) -> list[str]:
    """What would make a longer measurement worth its time."""
    found = []
    if any(point.spread is None for point in points.values()):
        found.append("Some settings have a single repeat: their spread is not known and counts as 0.")
    if not any(point.counters.drafts for point in points.values()):
        found.append("The drafter proposed nothing for these steps.")
    better = max(predictions.values(), key=lambda prediction: prediction.tokens_per_second, default=None)
    if better and better.k not in points and better.tokens_per_second > chosen.speed + (chosen.spread or 0):
        speed = f"{better.tokens_per_second:.1f} tokens/s"
        found.append(f"K = {better.k} is predicted to reach {speed}: measure it, too.")
    if chosen.k and chosen.k == max(points):
        found.append("It is the largest K that was measured: a larger one may be faster.")
    return found


def _spread(one: Point, other: Point) -> float:
    return max(one.spread or 0.0, other.spread or 0.0)
