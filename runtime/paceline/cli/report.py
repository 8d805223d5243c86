"""`paceline report`: what workflows cost, in groups."""

from __future__ import annotations

import csv
import json
import sys
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from paceline.cli.access import Tenant, with_ledger
from paceline.cli.config import ConfigFile
from paceline.cli.failure import clear_errors
from paceline.cli.money import EXAMPLE, usd
from paceline.errors import InvalidArgument
from paceline.ledger.reports import CostQueries
from paceline.ledger.store import SqlLedger
from paceline.workflow.costs import OF_ATTEMPTS, CostFilter, CostSummary

PAGE = 1000
DIGITS = 6
"""Decimals of a USD amount in the table; --json and --csv have the nano."""
MONEY = frozenset({"list cost", "retries", "infra cost", "per success"})
OF_WORKFLOWS = frozenset({"succeeded", "per success"})
"""Columns that groups of attempts do not have: they share workflows."""
SPECULATION = frozenset({"drafted", "accepted", "length", "rate", "tokens/s"})
SECONDARY = frozenset({"attempts", "retries", "infra cost"})
"""Columns that a narrow terminal leaves out: these, and either what speculation did or, in groups of attempts,
what prompts were made of."""
PROMPT = frozenset({"uncached", "cached"})


@clear_errors
def report(
    *,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Group by model, outcome, workflow, day (UTC), tenant, label:NAME, or the class, pool or context "
            "of attempts; up to 4."
        ),
    ] = None,
    since: Annotated[datetime | None, typer.Option(help="Workflows created then or later, UTC.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Workflows created before, UTC.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only these models.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="Only workflows with this label, NAME=VALUE.")] = None,
    tenant: Tenant = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    file: ConfigFile = None,
) -> None:
    """Show what workflows cost, and what a successful one costs. The server may be running."""
    if as_json and as_csv:
        raise InvalidArgument("--json, --csv: give one of them", field="json")
    keys = tuple(by or ["model"])
    where = CostFilter(_utc(since), _utc(until), tuple(model or ()), labels_of(label or []))

    async def work(ledger: SqlLedger) -> tuple[list[CostSummary], CostSummary]:
        queries = CostQueries(ledger)
        total = (await queries.query(tenant, (), where, 1, "")).items[0]
        return await _all_groups(queries, tenant, keys, where), total

    groups, total = with_ledger(file, work)
    if as_json:
        _write_json(keys, groups, total)
    elif as_csv:
        _write_csv(keys, groups)
    else:
        _write_table(keys, groups, total)


async def _all_groups(
    queries: CostQueries, tenant: str | None, keys: tuple[str, ...], where: CostFilter
) -> list[CostSummary]:
    groups: list[CostSummary] = []
    token = ""
    while True:
        page = await queries.query(tenant, keys, where, PAGE, token)
        groups += page.items
        token = page.next_token
        if not token:
            return groups


def _utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment else None


def labels_of(texts: list[str]) -> dict[str, str]:
    """Labels of options. Raises `InvalidArgument` for what is not NAME=VALUE."""
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"--label {text}: write NAME=VALUE", field="label")
        labels[name] = value
    return labels


def coverage(total: CostSummary) -> str:
    """How many workflows the cost per success speaks of."""
    return f"{total.known_outcome_workflows} of {total.workflows} workflows have an outcome"


def _record(keys: tuple[str, ...], summary: CostSummary) -> dict[str, object]:
    """A flat record; amounts in nano-USD, None for a ratio that does not exist."""
    return {
        **dict(zip(keys, summary.group, strict=False)),
        "workflow_count": summary.workflows,
        "succeeded_workflow_count": summary.succeeded_workflows,
        "known_outcome_workflow_count": summary.known_outcome_workflows,
        "step_count": summary.steps,
        "attempt_count": summary.attempts,
        "uncached_prompt_token_count": summary.uncached_prompt,
        "cached_prompt_token_count": summary.cached_prompt,
        "output_token_count": summary.output,
        "drafted_token_count": summary.drafted,
        "accepted_draft_token_count": summary.accepted,
        "draft_report_count": summary.draft_reports,
        "draft_step_count": summary.draft_steps,
        "mean_acceptance_length": summary.mean_acceptance_length,
        "acceptance_rate": summary.acceptance_rate,
        "output_tokens_per_decode_second": summary.output_per_decode_second,
        "unreported_attempt_count": summary.unreported_attempts,
        "unpriced_attempt_count": summary.unpriced_attempts,
        "list_cost_usd_nanos": summary.list_nanos,
        "retry_cost_usd_nanos": summary.retry_nanos,
        "infrastructure_cost_usd_nanos": summary.infrastructure_nanos,
        "cost_per_success_usd_nanos": summary.cost_per_success_nanos,
        "prices": EXAMPLE if summary.example_price else "",
    }


def _write_json(keys: tuple[str, ...], groups: list[CostSummary], total: CostSummary) -> None:
    document = {
        "groups": [_record(keys, group) for group in groups],
        "total": _record((), total),
        "coverage": coverage(total),
    }
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _write_csv(keys: tuple[str, ...], groups: list[CostSummary]) -> None:
    writer = csv.DictWriter(sys.stdout, list(_record(keys, CostSummary(group=keys))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_record(keys, group) for group in groups)


def _write_table(keys: tuple[str, ...], groups: list[CostSummary], total: CostSummary) -> None:
    console = Console()
    table = _table(keys, groups, total, everything=True)
    narrow = Measurement.get(console, console.options.update(width=10_000), table).maximum > console.width
    console.print(_table(keys, groups, total, everything=False) if narrow else table)
    console.print(_notes(total, by_attempt=_by_attempt(keys)), highlight=False)
    if narrow:
        console.print("A wider terminal shows more columns, --json and --csv show all.", highlight=False)


def _table(keys: tuple[str, ...], groups: list[CostSummary], total: CostSummary, *, everything: bool) -> Table:
    table = Table(show_footer=bool(groups), box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for number, key in enumerate(keys):
        table.add_column(key.removeprefix("label:"), footer="total" if number == 0 else "", overflow="fold")
    left_out = _left_out(by_attempt=_by_attempt(keys), everything=everything)
    for name, footer in _cells(total, left_out):
        mark = f"\n{EXAMPLE}" if total.example_price and name in MONEY else ""
        table.add_column(name + mark, justify="right", footer=footer, no_wrap=name in MONEY)
    for group in groups:
        table.add_row(*map(escape, group.group), *(text for _, text in _cells(group, left_out)))
    return table


def _by_attempt(keys: tuple[str, ...]) -> bool:
    return any(key in OF_ATTEMPTS for key in keys)


def _left_out(*, by_attempt: bool, everything: bool) -> frozenset[str]:
    absent = OF_WORKFLOWS if by_attempt else frozenset[str]()
    return absent if everything else absent | SECONDARY | (PROMPT if by_attempt else SPECULATION)


def _cells(summary: CostSummary, left_out: frozenset[str]) -> list[tuple[str, str]]:
    reported = summary.draft_reports > 0
    priced = summary.unpriced_attempts < summary.attempts or summary.attempts == 0
    cells = [
        ("succeeded", f"{summary.succeeded_workflows}/{summary.workflows}"),
        ("steps", str(summary.steps)),
        ("attempts", str(summary.attempts)),
        ("uncached", str(summary.uncached_prompt)),
        ("cached", str(summary.cached_prompt)),
        ("output", str(summary.output)),
        ("drafted", str(summary.drafted) if reported else "-"),
        ("accepted", str(summary.accepted) if reported else "-"),
        ("length", _rounded(summary.mean_acceptance_length, ".2f")),
        ("rate", _rounded(summary.acceptance_rate, ".0%")),
        ("tokens/s", _rounded(summary.output_per_decode_second, ".1f")),
        ("list cost", usd(summary.list_nanos if priced else None, digits=DIGITS)),
        ("retries", usd(summary.retry_nanos if priced else None, digits=DIGITS)),
        ("infra cost", usd(summary.infrastructure_nanos, digits=DIGITS)),
        ("per success", usd(summary.cost_per_success_nanos if priced else None, digits=DIGITS)),
    ]
    return [cell for cell in cells if cell[0] not in left_out]


def _rounded(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _notes(total: CostSummary, *, by_attempt: bool) -> str:
    notes = [f"{coverage(total)}; cost per success = list cost of those / {total.succeeded_workflows} succeeded."]
    if by_attempt:
        notes = [f"{total.draft_reports} answers report what was drafted."]
    elif not total.succeeded_workflows:
        notes = [f"{coverage(total)}; none succeeded, so there is no cost per success."]
    if total.unreported_attempts:
        notes.append(f"{total.unreported_attempts} attempts did not report all their tokens.")
    if total.unpriced_attempts:
        notes.append(f"{total.unpriced_attempts} attempts have no list price: no list cost contains them.")
    if total.example_price:
        notes.append(f"{EXAMPLE}: these are example prices, not anybody's real ones.")
    return "\n".join(notes)
