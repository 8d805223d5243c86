"""What callers ask of the use case. Values are checked by `validation.py` before anything happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from paceline.workflow.model import Budget, Message, Sampling, Tool, TranscriptPolicy


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


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run one step. Empty `request_id`: one is chosen. `tools=None`: the workflow's. `detach_grace` in seconds."""

    tenant: str
    workflow_id: str
    request_id: str
    input: Append | Conversation
    parent_step_id: str = ""
    on_busy: OnBusy = OnBusy.WAIT
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[Tool, ...] | None = None
    detach_grace: float = 0.0


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


@dataclass(frozen=True, slots=True)
class ForkWorkflow:
    """Fork a workflow at a finished step (empty: the head)."""

    tenant: str
    workflow_id: str
    step_id: str = ""
    new_workflow_id: str = ""
    labels: dict[str, str] = field(default_factory=dict)
