"""How an attempt ends: its close in the ledger, and the events and errors that tell of it."""

from __future__ import annotations

import asyncio

from paceline import errors
from paceline.errors import ClientGone, InternalError, PacelineError, ShuttingDown, StepCancelled, TranscriptGone
from paceline.workflow.events import (
    Event,
    Finished,
    ReasoningDelta,
    StepFailureInfo,
    TextDelta,
    ToolCallEvent,
)
from paceline.workflow.model import Reuse, ReuseBreak, Step, StepState
from paceline.workflow.ports import AttemptEnd
from paceline.workflow.prompts import Prompt
from paceline.workflow.replicas import Replica


def replay_of(step: Step) -> list[Event]:
    """The events of a finished step after its start, with its text in one piece. Raises `TranscriptGone`."""
    message = step.output
    if message is None:
        error = TranscriptGone(
            f"the answer of step {step.step_id} is deleted or was never stored; to have another one, send the "
            "request under a new request_id",
            step_id=step.step_id,
        )
        raise with_failure(error, step)
    events: list[Event] = []
    if message.reasoning:
        events.append(ReasoningDelta(message.reasoning))
    if message.content:
        events.append(TextDelta(message.content))
    events += [ToolCallEvent(call) for call in message.tool_calls]
    if step.finish_reason is None or step.reuse is None or step.timings is None:
        raise InternalError(f"step {step.step_id} is finished but incomplete in the ledger", step_id=step.step_id)
    events.append(
        Finished(
            message=message,
            finish_reason=step.finish_reason,
            usage=step.usage,
            reuse=step.reuse,
            speculation=step.speculation,
            timings=step.timings,
            cost=step.cost,
            malformed_tool_calls=step.malformed_tool_calls,
            replica=step.replica,
            output_flags=step.output_flags,
        )
    )
    return events


def finished_of(end: AttemptEnd) -> Finished:
    """The last event of a step that ended well."""
    if end.output is None or end.finish_reason is None or end.reuse is None:
        raise InternalError
    return Finished(
        message=end.output,
        finish_reason=end.finish_reason,
        usage=end.usage,
        reuse=end.reuse,
        speculation=end.speculation,
        timings=end.timings,
        cost=end.cost,
        malformed_tool_calls=end.malformed_tool_calls,
        replica=end.replica,
        output_flags=end.output_flags,
    )


def verdict(error: BaseException) -> tuple[StepState, str, str]:
    """State, reason and message of a step that ended by `error`: CANCELLED for what a client asked for or let
    happen, else FAILED; a bug shows nothing of itself."""
    if not isinstance(error, PacelineError):
        error = ShuttingDown() if isinstance(error, asyncio.CancelledError) else InternalError()
    cancelled = isinstance(error, StepCancelled | ClientGone)
    return StepState.CANCELLED if cancelled else StepState.FAILED, error.reason, error.message


def error_of(step: Step) -> PacelineError:
    """The error of a step that failed earlier, rebuilt from its reason."""
    known = error_classes().get(step.error_reason, InternalError)
    return with_failure(known(step.error_message or None), step)


def with_failure(error: PacelineError, end: Step | AttemptEnd) -> PacelineError:
    """Attach the step and what it used, for the client."""
    error.failure = StepFailureInfo(end.step_id, end.usage, end.cost)
    return error


def retryable(reason: str) -> bool:
    """Whether a step that ended for this reason runs again under its request id."""
    known = error_classes().get(reason)
    return known is not None and known.retryable


def error_classes() -> dict[str, type[PacelineError]]:
    """Every error class by its reason."""
    kinds = (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PacelineError))
    return {kind.reason: kind for kind in kinds}


def reuse_of(prompt: Prompt, replica: Replica, cached: int | None) -> Reuse:
    """What was carried, and why the cache held less of it than it could.

    Only whole blocks are cached, and the parent's last id was never computed. Nor are blocks cached that became
    full by drafts of the parent's last verification: vLLM hashes a block when the next one is scheduled (seen with
    0.32). So at least floor((parent context - 1 - K) / block) * block tokens are found unless some were evicted.
    """
    reason = prompt.break_reason
    block_size = replica.info.block_size if replica.info else None
    if reason is None and prompt.parent and prompt.parent.replica != replica.name:
        reason = ReuseBreak.MOVED
    elif reason is None and prompt.carried and cached is not None and block_size:
        resident = max(0, prompt.carried - 1 - replica.draft_tokens) // block_size * block_size
        reason = ReuseBreak.EVICTED if cached < resident else None
    if reason is None and prompt.parent and not prompt.parent.closed:
        reason = ReuseBreak.UNCLOSED_TURN
    return Reuse(
        prompt.context.tokens,
        prompt.carried,
        len(prompt.rendered),
        reason,
        prompt.break_message,
        prompt.dropped,
        prompt.kept_reasoning,
        prompt.volatile_blocks,
        block_size,
    )
