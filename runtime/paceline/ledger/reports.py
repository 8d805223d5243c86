"""What workflows cost: sums by SQL over attempts, steps and workflows, in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    String,
    and_,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    union_all,
)

from paceline.errors import InvalidArgument, WorkflowNotFound
from paceline.ledger.paging import from_token, to_token
from paceline.ledger.prices import round_half_even
from paceline.ledger.reads import has_label
from paceline.ledger.rows import EPOCH, MILLION, to_microseconds
from paceline.ledger.store import SqlLedger
from paceline.ledger.tables import attempts, steps, workflow_labels, workflows
from paceline.workflow.costs import OF_ATTEMPTS, CostFilter, CostSummary
from paceline.workflow.model import OutcomeKind, Page, StepState
from paceline.workflow.stepclass import CONTEXT_LIMITS, CONTEXTS
from paceline.workflow.validation import check_cost_filter, check_page

MAX_KEYS = 4
LABEL = "label:"
DAY = 24 * 3600 * 1_000_000
_KNOWN = (OutcomeKind.SUCCEEDED.value, OutcomeKind.FAILED.value, OutcomeKind.ABANDONED.value)
_ENDED = (StepState.FINISHED.value, StepState.FAILED.value, StepState.CANCELLED.value)
_MODEL: ColumnElement[str] = literal_column("selected.model", String)
"""The model of the workflow, in a query whose selection is named `selected`."""
_SUMS = (
    *(
        "workflows",
        "succeeded",
        "known",
        "steps",
        "attempts",
        "uncached",
        "cached",
        "output",
        "drafted",
        "accepted",
        "draft_reports",
        "draft_steps",
        "verified",
        "timed_output",
        "decode_us",
    ),
    *(
        "unreported",
        "unpriced",
        "list_nanos",
        "known_nanos",
        "retry_nanos",
        "infrastructure_nanos",
        "rated",
        "examples",
    ),
)


class CostQueries:
    """The `CostReader` of the use case. A tenant of None asks across all tenants: for the operator's own tools."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._database = ledger.database

    async def workflow_cost(self, tenant: str | None, workflow_id: str, *, include_children: bool) -> CostSummary:
        """Return the sums of one workflow, on request with all that work for it. Raises `WorkflowNotFound`."""
        return await self._database.read(
            partial(_workflow_cost, tenant=tenant, workflow_id=workflow_id, include_children=include_children)
        )

    async def query(
        self, tenant: str | None, group_by: tuple[str, ...], where: CostFilter, page_size: int, page_token: str
    ) -> Page[CostSummary]:
        """Return the sums of each group, ordered by the group's values.

        Keys of workflows: model, outcome, workflow, day (UTC day of the workflow's creation), label:NAME; across
        tenants also tenant. Keys of attempts: class, pool, context. With one of those, what is counted by workflow
        is None. Raises `InvalidArgument`.
        """
        size = check_page(page_size, page_token)
        check_cost_filter(where)
        keys = _keys(tenant, group_by)
        return await self._database.read(
            partial(_query, tenant=tenant, keys=keys, where=where, page_size=size, page_token=page_token)
        )


@dataclass(frozen=True, slots=True)
class _Key:
    """One group key: its name and its value of a workflow, or of an attempt."""

    name: str
    value: ColumnElement[Any]
    of_attempt: bool = False

    @property
    def number(self) -> bool:
        """Whether the database has a number for it, so that groups are in its order."""
        return self.name in {"day", "context"}

    def text(self, value: Any) -> str:
        """The value as clients see it."""
        if self.name == "day":
            return (EPOCH + timedelta(days=value)).date().isoformat()
        return CONTEXTS[value] if self.name == "context" else str(value)


def _keys(tenant: str | None, names: Sequence[str]) -> list[_Key]:
    if len(names) > MAX_KEYS or len(set(names)) < len(names):
        raise InvalidArgument(f"group_by: give at most {MAX_KEYS} keys, each once", field="group_by")
    return [_key(tenant, name) for name in names]


def _key(tenant: str | None, name: str) -> _Key:
    if name in OF_ATTEMPTS:
        return _Key(name, _value_of_attempt(name), of_attempt=True)
    return _Key(name, _value(tenant, name))


def _value_of_attempt(name: str) -> ColumnElement[Any]:
    profile = attempts.c.speculation_profile
    longest = len(CONTEXTS) - 1
    buckets = [(attempts.c.prompt_tokens <= limit, place) for place, limit in enumerate(CONTEXT_LIMITS)]
    columns: dict[str, ColumnElement[Any]] = {
        "class": func.coalesce(attempts.c.step_class, ""),
        "pool": case((profile == "", _MODEL), else_=_MODEL + "+" + profile),
        "context": case(*buckets, else_=longest),
    }
    return columns[name]


def _value(tenant: str | None, name: str) -> ColumnElement[Any]:
    columns: dict[str, ColumnElement[Any]] = {
        "model": workflows.c.model,
        "outcome": func.coalesce(workflows.c.outcome_kind, ""),
        "workflow": workflows.c.workflow_id,
        "day": workflows.c.created_at // DAY,
    }
    if tenant is None:
        columns["tenant"] = workflows.c.tenant
    if name in columns:
        return columns[name]
    if name.startswith(LABEL) and name != LABEL:
        return func.coalesce(_label_value(name.removeprefix(LABEL)), "")
    known = ", ".join([*columns, *OF_ATTEMPTS])
    raise InvalidArgument(f"group_by: no key {name}; keys are {known} and label:NAME", field="group_by", key=name)


def _label_value(name: str) -> ColumnElement[Any]:
    return (
        select(workflow_labels.c.value)
        .where(
            workflow_labels.c.tenant == workflows.c.tenant,
            workflow_labels.c.workflow_id == workflows.c.workflow_id,
            workflow_labels.c.name == name,
        )
        .scalar_subquery()
    )


def _workflow_cost(
    connection: Connection, tenant: str | None, workflow_id: str, include_children: bool
) -> CostSummary:
    here = [workflows.c.workflow_id == workflow_id]
    if tenant is not None:
        here.append(workflows.c.tenant == tenant)
    family = select(workflows.c.tenant, workflows.c.workflow_id).where(*here).cte("family", recursive=True)
    if include_children:
        of_parent = and_(
            workflows.c.tenant == family.c.tenant, workflows.c.parent_workflow_id == family.c.workflow_id
        )
        family = family.union(select(workflows.c.tenant, workflows.c.workflow_id).join(family, of_parent))
    member = and_(workflows.c.tenant == family.c.tenant, workflows.c.workflow_id == family.c.workflow_id)
    selected = _selection([]).join(family, member).cte("selected")
    summary = _summary(connection.execute(_sums(selected, [])).one(), [])
    if summary.workflows == 0:
        raise WorkflowNotFound(f"there is no workflow {workflow_id}", workflow_id=workflow_id)
    return summary


def _query(
    connection: Connection,
    *,
    tenant: str | None,
    keys: list[_Key],
    where: CostFilter,
    page_size: int,
    page_token: str,
) -> Page[CostSummary]:
    selected = _selection(keys).where(*_conditions(tenant, where)).cte("selected")
    statement = _sums(selected, keys)
    if keys:
        columns = [statement.selected_columns[_name(number)] for number in range(len(keys))]
        if after := _after(page_token, keys):
            statement = statement.having(tuple_(*columns) > tuple_(*after))
        statement = statement.order_by(*columns).limit(page_size + 1)
    rows = connection.execute(statement).all()
    items = [_summary(row, keys) for row in rows[:page_size]]
    more = len(rows) > page_size
    return Page(items, to_token(tuple(rows[page_size - 1][: len(keys)])) if more else "")


def _after(page_token: str, keys: list[_Key]) -> list[int | str] | None:
    after = from_token(page_token, list[int | str])
    if after is None:
        return None
    if [type(value) for value in after] != [int if key.number else str for key in keys]:
        raise InvalidArgument("page_token: belongs to another query; start without one", field="page_token")
    return after


def _conditions(tenant: str | None, where: CostFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if tenant is not None:
        conditions.append(workflows.c.tenant == tenant)
    if where.created_from:
        conditions.append(workflows.c.created_at >= to_microseconds(where.created_from))
    if where.created_to:
        conditions.append(workflows.c.created_at < to_microseconds(where.created_to))
    if where.models:
        conditions.append(workflows.c.model.in_(where.models))
    conditions += [has_label(name, value) for name, value in where.labels.items()]
    return conditions


def _name(number: int) -> str:
    return f"key_{number}"


def _selection(keys: list[_Key]) -> Select[Any]:
    """The workflows to count, with those group keys that are theirs."""
    return select(
        workflows.c.tenant,
        workflows.c.workflow_id,
        workflows.c.outcome_kind,
        workflows.c.model,
        *(key.value.label(_name(number)) for number, key in enumerate(keys) if not key.of_attempt),
    )


def _sums(selected: CTE, keys: list[_Key]) -> Select[Any]:
    """One row of sums for each group. Each source is summed by itself, so that no join multiplies rows."""
    known = selected.c.outcome_kind.in_(_KNOWN)
    succeeded = selected.c.outcome_kind == OutcomeKind.SUCCEEDED.value
    of_steps, sources = _of(selected, steps), []
    if any(key.of_attempt for key in keys):
        of_steps = of_steps.join(attempts, attempts.c.attempt_id == steps.c.last_attempt_id)
    else:
        counts = {"workflows": func.count(), "succeeded": _count(succeeded), "known": _count(known)}
        sources.append(_part(selected, keys, selected, **counts))
    sources.append(_part(selected, keys, of_steps, steps=_count(steps.c.state.in_(_ENDED))))
    sources.append(_part(selected, keys, _of(selected, attempts), **_attempt_sums(known)))
    parts = union_all(*sources).subquery("parts")
    groups = [parts.c[_name(number)] for number in range(len(keys))]
    sums = [func.coalesce(func.sum(parts.c[name]), 0).label(name) for name in _SUMS]
    return select(*groups, *sums).group_by(*groups)


def _of(selected: CTE, table: FromClause) -> FromClause:
    same = and_(table.c.tenant == selected.c.tenant, table.c.workflow_id == selected.c.workflow_id)
    return selected.join(table, same)


def _part(selected: CTE, keys: list[_Key], source: FromClause, **sums: ColumnElement[int]) -> Select[Any]:
    """Sums of one source. Grouped by the names of the keys: PostgreSQL takes an expression with values in it for
    another one when it is repeated."""
    names = [_name(number) for number in range(len(keys))]
    groups = [
        (key.value if key.of_attempt else selected.c[name]).label(name)
        for key, name in zip(keys, names, strict=True)
    ]
    values = [sums.get(name, literal(0)).label(name) for name in _SUMS]
    return select(*groups, *values).select_from(source).group_by(*names)


def _attempt_sums(known: ColumnElement[bool]) -> dict[str, ColumnElement[int]]:
    a = attempts.c
    answer = a.state == StepState.FINISHED.value
    ended = a.state != StepState.RUNNING.value
    without_answer = and_(ended, ~answer)
    missing = or_(a.uncached_prompt_tokens.is_(None), a.cached_prompt_tokens.is_(None), a.output_tokens.is_(None))
    return {
        "attempts": func.count(),
        "uncached": _sum(answer, a.uncached_prompt_tokens),
        "cached": _sum(answer, a.cached_prompt_tokens),
        "output": _sum(answer, a.output_tokens),
        "drafted": _sum(answer, a.drafted_tokens),
        "accepted": _sum(answer, a.accepted_tokens),
        "draft_reports": _count(and_(answer, a.drafted_tokens.is_not(None))),
        "draft_steps": _sum(answer, a.draft_steps),
        "verified": _sum(and_(answer, a.draft_steps.is_not(None)), a.accepted_tokens),
        "timed_output": _sum(and_(answer, a.decode_us > 0), a.output_tokens - 1),  # after the first token
        "decode_us": _sum(and_(answer, a.output_tokens.is_not(None)), a.decode_us),
        "unreported": _count(and_(ended, missing)),
        "unpriced": _count(and_(ended, a.list_nanos.is_(None))),
        "list_nanos": _sum(ended, a.list_nanos),
        "known_nanos": _sum(and_(ended, known), a.list_nanos),
        "retry_nanos": _sum(without_answer, a.list_nanos),
        "infrastructure_nanos": _sum(ended, a.infrastructure_nanos),
        "rated": _count(and_(ended, a.infrastructure_nanos.is_not(None))),
        "examples": _count(and_(ended, a.example_price)),
    }


def _sum(condition: ColumnElement[bool], value: ColumnElement[Any]) -> ColumnElement[int]:
    return func.sum(case((condition, func.coalesce(value, 0)), else_=0))


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


def _summary(row: Row[Any], keys: list[_Key]) -> CostSummary:
    group = tuple(key.text(value) for key, value in zip(keys, row, strict=False))
    total = {name: int(getattr(row, name)) for name in _SUMS}
    succeeded = total["succeeded"]
    by_workflow = not any(key.of_attempt for key in keys)
    verified, checks = total["verified"], total["draft_steps"]
    return CostSummary(
        group=group,
        workflows=total["workflows"] if by_workflow else None,
        succeeded_workflows=succeeded if by_workflow else None,
        known_outcome_workflows=total["known"] if by_workflow else None,
        steps=total["steps"],
        attempts=total["attempts"],
        uncached_prompt=total["uncached"],
        cached_prompt=total["cached"],
        output=total["output"],
        drafted=total["drafted"],
        accepted=total["accepted"],
        draft_reports=total["draft_reports"],
        draft_steps=checks,
        mean_acceptance_length=1 + verified / checks if checks else None,
        acceptance_rate=total["accepted"] / total["drafted"] if total["drafted"] else None,
        output_per_decode_second=(
            total["timed_output"] * MILLION / total["decode_us"] if total["decode_us"] else None
        ),
        unreported_attempts=total["unreported"],
        unpriced_attempts=total["unpriced"],
        list_nanos=total["list_nanos"],
        retry_nanos=total["retry_nanos"],
        infrastructure_nanos=total["infrastructure_nanos"] if total["rated"] else None,
        cost_per_success_nanos=round_half_even(total["known_nanos"], succeeded) if succeeded else None,
        example_price=total["examples"] > 0,
    )
