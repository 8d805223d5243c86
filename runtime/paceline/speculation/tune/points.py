"""Cells of one setting pooled to one measured point. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

from paceline.speculation.tune.counters import Counters
from paceline.speculation.tune.measure import Cell, StepRun

CONTEXTS = (1024, 4096, 16_384, 65_536)
"""Prompt lengths that results are grouped by, in tokens."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured for one K; 0 is no speculation. Times in seconds, per step while it generates."""

    k: int
    cells: tuple[Cell, ...]

    @property
    def runs(self) -> list[StepRun]:
        """All replayed steps of all repeats."""
        return [run for cell in self.cells for run in cell.runs]

    @property
    def tokens(self) -> int:
        """Tokens after the first chunks."""
        return sum(run.tokens for run in self.runs)

    @property
    def seconds(self) -> float:
        """In which these came."""
        return sum(run.seconds for run in self.runs)

    @property
    def speed(self) -> float:
        """Tokens per second of one step, all repeats together."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def spread(self) -> float | None:
        """Fastest less slowest repeat, in tokens per second; None with a single one."""
        speeds = [cell.tokens_per_second for cell in self.cells]
        return max(speeds) - min(speeds) if len(speeds) > 1 else None

    @property
    def counters(self) -> Counters:
        """The engine's counts over all repeats."""
        return reduce(add, (cell.counters for cell in self.cells), Counters())

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per check of a draft, the model's own one included; None where nothing was drafted."""
        counts = self.counters
        return 1 + counts.accepted / counts.drafts if counts.drafts else None

    @property
    def plain_steps(self) -> int:
        """Decode steps without a draft. Drafts accepted beyond a step's last token can hide some."""
        return max(0, self.tokens - self.counters.accepted - self.counters.drafts)


def points_of(cells: Iterable[Cell]) -> dict[int, Point]:
    """The points by K, rising."""
    grouped: dict[int, list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(cell.k, []).append(cell)
    return {k: Point(k, tuple(sorted(grouped[k], key=lambda cell: cell.repeat))) for k in sorted(grouped)}


def kind_of(run: StepRun) -> str:
    """The class of a step, to group by."""
    return run.kind


def context_of(run: StepRun) -> str:
    """The length of a step's prompt, to group by."""
    return next((f"up to {most} tokens" for most in CONTEXTS if run.prompt_tokens <= most), "longer")


def lengths_by(point: Point, group: Callable[[StepRun], str]) -> dict[str, float]:
    """Acceptance length of each group of steps, where the engine reports drafts per request."""
    drafts, accepted = Counter[str](), Counter[str]()
    for run in sorted(point.runs, key=lambda run: run.prompt_tokens):
        if run.drafts and run.accepted is not None:
            drafts[group(run)] += run.drafts
            accepted[group(run)] += run.accepted
    return {name: 1 + accepted[name] / count for name, count in drafts.items()}
