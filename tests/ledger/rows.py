"""Domain objects for ledger tests, complete enough that every column is used."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime

from paceline.ledger.store import SqlLedger
from paceline.workflow.model import (
    Budget,
    Cost,
    FinishReason,
    Message,
    Reuse,
    ReuseBreak,
    Role,
    Sampling,
    Segments,
    Speculation,
    Step,
    StepState,
    Timings,
    Tool,
    ToolCall,
    TranscriptPolicy,
    Usage,
    UsageSource,
    Workflow,
)
from paceline.workflow.ports import AttemptEnd, NewAttempt, Reservation

NOW = datetime(2025, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
TENANT = "team-a"
USAGE = Usage(100, 900, 60, 50, 20, UsageSource.ENGINE, UsageSource.STREAM)
COST = Cost(1_000, 200, "model-a", example_price=True)


def ids(*values: int) -> bytes:
    return array("I", values).tobytes()


def workflow(
    workflow_id: str = "wf-00001",
    *,
    tenant: str = TENANT,
    labels: dict[str, str] | None = None,
    budget: Budget | None = None,
    parent: str | None = None,
    model: str = "model-a",
    created_at: datetime = NOW,
) -> Workflow:
    return Workflow(
        workflow_id,
        tenant,
        model,
        system="You repair programs.",
        tools=(Tool("bash", "Run a command.", '{"type": "object"}'),),
        sampling=Sampling(temperature=0.2, stop=("END",)),
        labels=labels or {},
        budget=budget or Budget(),
        transcript_policy=TranscriptPolicy.TEMPLATE_FAITHFUL,
        parent_workflow_id=parent,
        created_at=created_at,
        updated_at=created_at,
    )


def step(
    step_id: str = "st-00001",
    *,
    workflow_id: str = "wf-00001",
    tenant: str = TENANT,
    parent: str | None = None,
    request_id: str = "",
    created_at: datetime = NOW,
) -> Step:
    return Step(
        step_id=step_id,
        workflow_id=workflow_id,
        tenant=tenant,
        request_id=request_id or f"rq-{step_id}",
        request_hash="hash",
        state=StepState.QUEUED,
        input=(Message(Role.TOOL, 'NUL \0 and "quotes" ü', tool_call_id="call-1", tool_name="bash"),),
        system="You repair programs.",
        tools=(Tool("bash", "Run a command.", '{"type": "object"}'),),
        parent_step_id=parent,
        runtime_id="rt-test",
        created_at=created_at,
    )


def attempt(
    of: Step,
    number: int = 1,
    *,
    runtime_id: str = "rt-test",
    reservation: Reservation | None = None,
    cost: Cost | None = None,
) -> NewAttempt:
    return NewAttempt(
        attempt_id=f"at-{of.step_id}-{number}",
        step_id=of.step_id,
        workflow_id=of.workflow_id,
        number=number,
        replica="replica-1",
        runtime_id=runtime_id,
        prompt_tokens=1000,
        speculation_profile="ngram",
        dispatched_at=NOW,
        reservation=reservation or Reservation(5_000, 2_000),
        cost=cost or Cost(),
    )


def finished(of: NewAttempt, *, usage: Usage = USAGE, cost: Cost = COST) -> AttemptEnd:
    return AttemptEnd(
        attempt_id=of.attempt_id,
        step_id=of.step_id,
        workflow_id=of.workflow_id,
        state=StepState.FINISHED,
        usage=usage,
        speculation=Speculation("ngram", 40, 30, 2.5, 20),
        timings=Timings(0.5, 0.25, 1.5, 2.25),
        cost=cost,
        replica=of.replica,
        ended_at=NOW,
        accelerator_seconds=1.75,
        output=Message(Role.ASSISTANT, "done", "because", (ToolCall("call-2", "bash", '{"a": 1}'),)),
        malformed_tool_calls=1,
        segments=Segments(0, ids(1, 2, 3), ids(4, 5), "tokenizer", "template", "model"),
        finish_reason=FinishReason.TOOL_CALLS,
        reuse=Reuse(1000, 900, 100, ReuseBreak.EVICTED, 3, 40, 50, 2, 16),
        step_class="tool call",
    )


def failed(of: NewAttempt, *, usage: Usage | None = None, cost: Cost | None = None) -> AttemptEnd:
    return AttemptEnd(
        attempt_id=of.attempt_id,
        step_id=of.step_id,
        workflow_id=of.workflow_id,
        state=StepState.FAILED,
        usage=usage or Usage(),
        speculation=Speculation("ngram"),
        timings=Timings(0.5, None, None, 2.25),
        cost=cost or Cost(),
        replica=of.replica,
        ended_at=NOW,
        error_reason="ENGINE_LOST",
        error_message="replica-1 was lost",
    )


async def run_step(ledger: SqlLedger, of: Step, end: AttemptEnd | None = None) -> None:
    """Open a step with its first attempt and close it, finished unless `end` says otherwise."""
    first = attempt(of)
    await ledger.open_step(of, first)
    await ledger.close_attempt(end or finished(first))
