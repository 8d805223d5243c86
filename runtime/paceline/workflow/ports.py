"""What the use case needs from outside, as Protocols. The ledger implements `Ledger`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from paceline.engines.base import GenerateRequest
from paceline.routing.pools import PoolChoice
from paceline.workflow.chain import ChainLink
from paceline.workflow.model import (
    CallRef,
    Cost,
    FinishReason,
    Message,
    Outcome,
    OutputFlag,
    Page,
    Reuse,
    Segments,
    Speculation,
    Step,
    StepClass,
    StepState,
    StorePolicy,
    Timings,
    Usage,
    Workflow,
    WorkflowMatch,
)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A step's worst case: the whole prompt as if uncached plus the most output, at list prices."""

    list_nanos: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """One dispatch, durable before it happens. `number` counts from 1 within the step."""

    attempt_id: str
    step_id: str
    workflow_id: str
    number: int
    replica: str
    runtime_id: str
    prompt_tokens: int
    speculation_profile: str
    dispatched_at: datetime
    reservation: Reservation
    cost: Cost = field(default_factory=Cost)
    """What is billed if the runtime dies before the first checkpoint: the whole prompt as uncached."""
    pool: PoolChoice | None = None
    """Why it runs in its pool."""


@dataclass(frozen=True, slots=True)
class AttemptCheckpoint:
    """What is known of a running attempt; written each second, read only if its runtime dies."""

    attempt_id: str
    usage: Usage
    speculation: Speculation
    cost: Cost


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt and of its step, committed together.

    For a finished step: `output`, `segments`, `finish_reason`, `reuse` and `step_class` are set, the head of the
    workflow moves to the step and its binding to `replica`. Otherwise `error_reason` is set and nothing is
    appended. The reservation of the attempt is released and the real cost and tokens are added to the workflow's
    spend.
    """

    attempt_id: str
    step_id: str
    workflow_id: str
    state: StepState
    usage: Usage
    speculation: Speculation
    timings: Timings
    cost: Cost
    replica: str
    ended_at: datetime
    accelerator_seconds: float = 0.0
    """Seconds of the replica's time, shared equally with the steps that ran beside it."""
    output: Message | None = None
    malformed_tool_calls: int = 0
    output_flags: tuple[OutputFlag, ...] = ()
    keys: tuple[bytes, ...] | None = None
    calls: tuple[CallRef, ...] = ()
    """The calls of the answer."""
    chain_hash: bytes | None = None
    segments: Segments | None = None
    finish_reason: FinishReason | None = None
    reuse: Reuse | None = None
    step_class: StepClass | None = None
    error_reason: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """A finished step that a conversation continues."""

    step_id: str
    workflow_id: str
    continued: bool
    """Whether another step continues it, finished or under way, or its workflow has gone elsewhere."""
    closed: bool
    """Whether its workflow has an outcome."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A step that failed or was cancelled on the same conversation."""

    request_id: str
    request_hash: str
    workflow_id: str
    match: WorkflowMatch
    error_reason: str
    replaceable: bool
    """Whether its workflow is open, and no later step of it is finished or under way."""


@dataclass(frozen=True, slots=True)
class WorkflowFilter:
    """Which workflows to list."""

    labels: dict[str, str] = field(default_factory=dict)
    open_only: bool = False


@dataclass(frozen=True, slots=True)
class Retention:
    """How long content is kept after the last change of its workflow, in seconds; None: for ever."""

    default: float | None = None
    tenants: dict[str, float] = field(default_factory=dict)
    """Of tenants that have their own."""


class Expired(NamedTuple):
    """A workflow whose content was kept long enough."""

    tenant: str
    workflow_id: str
    updated_at: datetime


class Deleted(NamedTuple):
    """A workflow whose content, or part of it, is deleted."""

    tenant: str
    workflow_id: str
    content_deleted_at: datetime


class Ledger(Protocol):
    """Durable workflows, steps and attempts. Every awaited write is committed when it returns.

    Errors: the `*NotFound`, `*Exists`, `WorkflowFinished`, `RequestIdReused`, `BudgetExceeded` of
    `paceline.errors`, and `LedgerUnavailable` when the database does not take the write in time. Everything is
    scoped by tenant: another tenant's id is not found.
    """

    async def create_workflow(self, workflow: Workflow, request_hash: str) -> Workflow:
        """Insert; an existing id with the same hash returns the stored one, else `WorkflowExists`."""
        ...

    async def get_workflow(self, tenant: str, workflow_id: str) -> Workflow:
        """Return one workflow."""
        ...

    async def workflow_for(self, tenant: str, workflow_id: str, request_id: str) -> Workflow | None:
        """Return the workflow of a new request; None when there is no such workflow or the request is not new."""
        ...

    async def list_workflows(
        self, tenant: str, where: WorkflowFilter, page_size: int, page_token: str
    ) -> Page[Workflow]:
        """Newest first. A malformed token raises `InvalidArgument`."""
        ...

    async def delete_content(self, tenant: str, workflow_id: str, unchanged_since: datetime | None = None) -> None:
        """Delete texts and token ids of a workflow and its steps for good; counts, hashes and costs stay. It and
        the forks that share steps with it get a new `content_deleted_at`.

        Nothing happens if the workflow is not `unchanged_since`, where that is given. Raises `WorkflowNotFound`,
        and `WorkflowBusy` while a step runs or waits.
        """
        ...

    async def deleted_since(self, moment: datetime) -> list[Deleted]:
        """Workflows with their last deletion, if it was not before."""
        ...

    async def expired(self, retention: Retention, most: int) -> list[Expired]:
        """Workflows whose content is to be deleted now: without a running step, and without a fork that still has
        content."""
        ...

    async def finish_workflow(self, tenant: str, workflow_id: str, outcome: Outcome) -> Workflow:
        """Set the outcome, keeping every earlier one in the audit table."""
        ...

    async def find_step(self, tenant: str, request_id: str) -> Step | None:
        """The step with this idempotency key, if any."""
        ...

    async def get_step(self, tenant: str, step_id: str) -> Step:
        """Return one step."""
        ...

    async def list_steps(self, tenant: str, workflow_id: str, page_size: int, page_token: str) -> Page[Step]:
        """Oldest first."""
        ...

    async def load_chain(self, tenant: str, step_id: str) -> list[Step]:
        """The step and its ancestors, root first, across forks."""
        ...

    async def load_links(self, tenant: str, step_id: str) -> list[ChainLink]:
        """The same chain without its texts: a read of ids and hashes only. System prompt and tools are those of
        the last step; the others have none."""
        ...

    async def is_ancestor(self, tenant: str, step_id: str, of: str) -> bool:
        """Whether a step is `of` or one of its ancestors, across forks. Reads ids only."""
        ...

    async def find_answered(self, tenant: str, hashes: Sequence[bytes]) -> list[Answered]:
        """The finished steps whose chain hash is the first of these that any has, latest first; the latest 100."""
        ...

    async def find_unanswered(self, tenant: str, chain_hash: bytes) -> list[Unanswered]:
        """The failed and cancelled steps with this chain hash whose messages are not deleted, latest first; the
        latest 100."""
        ...

    async def open_step(self, step: Step, attempt: NewAttempt | None) -> None:
        """Insert a new step, QUEUED without an attempt and RUNNING with one. The attempt's reservation and the
        step count are checked against the workflow's budget (`BudgetExceeded`), the workflow must be open
        (`WorkflowFinished`), and (tenant, request_id) must be new (`RequestIdReused`)."""
        ...

    async def open_attempt(self, attempt: NewAttempt) -> None:
        """Insert an attempt for a known step, which becomes RUNNING under `attempt.runtime_id`: after queueing, or
        because the step runs again. Budget and workflow are checked as in `open_step`."""
        ...

    async def requeue_step(self, step: Step) -> bool:
        """Take over an ended, retryable step for another attempt (state QUEUED) of `step.runtime_id`, with system
        prompt and tools as they are sent now. False if another took it."""
        ...

    async def close_attempt(self, end: AttemptEnd) -> None:
        """Close an attempt and its step. Idempotent: a closed attempt is left as it is. Raises `RuntimeLost` when
        another runtime has closed it meanwhile as an orphan: this end, and its answer, are not kept."""
        ...

    async def close_queued(self, step_id: str, state: StepState, error_reason: str, error_message: str) -> None:
        """Close a step that never got an attempt."""
        ...

    async def checkpoint(self, checkpoints: list[AttemptCheckpoint]) -> None:
        """Note the progress of running attempts."""
        ...

    async def register_runtime(self, runtime_id: str, host: str, pid: int, lease_seconds: float) -> None:
        """Insert this runtime with its lease."""
        ...

    async def renew_lease(self, runtime_id: str, lease_seconds: float) -> None:
        """Extend this runtime's lease."""
        ...

    async def close_orphans(self, runtime_id: str) -> int:
        """Close the attempts and steps of runtimes whose lease expired with what their last checkpoint knew,
        as FAILED / RUNTIME_LOST; returns how many. On SQLite every other runtime is dead, by the file lock."""
        ...

    async def close_idle(self, idle_seconds: float) -> int:
        """Close workflows without activity for so long as UNKNOWN / RUNTIME; returns how many."""
        ...


class Prices(Protocol):
    """The price book."""

    def list_cost(self, model: str, usage: Usage) -> Cost:
        """List cost of one answer, rounded once; an unknown cached share is priced as uncached."""
        ...

    def worst_case(self, model: str, prompt_tokens: int, output_tokens: int) -> int:
        """Nano-USD of a whole uncached prompt and the longest answer; 0 for an unpriced model."""
        ...

    def infrastructure_cost(self, instance_type: str, seconds: float) -> Cost:
        """Provisional cost of accelerator time; no amount without an hourly price."""
        ...


@dataclass(frozen=True, slots=True)
class StepReport:
    """What the log and the metrics learn of a step that ended."""

    tenant: str
    model: str
    workflow_id: str
    step_id: str
    request_id: str
    attempt_id: str
    attempt: int
    prompt_tokens: int
    draft_limit: int
    """Most tokens that the replica drafts at once (K); 0 without speculation."""
    input: tuple[Message, ...]
    end: AttemptEnd
    request: GenerateRequest | None = None
    """What the engine was asked; None if it was not. Holds the whole prompt: keep few of them."""
    kept_tokens: int | None = None
    """How many ids of the answer the engine generated, the others being tokenized again; None: all."""
    pool: PoolChoice | None = None
    """Why it ran in its pool."""
    match: WorkflowMatch | None = None
    """How the workflow was found; None when the client named it."""
    store: StorePolicy = StorePolicy.FULL
    """Whether what was said may be written down."""


class Observer(Protocol):
    """Sees every step that had an attempt, once its end is durable."""

    def step_ended(self, report: StepReport) -> None:
        """Note it; must not block or raise."""
        ...
