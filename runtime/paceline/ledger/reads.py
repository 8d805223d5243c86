"""Reads of workflows and steps."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CTE, Connection, Row, Select, bindparam, func, literal, select, tuple_

from paceline.errors import StepNotFound, WorkflowNotFound
from paceline.ledger.hot import HotStatement
from paceline.ledger.paging import from_token, to_token
from paceline.ledger.rows import Preamble, link_from_row, preamble_from_row, step_from_row
from paceline.ledger.tables import attempts, preambles, steps, workflow_labels, workflows
from paceline.ledger.workflow_rows import workflow_from_row
from paceline.workflow.chain import ChainLink
from paceline.workflow.model import Page, Step, Workflow
from paceline.workflow.ports import WorkflowFilter

_OF_ATTEMPT = (
    *("replica", "uncached_prompt_tokens", "cached_prompt_tokens", "cache_write_tokens", "output_tokens"),
    *("reasoning_tokens", "prompt_source", "output_source", "speculation_profile", "drafted_tokens"),
    *(
        "accepted_tokens",
        "mean_acceptance_length",
        "draft_steps",
        "step_class",
        "pool_choice",
        "pool_saving_us",
        "pool_prefill_us",
        "queue_us",
        "first_token_us",
        "decode_us",
        "total_us",
    ),
    *("list_nanos", "infrastructure_nanos", "price_name", "example_price"),
)

STEPS: Select[Any] = select(steps, *(attempts.c[name] for name in _OF_ATTEMPT)).select_from(
    steps.outerjoin(attempts, attempts.c.attempt_id == steps.c.last_attempt_id)
)
"""Steps with what is known of their last attempt."""

_ONE_STEP = STEPS.where(steps.c.tenant == bindparam("tenant"), steps.c.step_id == bindparam("step_id"))
_BY_REQUEST = STEPS.where(steps.c.tenant == bindparam("tenant"), steps.c.request_id == bindparam("request_id"))
_ONE_WORKFLOW = select(workflows).where(
    workflows.c.tenant == bindparam("tenant"), workflows.c.workflow_id == bindparam("workflow_id")
)
_WORKFLOW_OF_NEW = HotStatement(
    _ONE_WORKFLOW.where(
        ~select(steps.c.step_id)
        .where(steps.c.tenant == bindparam("tenant"), steps.c.request_id == bindparam("request_id"))
        .exists()
    )
)
_WorkflowRow = namedtuple("_WorkflowRow", [column.name for column in workflows.c])  # type: ignore[misc] # not literal


_OF_LINK = (
    *(
        "step_id",
        "workflow_id",
        "parent_step_id",
        "state",
        "preamble_id",
        "message_keys",
        "calls",
        "carried_tokens",
    ),
    *("rendered_ids", "generated_ids", "tokenizer_hash", "template_hash", "model_hash"),
    "reuse_kept_reasoning_tokens",
)


def _ids() -> CTE:
    """The ids of a step and its ancestors."""
    chain = (
        select(steps.c.step_id, steps.c.parent_step_id, literal(0).label("depth"))
        .where(steps.c.tenant == bindparam("tenant"), steps.c.step_id == bindparam("step_id"))
        .cte("chain", recursive=True)
    )
    return chain.union_all(
        select(steps.c.step_id, steps.c.parent_step_id, chain.c.depth + 1).where(
            steps.c.step_id == chain.c.parent_step_id
        )
    )


def _chain(columns: Select[Any]) -> Select[Any]:
    chain = _ids()
    return columns.join(chain, chain.c.step_id == steps.c.step_id).order_by(chain.c.depth.desc())


_CHAIN = _chain(STEPS)
LINKS = _chain(
    select(
        *(steps.c[name] for name in (*_OF_LINK, "reuse_prompt_tokens")),
        *(attempts.c[name] for name in ("reasoning_tokens", "output_tokens", "replica")),
    ).select_from(steps.outerjoin(attempts, attempts.c.attempt_id == steps.c.last_attempt_id))
)
"""The steps of a chain without their texts."""
_chain_ids = _ids()
_IN_CHAIN = select(_chain_ids.c.step_id).where(_chain_ids.c.step_id == bindparam("ancestor_id")).limit(1)


def get_workflow(connection: Connection, tenant: str, workflow_id: str) -> Workflow:
    """One workflow. Raises `WorkflowNotFound`."""
    row = connection.execute(_ONE_WORKFLOW, {"tenant": tenant, "workflow_id": workflow_id}).one_or_none()
    if row is None:
        raise WorkflowNotFound(f"there is no workflow {workflow_id}", workflow_id=workflow_id)
    return workflow_from_row(row)


def workflow_for(connection: Connection, tenant: str, workflow_id: str, request_id: str) -> Workflow | None:
    """The workflow of a new request; None without one, or when a step has the request id."""
    key = {"tenant": tenant, "workflow_id": workflow_id, "request_id": request_id}
    row = _WORKFLOW_OF_NEW.run(connection, key).fetchone()
    return workflow_from_row(_WorkflowRow(*row)) if row else None


def find_workflows(connection: Connection, workflow_id: str) -> list[Workflow]:
    """The workflows with this id, of any tenant."""
    statement = select(workflows).where(workflows.c.workflow_id == workflow_id).order_by(workflows.c.tenant)
    return [workflow_from_row(row) for row in connection.execute(statement)]


def counts(connection: Connection) -> dict[str, int]:
    """Rows of the main tables."""
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in (workflows, steps, attempts)
    }


def list_workflows(
    connection: Connection, tenant: str, where: WorkflowFilter, page_size: int, page_token: str
) -> Page[Workflow]:
    """Newest first."""
    statement = select(workflows).where(workflows.c.tenant == tenant)
    for name, value in where.labels.items():
        statement = statement.where(has_label(name, value))
    if where.open_only:
        statement = statement.where(workflows.c.outcome_kind.is_(None))
    key = tuple_(workflows.c.created_at, workflows.c.workflow_id)
    if after := from_token(page_token, tuple[int, str]):
        statement = statement.where(key < tuple_(*after))
    order = (workflows.c.created_at.desc(), workflows.c.workflow_id.desc())
    rows = connection.execute(statement.order_by(*order).limit(page_size + 1)).all()
    items = [workflow_from_row(row) for row in rows[:page_size]]
    return Page(items, _next(rows, page_size, "workflow_id"))


def has_label(name: str, value: str) -> Any:
    """The condition that a workflow has a label."""
    return (
        select(workflow_labels.c.name)
        .where(
            workflow_labels.c.tenant == workflows.c.tenant,
            workflow_labels.c.workflow_id == workflows.c.workflow_id,
            workflow_labels.c.name == name,
            workflow_labels.c.value == value,
        )
        .exists()
    )


def find_step(connection: Connection, tenant: str, request_id: str) -> Step | None:
    """The step of an idempotency key."""
    found = _steps(connection, _BY_REQUEST, {"tenant": tenant, "request_id": request_id})
    return found[0] if found else None


def get_step(connection: Connection, tenant: str, step_id: str) -> Step:
    """One step. Raises `StepNotFound`."""
    found = _steps(connection, _ONE_STEP, {"tenant": tenant, "step_id": step_id})
    if not found:
        raise StepNotFound(f"there is no step {step_id}", step_id=step_id)
    return found[0]


def list_steps(
    connection: Connection, tenant: str, workflow_id: str, page_size: int, page_token: str
) -> Page[Step]:
    """Oldest first."""
    statement = STEPS.where(steps.c.tenant == tenant, steps.c.workflow_id == workflow_id)
    if after := from_token(page_token, tuple[int, str]):
        statement = statement.where(tuple_(steps.c.created_at, steps.c.step_id) > tuple_(*after))
    statement = statement.order_by(steps.c.created_at, steps.c.step_id).limit(page_size + 1)
    rows = connection.execute(statement).all()
    return Page(_convert(connection, rows[:page_size]), _next(rows, page_size, "step_id"))


def load_chain(connection: Connection, tenant: str, step_id: str) -> list[Step]:
    """The step and its ancestors, root first. Raises `StepNotFound`."""
    found = _steps(connection, _CHAIN, {"tenant": tenant, "step_id": step_id})
    if not found:
        raise StepNotFound(f"there is no step {step_id}", step_id=step_id)
    return found


def load_links(connection: Connection, tenant: str, step_id: str) -> list[ChainLink]:
    """The same chain without its texts; only the last link has system prompt and tools. Raises `StepNotFound`."""
    rows = connection.execute(LINKS, {"tenant": tenant, "step_id": step_id}).all()
    if not rows:
        raise StepNotFound(f"there is no step {step_id}", step_id=step_id)
    *_, last = rows
    known = _preambles(connection, {last.preamble_id})
    return [link_from_row(row, known[row.preamble_id] if row is last else known[None]) for row in rows]


def is_ancestor(connection: Connection, tenant: str, step_id: str, of: str) -> bool:
    """Whether a step is `of` or one of its ancestors."""
    key = {"tenant": tenant, "step_id": of, "ancestor_id": step_id}
    return connection.execute(_IN_CHAIN, key).scalar() is not None


def _steps(connection: Connection, statement: Select[Any], key: Mapping[str, str]) -> list[Step]:
    return _convert(connection, connection.execute(statement, key).all())


def _convert(connection: Connection, rows: Sequence[Row[Any]]) -> list[Step]:
    """Steps of rows; a preamble that many share is read and parsed once."""
    known = _preambles(connection, {row.preamble_id for row in rows})
    return [step_from_row(row, known) for row in rows]


def _preambles(connection: Connection, ids: set[str | None]) -> dict[str | None, Preamble]:
    known: dict[str | None, Preamble] = {None: ("", ())}
    if wanted := ids - {None}:
        found = connection.execute(select(preambles).where(preambles.c.preamble_id.in_(wanted)))
        known.update({row.preamble_id: preamble_from_row(row) for row in found})
    return known


def _next(rows: Sequence[Row[Any]], page_size: int, name: str) -> str:
    if len(rows) <= page_size:
        return ""
    last = rows[page_size - 1]
    return to_token((last.created_at, getattr(last, name)))
