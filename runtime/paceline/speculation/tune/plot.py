"""A measurement as a picture and as a page that needs nothing else. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from paceline.speculation.tune.analysis import Analysis
from paceline.speculation.tune.points import Point

INCHES = (4.2, 3.4)
"""Of one panel."""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em}}
svg{{width:100%;height:auto}}pre{{overflow-x:auto;font-size:13px}}</style></head>
<body><h1>{title}</h1><p>{note}</p>{picture}<pre>{text}</pre></body></html>
"""


def draw(title: str, analyses: Sequence[Analysis]) -> Figure:
    """A row of panels for each number of steps at once: speed, acceptance length, speed-up by class of step."""
    figure = Figure(figsize=(INCHES[0] * 3, INCHES[1] * max(1, len(analyses))), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(max(1, len(analyses)), 3, squeeze=False)
    for row, analysis in zip(panels, analyses, strict=False):
        _speed(row[0], analysis)
        _length(row[1], analysis)
        _classes(row[2], analysis)
    return figure


def save(figure: Figure, png: Path) -> None:
    """Write a PNG. Raises `OSError`."""
    figure.savefig(png, dpi=144)


def page(figure: Figure, title: str, note: str, text: str) -> str:
    """An HTML page with the picture and a text in it."""
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    picture = svg.getvalue()
    return PAGE.format(
        title=escape(title), note=escape(note), picture=picture[picture.index("<svg") :], text=escape(text)
    )


def _speed(axes: Axes, analysis: Analysis) -> None:
    study = analysis.study
    for draft in analysis.predictions:
        points = [point for point in study.of(draft) if point.tokens]
        speeds = [point.speed for point in points]
        spans = [
            [point.speed - min(point.speeds) for point in points],
            [max(point.speeds) - point.speed for point in points],
        ]
        line: Line2D = axes.errorbar(_ks(points), speeds, yerr=spans, fmt="o-", label=draft)[0]
        expected = analysis.predictions[draft]
        predicted = [one.tokens_per_second for one in expected.values()]
        axes.plot(list(expected), predicted, ":", color=line.get_color())
    if study.off and study.off.speed:
        axes.axhline(study.off.speed, color="grey", linewidth=1, label="no speculation")
    axes.plot([], [], "k:", label="predicted")
    _finish(axes, f"{study.concurrency} at once", "tokens/s of one step")


def _length(axes: Axes, analysis: Analysis) -> None:
    for draft in analysis.predictions:
        points = [point for point in analysis.study.of(draft) if point.checks]
        lengths = [point.acceptance_length or 1.0 for point in points]
        line: Line2D = axes.plot(_ks(points), lengths, "o-", label=draft)[0]
        expected = analysis.predictions[draft]
        axes.plot(
            list(expected), [one.acceptance_length for one in expected.values()], ":", color=line.get_color()
        )
    _finish(axes, "acceptance length", "tokens per check")


def _classes(axes: Axes, analysis: Analysis) -> None:
    for name, part in analysis.by_class.items():
        off = part.study.off
        for draft in part.predictions:
            points = [point for point in part.study.of(draft) if point.tokens]
            if off and off.speed and points:
                label = f"{name}, {draft}" if len(part.predictions) > 1 else name
                axes.plot(_ks(points), [point.speed / off.speed for point in points], "o-", label=label)
    axes.axhline(1.0, color="grey", linewidth=1)
    _finish(axes, "speed-up by class", "against no speculation")


def _ks(points: Iterable[Point]) -> list[int]:
    return [point.k for point in points]


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("K")
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
