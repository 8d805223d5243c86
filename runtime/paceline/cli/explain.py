"""`paceline workflow explain`: which prompt tokens were computed again, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline import config
from paceline.cli.access import Tenant, steps_of, the_workflow, with_ledger
from paceline.cli.config import ConfigFile
from paceline.cli.failure import clear_errors
from paceline.cli.money import EXAMPLE, usd
from paceline.cli.outcome import WorkflowId
from paceline.ledger.prices import PriceBook
from paceline.ledger.store import SqlLedger
from paceline.workflow.explain import Again, Cause, Explanation, Turn
from paceline.workflow.explain import explain as explain_steps
from paceline.workflow.model import Step, Workflow

DIGITS = 6
"""Decimals of a USD amount in the tables; --json has the nano."""
NUMBERS = ("prompt", "carried", "cached", "new", "again", "rounding")
ESTIMATES = ("seconds", "list cost", "infra cost")
_Found = tuple[Workflow, list[Step], list[Step]]


@clear_errors
def explain(
    workflow_id: WorkflowId,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    tenant: Tenant = None,
    file: ConfigFile = None,
) -> None:
    """Explain turn by turn which prompt tokens were computed again, why, what it cost, and what helps."""

    async def work(ledger: SqlLedger) -> _Found:
        found = await the_workflow(ledger, tenant, workflow_id)
        steps = await steps_of(ledger, found)
        return found, steps, await _outside(ledger, found, steps)

    workflow, steps, outside = with_ledger(file, work)
    settings = config.load(file)
    prices = PriceBook.from_settings(settings)
    drafts = {
        name: profile.num_speculative_tokens
        for name, profile in settings.speculation.items()
        if profile.method != "none"
    }
    found = explain_steps(
        steps, outside, drafts, lambda tokens: prices.miss_cost(workflow.model, tokens).list_nanos
    )
    example = prices.miss_cost(workflow.model, 0).example_price or any(step.cost.example_price for step in steps)
    if as_json:
        typer.echo(_json(workflow, found, example=example))
    else:
        _print(Console(), workflow, found, example=example)


async def _outside(ledger: SqlLedger, workflow: Workflow, steps: Sequence[Step]) -> list[Step]:
    """Parents that belong to the workflows which this one was forked from."""
    wanted = {step.parent_step_id for step in steps if step.parent_step_id} - {step.step_id for step in steps}
    return [await ledger.get_step(workflow.tenant, step_id) for step_id in sorted(wanted)]


def _json(workflow: Workflow, found: Explanation, *, example: bool) -> str:
    document = {
        "workflow_id": workflow.workflow_id,
        "tenant": workflow.tenant,
        "model": workflow.model,
        "example_price": example,
        **msgspec.to_builtins(found),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _print(console: Console, workflow: Workflow, found: Explanation, *, example: bool) -> None:
    share = f" ({found.again_tokens / found.prompt_tokens:.1%})" if found.prompt_tokens else ""
    console.print(
        f"{escape(workflow.workflow_id)}: {found.again_tokens} of {found.prompt_tokens} prompt tokens were "
        f"computed again{share}, and {found.rounding_tokens} by block rounding, which is normal.",
        highlight=False,
        soft_wrap=True,
    )
    if matches := Counter(turn.match for turn in found.turns if turn.match):
        counts = ", ".join(f"{count} {match.value}" for match, count in matches.items())
        _line(console, f"Found by the conversation, as the client named no workflow: {counts}.")
    console.print(_turn_table(found.turns))
    for turn in found.turns:
        for part in turn.again:
            _line(console, f"turn {turn.number}: {_words(part)}")
    if found.causes:
        console.print(_cause_table(found.causes))
    for cause in found.causes:
        _line(console, f"{cause.reason.value}: {cause.remedy}")
    for note in _notes(found, example=example):
        _line(console, note)


def _line(console: Console, text: str) -> None:
    console.print(escape(text), highlight=False, soft_wrap=True)


def _words(part: Again) -> str:
    most = "at most " if part.at_most else ""
    detail = f", {part.detail}" if part.detail else ""
    seconds, list_cost, infra_cost = _estimates(part.seconds, part.list_nanos, part.infrastructure_nanos)
    return (
        f"{part.reason.value}{detail}: {most}{part.tokens} tokens, from token {part.start} on; "
        f"{seconds} s, list cost {list_cost}, infra cost {infra_cost}"
    )


def _turn_table(turns: Sequence[Turn]) -> Table:
    table = _table("turn", *NUMBERS, "why")
    for turn in turns:
        counts = (
            turn.prompt_tokens,
            turn.carried_tokens,
            turn.cached_tokens,
            turn.rendered_tokens,
            turn.again_tokens,
            turn.rounding_tokens,
        )
        table.add_row(str(turn.number), *("-" if count is None else str(count) for count in counts), _why(turn))
    return table


def _why(turn: Turn) -> str:
    reasons = [turn.break_reason, *(part.reason for part in turn.again)]
    named = dict.fromkeys(reason.value for reason in reasons if reason)
    return ", ".join(named) or ("" if turn.state.value == "finished" else turn.state.value)


def _cause_table(causes: Sequence[Cause]) -> Table:
    table = _table("turns", "again", *ESTIMATES, "cause")
    for cause in causes:
        table.add_row(
            str(cause.turns),
            str(cause.tokens),
            *_estimates(cause.seconds, cause.list_nanos, cause.infrastructure_nanos),
            f"{cause.reason.value}{f', {cause.detail}' if cause.detail else ''}",
        )
    return table


def _table(*names: str) -> Table:
    """Numbers, and a last column of words."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names[:-1]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(names[-1], overflow="fold")
    return table


def _estimates(seconds: float | None, *amounts: int | None) -> tuple[str, ...]:
    shown = "-" if seconds is None else f"{seconds:.3f}"
    return (shown, *(usd(nanos, digits=DIGITS) for nanos in amounts))


def _notes(found: Explanation, *, example: bool) -> list[str]:
    notes = []
    if found.causes:
        notes.append(
            "Seconds and infra cost are estimates: the time to the first token in proportion. List cost is what "
            "the tokens cost more than cached ones, at the prices of now."
        )
    if any(cause.at_most for cause in found.causes):
        notes.append("Where history was rendered anew, new text is counted, too: it is at most so much.")
    if any(cause.incomplete for cause in found.causes):
        notes.append("Some turns have no seconds or no price: sums contain what is known.")
    if found.unknown_turns:
        notes.append(f"Of {found.unknown_turns} turns it is not known what was computed again; no sum has them.")
    if example:
        notes.append(f"{EXAMPLE}: these are example prices, not anybody's real ones.")
    return notes
