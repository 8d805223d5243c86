"""What `paceline spec tune` found, as JSON and as text."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from paceline.cli.config_text import toml_value
from paceline.cli.tune_tables import by_group, measured
from paceline.errors import ConfigError
from paceline.speculation.tune.analysis import Analysis, analyse
from paceline.speculation.tune.drafts import Draft, Setting
from paceline.speculation.tune.points import Point, studies_of
from paceline.speculation.tune.recommend import Recommendation
from paceline.speculation.tune.results import ResultFile
from paceline.speculation.tune.sample import ReplayStep
from paceline.speculation.tune.success import Recorded, usd_per_success

EMULATED = "EMULATED: no model ran; these figures are the emulator's settings, nothing else."
PAGE_WIDTH = 110
NOTHING_YET = "recommended: nothing yet: off and one K must be measured, with more than a few tokens"
NOTE = (
    "Speed of one step while it generates, prompts cached, greedy. Predicted: acceptance from the largest K "
    "alone, time from off, the smallest and the largest K. Spread: fastest less slowest repeat."
)


class Report:
    """One measurement, as far as it got."""

    def __init__(
        self,
        results: ResultFile,
        drafts: Sequence[Draft],
        steps: Sequence[ReplayStep],
        recorded: Recorded,
        usd_per_hour: float | None,
        *,
        missing: int,
    ) -> None:
        self.conditions = results.conditions
        self.studies = studies_of(results.cells, [draft.name for draft in drafts])
        self.analyses = [analyse(study, drafts, emulated=self.conditions.emulated) for study in self.studies]
        self._drafts = {draft.name: draft for draft in drafts}
        self._steps = steps
        self._recorded = recorded
        self._usd_per_hour = usd_per_hour
        self._missing = missing
        self._path = results.path
        self._engine = next((cell.engine for cell in results.cells), "")

    @property
    def note(self) -> str:
        """What the figures mean."""
        return f"{EMULATED} {NOTE}" if self.conditions.emulated else NOTE

    def record(self) -> dict[str, Any]:
        """Everything for `--json`."""
        return {
            "conditions": msgspec.to_builtins(self.conditions),
            "engine_version": self._engine,
            "steps": len(self._steps),
            "cells_missing": self._missing,
            "recorded": msgspec.to_builtins(self._recorded) if self._recorded.workflows else None,
            "studies": [self._study(analysis) for analysis in self.analyses],
            "note": self.note,
        }

    @property
    def title(self) -> str:
        """What was measured, where."""
        found = self.conditions
        return f"{found.target} on {found.platform} ({found.machine}): {len(self._steps)} steps"

    def show(self, out: Console) -> None:
        """The measured settings, the recommendations and the conditions."""
        out.print(self.title)
        for analysis in self.analyses:
            study = analysis.study
            out.print(f"\nat most {study.concurrency} at once, {study.at_once:.1f} on average")
            money = {
                name: {one: value(one) for one in study.points} for name, value in self._money(analysis).items()
            }
            for draft in self._drafts:
                out.print(measured(analysis, draft, money), soft_wrap=False)
            for title, groups in (("class", analysis.by_class), ("prompt length", analysis.by_context)):
                if len(groups) > 1:
                    out.print(by_group(analysis, title, groups), soft_wrap=False)
            out.print(self._advice(analysis.recommendation))
        if not self.analyses:
            out.print(NOTHING_YET)
        if self._missing:
            out.print(f"{self._missing} cells are missing: run the same command again to go on ({self._path})")
        if self._recorded.workflows:
            out.print(self._coverage())
        out.print(self.note)

    def plot(self, name: Path) -> None:
        """Write NAME.png and NAME.html. Raises `ConfigError` where it cannot write. See `check_plot`."""
        # matplotlib is an extra, and slow to import
        from paceline.speculation.tune import plot  # noqa: PLC0415

        text = io.StringIO()
        plain = Console(file=text, width=PAGE_WIDTH, highlight=False, soft_wrap=True, markup=False, emoji=False)
        self.show(plain)
        figure = plot.draw(self.title, self.analyses)
        try:
            plot.save(figure, name.with_name(f"{name.name}.png"))
            content = plot.page(figure, self.title, self.note, text.getvalue())
            name.with_name(f"{name.name}.html").write_text(content, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--plot {name}: {error.strerror}; name a folder that is there") from None

    def _advice(self, found: Recommendation | None) -> str:
        if found is None:
            return NOTHING_YET
        return f"recommended: {found.setting}. {' '.join(found.reasons)}\n{self._profile(found.setting)}"

    def _coverage(self) -> str:
        found = self._recorded
        return (
            f"Per success: the {found.known} of {found.workflows} recorded workflows that have an outcome, "
            f"{found.succeeded} of them successful; prompts take what they took then."
        )

    def _study(self, analysis: Analysis) -> dict[str, Any]:
        study = analysis.study
        money = self._money(analysis)
        return {
            "concurrency": study.concurrency,
            "mean_steps_at_once": study.at_once,
            "points": [
                _point(point, analysis) | {name: value(point.setting) for name, value in money.items()}
                for point in study.points.values()
            ],
            "predictions": _predictions(analysis),
            "step_seconds": {draft: msgspec.to_builtins(times) for draft, times in analysis.times.items()},
            "recommendation": self._recommendation(analysis.recommendation),
            "by_class": {name: self._group(found) for name, found in analysis.by_class.items()},
            "by_context": {name: self._group(found) for name, found in analysis.by_context.items()},
        }

    def _group(self, analysis: Analysis) -> dict[str, Any]:
        return {
            "points": [_point(point, analysis) for point in analysis.study.points.values()],
            "predictions": _predictions(analysis),
            "recommendation": self._recommendation(analysis.recommendation),
        }

    def _recommendation(self, found: Recommendation | None) -> dict[str, Any] | None:
        if found is None:
            return None
        return {
            "draft": found.setting.draft,
            "k": found.setting.k,
            "speed_up": found.speed_up,
            "reasons": list(found.reasons),
            "profile": self._profile(found.setting),
        }

    def _profile(self, setting: Setting) -> str:
        """The section to put into the configuration."""
        values: Mapping[str, Any] = {"method": "none"}
        if setting.k:
            values = self._drafts[setting.draft].at(setting.k).model_dump(exclude_unset=True, exclude_none=True)
        lines = (f"{name} = {toml_value(value)}" for name, value in values.items() if value != "")
        return "\n".join(["[speculation.tuned]", *lines])

    def _money(self, analysis: Analysis) -> dict[str, Any]:
        """What a setting costs in USD, by name; empty without a price."""
        price = self._usd_per_hour
        if price is None:
            return {}

        def per_million(setting: Setting) -> float | None:
            speed = analysis.study.points[setting].throughput
            return price / 3600 / speed * 1e6 if speed else None

        def per_success(setting: Setting) -> float | None:
            return usd_per_success(self._recorded, analysis.study, setting, price)

        names = {"usd_per_million_output_tokens": per_million}
        return names | ({"usd_per_success": per_success} if self._recorded.succeeded else {})


def check_plot(name: Path) -> None:
    """Raise `ConfigError` for a picture that could not be written: before hours of measuring, not after them."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise ConfigError(
            f"--plot: needs matplotlib ({error}); pip install 'paceline[plot]', or leave --plot out"
        ) from None
    if not name.name or not name.parent.is_dir():
        raise ConfigError(f"--plot {name}: name a file, without ending, in a folder that is there")


def _predictions(analysis: Analysis) -> dict[str, Any]:
    return {
        draft: [msgspec.to_builtins(one) for one in found.values()]
        for draft, found in analysis.predictions.items()
    }


def _point(point: Point, analysis: Analysis) -> dict[str, Any]:
    prediction = analysis.predictions.get(point.setting.draft, {}).get(point.k)
    off = analysis.study.off
    return {
        "draft": point.setting.draft,
        "k": point.k,
        "repeats": len(point.repeats),
        "steps": len(point.runs),
        "tokens": point.tokens,
        "tokens_per_second": point.speed,
        "spread": point.spread,
        "speed_up": point.speed / off.speed if off and off.speed else None,
        "seconds_per_token": 1 / point.speed if point.speed else None,
        "server_tokens_per_second": point.throughput,
        "checks": point.checks,
        "drafted": point.drafted,
        "accepted": point.accepted,
        "steps_without_draft": point.plain,
        "accepted_share_per_position": point.shares(),
        "acceptance_length": point.acceptance_length,
        "predicted_acceptance_length": prediction.acceptance_length if prediction else None,
        "predicted_tokens_per_second": prediction.tokens_per_second if prediction else None,
    }
