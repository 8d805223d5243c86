"""What callers ask of the use case. Values are checked by `validation.py` before anything happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from paceline.workflow.model import Budget, Message, Sampling, StorePolicy, Tool, TranscriptPolicy


class OnBusy(StrEnum):
    """What to do when the workflow is busy with another step."""

    WAIT = "wait"
    FAIL = "fail"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class Append:
    """New messages that continue the parent step."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The whole conversation, to be matched to the stored transcript."""

    messages: tuple[Message, ...]


class ToolChoiceMode(StrEnum):
    """Whether the model calls a tool."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether and which tool the model calls. `tool_name` is for NAMED only."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    tool_name: str = ""


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What the text of an answer looks like: JSON of a schema, or, with an empty schema, any JSON object."""

    json_schema: str = ""


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run one step. Empty `request_id`: one is chosen. `tools=None`: the workflow's. `detach_grace` in seconds.

    Without `workflow_id`, the workflow of a conversation is found among those of the same tenant, `caller` and
    `model`, or made with `labels`. `caller` stands for API key and user agent.
    """

    tenant: str
    workflow_id: str
    request_id: str
    input: Append | Conversation
    parent_step_id: str = ""
    on_busy: OnBusy = OnBusy.WAIT
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[Tool, ...] | None = None
    detach_grace: float = 0.0
    caller: str = ""
    model: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    response_format: ResponseFormat | None = None


@dataclass(frozen=True, slots=True)
class CreateWorkflow:
    """Create a workflow. Empty `workflow_id`: one is chosen. Empty `model`: the only one."""

    tenant: str
    workflow_id: str = ""
    model: str = ""
    system: str = ""
    tools: tuple[Tool, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    labels: dict[str, str] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    parent_workflow_id: str = ""
    transcript_policy: TranscriptPolicy = TranscriptPolicy.APPEND_ONLY
    store: StorePolicy = StorePolicy.FULL
    retention_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ForkWorkflow:
    """Fork a workflow at a finished step (empty: the head)."""

    tenant: str
    workflow_id: str
    step_id: str = ""
    new_workflow_id: str = ""
    labels: dict[str, str] = field(default_factory=dict)
