"""What the methods of the clients take as keyword arguments."""

from __future__ import annotations

from datetime import timedelta

from paceline_agents.types import OnBusy, SamplingOptions, StorePolicy, Tool, ToolChoice, TranscriptPolicy


class WorkflowOptions(SamplingOptions, total=False):
    """Options of `create_workflow`; sampling parameters are the defaults of its steps."""

    workflow_id: str
    """Id, [A-Za-z0-9_-]{8,64}; a random one if not given."""
    model: str
    """Model as configured on the server; the server's only one if not given."""
    system: str
    """System prompt; the model's own default if not given."""
    tools: list[Tool] | tuple[Tool, ...]
    """Tools that the model may call."""
    labels: dict[str, str]
    """Free labels such as team, repo, user."""
    budget_list_nanos: int | None
    """Most money at list prices."""
    budget_tokens: int | None
    """Most tokens, prompt and output together."""
    budget_steps: int | None
    """Most steps."""
    parent_workflow_id: str
    """The workflow that this one works for."""
    transcript_policy: TranscriptPolicy
    """What happens when the chat template would render earlier messages otherwise; append only if not given."""
    store: StorePolicy
    """What the server stores; everything if not given."""
    retention: timedelta | None
    """How long texts and token ids are kept after the last change, in whole seconds from 60 on; as the server is
    configured if not given."""


class RunOptions(SamplingOptions, total=False):
    """Options of whatever runs a step."""

    request_id: str | None
    """Idempotency key, [A-Za-z0-9_-]{8,64}; a random one if not given."""
    tools: list[Tool] | tuple[Tool, ...] | None
    """Replaces the workflow's tools, even if empty."""
    tool_choice: ToolChoice | str
    """Whether a tool is called, or the name of the one that is called once; as the model likes if not given."""
    response_format: str | None
    """JSON Schema, as JSON text, of the answer's text; an empty text for any JSON object. Such an answer can be no
    tool call. Anything if not given."""
    detach_grace: float | None
    """How long the step runs on without a reader, in seconds up to 60."""
    timeout: float | None
    """Deadline of the whole step in seconds, retries included; none if not given."""


class ConversationOptions(RunOptions, total=False):
    """Options of `run_conversation`. Tools that are not given are those of the workflow that is found."""

    model: str
    """Model as configured on the server; the server's only one if not given."""
    labels: dict[str, str]
    """Labels of the workflow, if the conversation begins one."""


class StepOptions(RunOptions, total=False):
    """Options of `step`."""

    parent_step_id: str
    """The finished step to continue; the last one if not given."""
    whole_conversation: bool
    """The messages are the whole conversation, to be matched to what the server has; else only the new ones."""
    on_busy: OnBusy
    """What to do when another step of the workflow is running; wait if not given."""
