"""What `paceline spec tune` says: a table or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from paceline.cli.config_text import toml_value
from paceline.speculation.tune.points import Point, context_of, kind_of, lengths_by, points_of
from paceline.speculation.tune.predict import error, fit_times, predict
from paceline.speculation.tune.recommend import recommend
from paceline.speculation.tune.results import ResultFile
from paceline.speculation.tune.sample import ReplayStep

EMULATED = "EMULATED: no model ran; these figures are the emulator's settings, nothing else."
NOTE = (
    "Speed of one step while it generates, prompts cached, greedy. Predicted: acceptance from the largest K "
    "alone, time from off, the smallest and the largest K. Spread: fastest less slowest repeat."
)


class Report:
    """One measurement, as far as it got."""

    def __init__(
        self,
        results: ResultFile,
        missing: Sequence[tuple[int, int]],
        steps: Sequence[ReplayStep],
        usd_per_hour: float | None,
    ) -> None:
        self.conditions = results.conditions
        self.points = points_of(results.cells)
        self.predictions = predict(self.points)
        self.recommendation = recommend(self.points, self.predictions)
        self.missing = len(missing)
        self.steps = steps
        self._usd_per_hour = usd_per_hour
        self._path = results.path

    def record(self) -> dict[str, Any]:
        """Everything for `--json`."""
        times = fit_times(self.points)
        return {
            "conditions": msgspec.to_builtins(self.conditions),
            "steps": len(self.steps),
            "cells_missing": self.missing,
            "points": [self._point(point) for point in self.points.values()],
            "predictions": [msgspec.to_builtins(found) for found in self.predictions.values()],
            "step_seconds": msgspec.to_builtins(times) if times else None,
            "recommendation": self._advice(),
            "note": self._note(),
        }

    def show(self) -> None:
        """The measured settings, the recommendation and the conditions."""
        out = Console(highlight=False, soft_wrap=True, markup=False)
        found = self.conditions
        by = f" by {found.drafter}" if found.drafter else ""
        out.print(
            f"{found.method}{by} for {found.target} on {found.platform}: {len(self.steps)} steps, "
            f"{found.concurrency} at once"
        )
        out.print(self._table(), soft_wrap=False)
        for line in self._groups():
            out.print(line)
        if advice := self._advice():
            out.print(
                f"recommended: {self._name(advice['k'])}. {' '.join(advice['reasons'])}\n{advice['profile']}"
            )
        else:
            out.print("recommended: nothing yet: off and one K must be measured, with more than a few tokens")
        if self.missing:
            out.print(f"{self.missing} cells are missing: run the same command again to go on ({self._path})")
        out.print(self._note())

    def _table(self) -> Table:
        priced = self._usd_per_hour is not None
        columns = ("", "length", "pred.", "tokens/s", "spread", "pred.", "error", "ms/token")
        table = Table(*columns, *(["$/M output"] if priced else []), box=SIMPLE_HEAD)
        for point in self.points.values():
            prediction = self.predictions.get(point.k)
            speed = prediction.tokens_per_second if prediction else None
            table.add_row(
                f"K = {point.k}" if point.k else "off",
                _number(point.acceptance_length, 2),
                _number(prediction.acceptance_length if prediction else None, 2),
                _number(point.speed, 1),
                _number(point.spread, 1),
                _number(speed, 1),
                f"{error(speed, point.speed):+.0%}" if speed and point.speed else "-",
                _number(1e3 / point.speed if point.speed else None, 1),
                *([_number(self._usd_per_million(point), 2)] if priced else []),
            )
        return table

    def _point(self, point: Point) -> dict[str, Any]:
        prediction = self.predictions.get(point.k)
        counts = point.counters
        return {
            "k": point.k,
            "repeats": len(point.cells),
            "tokens": point.tokens,
            "tokens_per_second": point.speed,
            "spread": point.spread,
            "seconds_per_token": 1 / point.speed if point.speed else None,
            "drafts": counts.drafts,
            "drafted": counts.drafted,
            "accepted": counts.accepted,
            "accepted_per_position": list(counts.per_position),
            "acceptance_length": point.acceptance_length,
            "acceptance_length_by_class": lengths_by(point, kind_of),
            "acceptance_length_by_context": lengths_by(point, context_of),
            "predicted_acceptance_length": prediction.acceptance_length if prediction else None,
            "predicted_tokens_per_second": prediction.tokens_per_second if prediction else None,
            "usd_per_million_output_tokens": self._usd_per_million(point),
        }

    def _groups(self) -> Iterator[str]:
        """Acceptance length by class and by context at the largest K, where there is more than one."""
        if not self.points:
            return
        point = self.points[max(self.points)]
        for name, group in (("class", kind_of), ("prompt length", context_of)):
            lengths = lengths_by(point, group)
            if len(lengths) > 1:
                parts = ", ".join(f"{value} {length:.2f}" for value, length in lengths.items())
                yield f"acceptance length at K = {point.k} by {name}: {parts}"

    def _advice(self) -> dict[str, Any] | None:
        if self.recommendation is None:
            return None
        found = self.recommendation
        return {"k": found.k, "reasons": list(found.reasons), "profile": self._profile(found.k)}

    def _profile(self, k: int) -> str:
        """The section to put into the configuration."""
        found = self.conditions
        values = {"method": "none"} if not k else {"method": found.method, "drafter": found.drafter}
        lines = [f"{name} = {toml_value(value)}" for name, value in values.items() if value]
        return "\n".join(["[speculation.tuned]", *lines, *([f"num_speculative_tokens = {k}"] if k else [])])

    def _usd_per_million(self, point: Point) -> float | None:
        """Of the hours in which `concurrency` steps generate; prompts are not in it."""
        if self._usd_per_hour is None or not point.speed:
            return None
        return self._usd_per_hour / 3600 / (point.speed * self.conditions.concurrency) * 1e6

    def _name(self, k: int) -> str:
        return f"{self.conditions.method}, K = {k}" if k else "no speculation"

    def _note(self) -> str:
        return f"{EMULATED} {NOTE}" if self.conditions.emulated else NOTE


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
