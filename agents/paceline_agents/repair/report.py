"""What a run of repairs did and cost: one row a program, and a summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline_agents.types import Answer, CostSummary

_NANOS = 1_000_000_000
_HEADS = ("program", "outcome", "steps", "prompt", "cached", "output", "drafted", "accepted", "tok/s", "cost")


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """One program of a run. Counts are None when a step did not report them."""

    name: str
    workflow_id: str
    outcome: str
    """`repaired`, `failed` or `abandoned`."""
    note: str
    steps: int
    prompt_tokens: int | None
    cached_tokens: int | None
    """Part of the prompt tokens."""
    output_tokens: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None
    tokens_per_second: float | None
    """Output tokens by decode time, prefill and queue not counted."""
    cost_nanos: int
    """List cost as the server counts it, further attempts included."""
    example_price: bool
    seconds: float
    """Wall-clock time of the whole repair, tests included."""

    @classmethod
    def of(
        cls,
        *,
        name: str,
        workflow_id: str,
        outcome: str,
        note: str,
        answers: Sequence[Answer],
        cost: CostSummary,
        seconds: float,
    ) -> ProgramReport:
        """The report on the answers of one workflow."""
        cached = _sum(answer.usage.cached_prompt for answer in answers)
        uncached = _sum(answer.usage.uncached_prompt for answer in answers)
        output = _sum(answer.usage.output for answer in answers)
        decode = sum(answer.timings.decode or 0.0 for answer in answers)
        return cls(
            name=name,
            workflow_id=workflow_id,
            outcome=outcome,
            note=note,
            steps=len(answers),
            prompt_tokens=None if cached is None or uncached is None else cached + uncached,
            cached_tokens=cached,
            output_tokens=output,
            drafted_tokens=_sum(answer.speculation.drafted for answer in answers),
            accepted_tokens=_sum(answer.speculation.accepted for answer in answers),
            tokens_per_second=output / decode if output and decode else None,
            cost_nanos=cost.list_nanos,
            example_price=cost.example_price,
            seconds=round(seconds, 3),
        )


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def summary(reports: Sequence[ProgramReport]) -> dict[str, Any]:
    """The sums. Cost per repaired program counts the failed ones' cost, too."""
    repaired = sum(report.outcome == "repaired" for report in reports)
    known = sum(report.outcome in {"repaired", "failed"} for report in reports)
    cost = sum(report.cost_nanos for report in reports)
    return {
        "programs": len(reports),
        "repaired": repaired,
        "known_outcomes": known,
        "steps": sum(report.steps for report in reports),
        "prompt_tokens": _sum(report.prompt_tokens for report in reports),
        "cached_tokens": _sum(report.cached_tokens for report in reports),
        "output_tokens": _sum(report.output_tokens for report in reports),
        "drafted_tokens": _sum(report.drafted_tokens for report in reports),
        "accepted_tokens": _sum(report.accepted_tokens for report in reports),
        "cost_nanos": cost,
        "cost_per_repaired_nanos": round(cost / repaired) if repaired else None,
        "example_price": any(report.example_price for report in reports),
    }


def as_json(reports: Sequence[ProgramReport]) -> dict[str, Any]:
    """The whole report as JSON values."""
    return {"programs": [asdict(report) for report in reports], "summary": summary(reports)}


def as_text(reports: Sequence[ProgramReport]) -> str:
    """The whole report as a table with a summary."""
    sums = summary(reports)
    price = " (EXAMPLE prices)" if sums["example_price"] else ""
    per_repair = _money(sums["cost_per_repaired_nanos"])
    total = _money(sums["cost_nanos"])
    coverage = f"with the outcome of {sums['known_outcomes']} of {sums['programs']} workflows known"
    lines = [
        _table([_HEADS, *(_row(report) for report in reports)]),
        "",
        f"{sums['repaired']} of {sums['programs']} repaired in {sums['steps']} steps for {total}{price}",
        f"cost per successful workflow: {per_repair}{price}, {coverage}",
    ]
    lines += [f"{report.name}: {report.note}" for report in reports if report.outcome != "repaired"]
    return "\n".join(lines)


def _row(report: ProgramReport) -> tuple[str, ...]:
    speed = "-" if report.tokens_per_second is None else f"{report.tokens_per_second:.1f}"
    counts = (
        report.prompt_tokens,
        report.cached_tokens,
        report.output_tokens,
        report.drafted_tokens,
        report.accepted_tokens,
    )
    numbers = ["-" if count is None else f"{count:,}" for count in counts]
    return (report.name, report.outcome, str(report.steps), *numbers, speed, _money(report.cost_nanos))


def _money(nanos: int | None) -> str:
    return "-" if nanos is None else f"${nanos / _NANOS:.6f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side; the first two to the left, the others, numbers, to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
