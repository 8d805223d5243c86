"""What a running step tells its readers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paceline.workflow.model import (
    Cost,
    FinishReason,
    Message,
    OutputFlag,
    Reuse,
    Speculation,
    Timings,
    ToolCall,
    Usage,
    WorkflowMatch,
)


class Phase(StrEnum):
    """Where a step is before its first token."""

    WORKFLOW_BUSY = "workflow_busy"
    QUEUED = "queued"
    ENGINE_STARTING = "engine_starting"
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class Started:
    """The step is known."""

    step_id: str
    workflow_id: str
    request_id: str
    replayed: bool = False
    attached: bool = False
    match: WorkflowMatch | None = None
    """How the workflow was found; None when the client named it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life before the first token; `waited` in seconds."""

    phase: Phase
    queue_position: int = 0
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A complete tool call."""

    tool_call: ToolCall


@dataclass(frozen=True, slots=True)
class Finished:
    """The step ended with an answer."""

    message: Message
    finish_reason: FinishReason
    usage: Usage
    reuse: Reuse
    speculation: Speculation
    timings: Timings
    cost: Cost
    malformed_tool_calls: int
    replica: str
    output_flags: tuple[OutputFlag, ...] = ()


Event = Started | Progress | ReasoningDelta | TextDelta | ToolCallEvent | Finished


@dataclass(frozen=True, slots=True)
class StepFailureInfo:
    """What a step had used when it failed after its dispatch; travels in `PacelineError.failure`."""

    step_id: str
    usage: Usage
    cost: Cost
