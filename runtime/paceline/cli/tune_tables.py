"""The tables of `paceline spec tune`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table

from paceline.speculation.tune.analysis import Analysis
from paceline.speculation.tune.drafts import Setting
from paceline.speculation.tune.measure import StepRun
from paceline.speculation.tune.points import Point
from paceline.speculation.tune.predict import error

MONEY = {"usd_per_million_output_tokens": "$/M\noutput", "usd_per_success": "$/\nsuccess"}
DIGITS = {"usd_per_million_output_tokens": 2, "usd_per_success": 5}


def measured(analysis: Analysis, draft: str, money: Mapping[str, Mapping[Setting, float | None]]) -> Table:
    """Every setting of a draft, beside what was predicted of it."""
    columns = ("", "length", "pred.", "tokens\n/s", "spread", "pred.", "error", "ms/\ntoken", "speed\n-up")
    table = _table(*columns, *(MONEY[name] for name in money))
    table.title, table.title_justify = draft, "left"
    for point in analysis.study.points.values():
        if point.setting.draft not in ("", draft):
            continue
        prediction = analysis.predictions.get(draft, {}).get(point.k)
        speed = prediction.tokens_per_second if prediction else None
        table.add_row(
            f"K = {point.k}" if point.k else "off",
            _number(point.acceptance_length, 2),
            _number(prediction.acceptance_length if prediction else None, 2),
            _number(point.speed, 1),
            _number(point.spread, 1),
            _number(speed, 1),
            _error(speed, point, analysis),
            _number(1e3 / point.speed if point.speed else None, 1),
            speed_up(point, analysis),
            *(_number(amounts[point.setting], DIGITS[name]) for name, amounts in money.items()),
        )
    return table


def by_group(whole: Analysis, title: str, groups: Mapping[str, Analysis]) -> Table:
    """The speed-up of every setting for each part of the steps, and what is best there."""
    table = _table(f"speed-up by {title}", *groups)
    steps = [len({run.step_id for run in _all_runs(found)}) for found in groups.values()]
    table.add_row("steps", *map(str, steps))
    for setting in whole.study.points:
        if setting.k:
            parts = ((found.study.points[setting], found) for found in groups.values())
            table.add_row(str(setting), *(speed_up(part, found) for part, found in parts))
    best = [found.recommendation for found in groups.values()]
    table.add_section()
    table.add_row("best", *(str(one.setting) if one else "-" for one in best))
    return table


def speed_up(point: Point, analysis: Analysis) -> str:
    """Against no speculation."""
    off = analysis.study.off
    return f"{point.speed / off.speed:.2f}" if off and off.speed and point.speed else "-"


def _error(predicted: float | None, point: Point, analysis: Analysis) -> str:
    """Of a predicted speed; "fit" where the prediction was made from this very point."""
    times = analysis.times.get(point.setting.draft)
    if predicted is None or times is None or not point.speed:
        return "-"
    return "fit" if point.k in (times.low_k, times.high_k) else f"{error(predicted, point.speed):+.0%}"


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left", overflow="fold", min_width=min(len(name), 6))
    return table


def _all_runs(analysis: Analysis) -> Iterator[StepRun]:
    for point in analysis.study.points.values():
        yield from point.runs


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
