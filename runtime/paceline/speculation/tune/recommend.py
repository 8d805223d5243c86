"""The setting to take, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.speculation.tune.drafts import OFF, Setting
from paceline.speculation.tune.points import Point, Study
from paceline.speculation.tune.predict import Prediction

Predictions = Mapping[str, Mapping[int, Prediction]]
"""By draft and K."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One setting."""

    setting: Setting
    speed_up: float
    """Against no speculation, while a step generates."""
    reasons: tuple[str, ...]


def recommend(study: Study, predictions: Predictions) -> Recommendation | None:
    """The fastest measured setting; of those within the spread of it, the smallest K that is faster than off, too.

    No speculation where none is faster than off by more than the spread, which is the larger one of the two
    settings compared. None while off has no speed or no other setting is measured.
    """
    off = study.off
    drafting = sorted((point for point in study.points.values() if point.k and point.tokens), key=_k)
    if off is None or not off.speed or not drafting:
        return None
    fastest = max(drafting, key=_speed)
    ratio = fastest.speed / off.speed
    if fastest.speed <= off.speed + _spread(fastest, off):
        reason = (
            f"The fastest, {fastest.setting}, is {ratio:.2f} times as fast: not above off by more than the spread."
        )
        return Recommendation(OFF, 1.0, (reason, *_doubts(study, predictions, off)))
    chosen = next(
        point
        for point in drafting
        if point.speed >= fastest.speed - _spread(point, fastest) and point.speed > off.speed + _spread(point, off)
    )
    ratio = chosen.speed / off.speed
    reasons = [f"{chosen.setting} generates {ratio:.2f} times as fast as no speculation."]
    if chosen is not fastest:
        reasons.append(f"{fastest.setting} was fastest, but not by more than the spread of the repeats.")
    return Recommendation(chosen.setting, ratio, (*reasons, *_doubts(study, predictions, chosen)))


def _doubts(study: Study, predictions: Predictions, chosen: Point) -> list[str]:
    """What would make a longer measurement worth its time."""
    found = []
    points = list(study.points.values())
    if any(point.spread is None for point in points):
        found.append("Some settings have a single repeat: their spread is not known and counts as 0.")
    drafts = dict.fromkeys(point.setting.draft for point in points if point.k)
    silent = [draft for draft in drafts if not any(point.checks for point in study.of(draft))]
    found += [f"{draft} proposed nothing for these steps." for draft in silent]
    found += _untried(study, predictions, chosen)
    if chosen.k and chosen is study.of(chosen.setting.draft)[-1]:
        found.append("It is the largest K that was measured: a larger one may be faster.")
    return found


def _untried(study: Study, predictions: Predictions, chosen: Point) -> Sequence[str]:
    """The best setting that was not measured, if it promises more than the chosen one."""
    untried = [
        (Setting(draft, prediction.k), prediction.tokens_per_second)
        for draft, found in predictions.items()
        for prediction in found.values()
        if Setting(draft, prediction.k) not in study.points
    ]
    best, speed = max(untried, key=lambda pair: pair[1], default=(OFF, 0.0))
    if speed <= chosen.speed + (chosen.spread or 0):
        return []
    return [f"{best} is predicted to reach {speed:.1f} tokens/s: measure it, too."]


def _spread(one: Point, other: Point) -> float:
    return max(one.spread or 0.0, other.spread or 0.0)


def _speed(point: Point) -> float:
    return point.speed


def _k(point: Point) -> int:
    return point.k
