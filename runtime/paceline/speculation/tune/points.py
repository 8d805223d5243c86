"""Cells of one setting pooled to one measured point. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.speculation.tune.drafts import OFF, Setting
from paceline.speculation.tune.measure import Cell, StepRun
from paceline.workflow.stepclass import CONTEXTS, context_bucket


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured of one setting. Times in seconds, per step while it generates."""

    setting: Setting
    repeats: tuple[tuple[StepRun, ...], ...]
    seconds: float = 0.0
    """Of all repeats from the first request to the last answer, prompts included."""

    @property
    def k(self) -> int:
        """0: no speculation."""
        return self.setting.k

    @property
    def runs(self) -> list[StepRun]:
        """All replayed steps of all repeats."""
        return [run for repeat in self.repeats for run in repeat]

    @property
    def tokens(self) -> int:
        """Tokens after the first chunks."""
        return _tokens(self.runs)

    @property
    def decode_seconds(self) -> float:
        """In which these came, summed over steps."""
        return _seconds(self.runs)

    @property
    def speed(self) -> float:
        """Tokens per second of one step, all repeats together; 0 where nothing came after the first chunks."""
        return self.tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def speeds(self) -> list[float]:
        """Tokens per second of one step, of each repeat."""
        return [_tokens(runs) / (_seconds(runs) or 1) for runs in self.repeats]

    @property
    def spread(self) -> float | None:
        """Fastest less slowest repeat, in tokens per second; None with a single one."""
        return max(self.speeds) - min(self.speeds) if len(self.repeats) > 1 else None

    @property
    def at_once(self) -> float | None:
        """Steps that generated at once on average: fewer than asked for while the last ones end alone."""
        return self.decode_seconds / self.seconds if self.seconds else None

    @property
    def throughput(self) -> float | None:
        """Tokens per second of the server, prompts (cached) and first tokens included."""
        return (self.tokens + len(self.runs)) / self.seconds if self.seconds else None

    @property
    def checks(self) -> int:
        """Verifications of a draft."""
        return sum(len(run.checks) for run in self.runs)

    @property
    def accepted(self) -> int:
        """Tokens that came from drafts."""
        return sum(run.accepted for run in self.runs)

    @property
    def drafted(self) -> int:
        """Tokens that were drafted."""
        return sum(drafted for run in self.runs for drafted, _ in run.checks)

    @property
    def plain(self) -> int:
        """Steps of the engine without a draft."""
        return sum(run.plain for run in self.runs)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per check of a draft, the model's own one included; None where nothing was drafted."""
        return 1 + self.accepted / self.checks if self.checks else None

    def shares(self) -> list[float]:
        """Share of the checks that accept at least 1, 2, ... K tokens. Empty without a check."""
        accepted = [check[1] for run in self.runs for check in run.checks]
        return [sum(one > at for one in accepted) / len(accepted) for at in range(self.k)] if accepted else []

    def only(self, wanted: Callable[[StepRun], bool]) -> Point:
        """Of some of the steps."""
        repeats = tuple(tuple(run for run in runs if wanted(run)) for runs in self.repeats)
        return replace(self, repeats=repeats, seconds=0.0)


@dataclass(frozen=True, slots=True)
class Study:
    """All settings with one number of steps at once."""

    concurrency: int
    points: Mapping[Setting, Point]

    @property
    def at_once(self) -> float:
        """Steps that generated at once on average, all settings together."""
        seconds = sum(point.seconds for point in self.points.values())
        return sum(point.decode_seconds for point in self.points.values()) / (seconds or 1.0)

    @property
    def off(self) -> Point | None:
        """Without speculation."""
        return self.points.get(OFF)

    def of(self, draft: str) -> list[Point]:
        """The points of one draft, by rising K."""
        return sorted((point for point in self.points.values() if point.setting.draft == draft), key=_k)

    def only(self, wanted: Callable[[StepRun], bool]) -> Study:
        """Of some of the steps."""
        return replace(self, points={setting: point.only(wanted) for setting, point in self.points.items()})


def studies_of(cells: Iterable[Cell], drafts: Sequence[str]) -> list[Study]:
    """The cells without speculation and with these drafts, by rising concurrency."""
    grouped: dict[int, dict[Setting, list[Cell]]] = {}
    for cell in cells:
        if cell.setting == OFF or cell.setting.draft in drafts:
            grouped.setdefault(cell.concurrency, {}).setdefault(cell.setting, []).append(cell)
    return [
        Study(
            concurrency, {setting: _pool(setting, group) for setting, group in sorted(found.items(), key=_order)}
        )
        for concurrency, found in sorted(grouped.items())
    ]


def kind_of(run: StepRun) -> str:
    """The class of a step, to group by."""
    return run.kind


def context_of(run: StepRun) -> str:
    """The length of a step's prompt, to group by."""
    return CONTEXTS[context_bucket(run.prompt_tokens)]


def groups_of(study: Study, group: Callable[[StepRun], str]) -> dict[str, Study]:
    """The study in parts, short prompts first."""
    runs = sorted(
        (run for point in study.points.values() for run in point.runs), key=lambda run: run.prompt_tokens
    )
    names = dict.fromkeys(group(run) for run in runs)
    return {name: study.only(lambda run, name=name: group(run) == name) for name in names}  # type: ignore[misc]


def _pool(setting: Setting, cells: list[Cell]) -> Point:
    ordered = sorted(cells, key=lambda cell: cell.repeat)
    return Point(setting, tuple(cell.runs for cell in ordered), sum(cell.seconds for cell in ordered))


def _tokens(runs: Iterable[StepRun]) -> int:
    return sum(run.tokens for run in runs)


def _seconds(runs: Iterable[StepRun]) -> float:
    return sum(run.seconds for run in runs)


def _k(point: Point) -> int:
    return point.k


def _order(item: tuple[Setting, list[Cell]]) -> tuple[str, int]:
    return item[0].draft, item[0].k
