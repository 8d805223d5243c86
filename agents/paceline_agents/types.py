"""What the clients take and give: small frozen types, free of protobuf.

Token counts that are None were not reported, which is not 0. Durations are seconds, money is nano-USD, times are
UTC-aware.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypedDict


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class OnBusy(StrEnum):
    """What to do when the workflow is busy with another step."""

    WAIT = "wait"
    FAIL = "fail"
    FORK = "fork"


class ToolChoice(StrEnum):
    """Whether the model calls a tool. REQUIRED needs a backend with structured outputs."""

    AUTO = "auto"
    """As it likes."""
    NONE = "none"
    """No; what looks like a call is text. The prompt still shows the tools."""
    REQUIRED = "required"
    """At least one."""


class TranscriptPolicy(StrEnum):
    """What happens when the chat template would render earlier messages otherwise than they were sent."""

    APPEND_ONLY = "append_only"
    """They stay as they were sent."""
    TEMPLATE_FAITHFUL = "template_faithful"
    """The prompt is rendered in full, as the template has it."""


class StorePolicy(StrEnum):
    """What the server stores of a workflow."""

    FULL = "full"
    """Texts, token ids and counts."""
    NONE = "none"
    """Counts and hashes only: it goes on as long as the server has it in memory."""


class OutcomeKind(StrEnum):
    """How a workflow ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"


class OutcomeSource(StrEnum):
    """Who says how a workflow ended. RUNTIME is the server's own, for workflows that it closed."""

    CLIENT = "client"
    CHECK_COMMAND = "check_command"
    CI = "ci"
    PERSON = "person"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as the model asked for it. `defect` says what is wrong with the arguments, if any."""

    tool_call_id: str
    tool_name: str
    arguments_json: str
    defect: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """For a tool's result: the call that it answers."""
    tool_name: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call; `parameters_json` is a JSON Schema as text."""

    tool_name: str
    description: str = ""
    parameters_json: str = ""


class SamplingOptions(TypedDict, total=False):
    """Sampling parameters. One that is not given falls back to the workflow's, then to the server's default."""

    temperature: float | None
    """Softmax temperature, 0 to 2; 0 is greedy."""
    top_p: float | None
    """Nucleus sampling mass, above 0 and at most 1."""
    top_k: int | None
    """Keep only the k most likely tokens; 0 switches the limit off."""
    seed: int | None
    """Random seed of the engine's sampler."""
    max_output_tokens: int | None
    """Most tokens to generate."""
    stop: list[str] | tuple[str, ...]
    """Texts that end the generation and are not part of the answer."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Disjoint token counts of one answer; the sources say where a count comes from."""

    uncached_prompt: int | None = None
    cached_prompt: int | None = None
    cache_writes: int | None = None
    output: int | None = None
    reasoning: int | None = None
    prompt_source: str = ""
    output_source: str = ""


@dataclass(frozen=True, slots=True)
class Speculation:
    """What speculation did."""

    profile: str = ""
    drafted: int | None = None
    accepted: int | None = None
    mean_acceptance_length: float | None = None
    draft_steps: int | None = None
    """Verifications of a draft; None from an older server, too."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """Token counts of one prompt: carried from the parent step as ids, and rendered for this step."""

    prompt_tokens: int = 0
    carried_tokens: int = 0
    rendered_tokens: int = 0
    break_reason: str = ""
    """Why the context was not carried or not cached in full, such as `evicted`; empty if it was."""
    break_message: int | None = None
    """Index in the conversation that was sent of the first message that is not the stored one."""
    dropped_tokens: int | None = None
    """Tokens of the context so far that the prompt does not have in their place any more."""
    kept_reasoning_tokens: int | None = None
    """Carried tokens of earlier reasoning that the chat template would have left out."""
    volatile_blocks: int | None = None
    """Volatile blocks that were taken out of the system prompt."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: arrival to dispatch, dispatch to first token, first to last token, arrival to end."""

    queue: float = 0.0
    first_token: float | None = None
    decode: float | None = None
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Nano-USD; None without a price. `infrastructure_nanos` is provisional."""

    list_nanos: int | None = None
    infrastructure_nanos: int | None = None
    price_name: str = ""
    example_price: bool = False
    """The price is an example of a default configuration."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a step."""

    step_id: str
    text: str
    finish_reason: str
    """`stop`, `length` or `tool_calls`; a newer server may know more."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    reuse: Reuse = field(default_factory=Reuse)
    speculation: Speculation = field(default_factory=Speculation)
    timings: Timings = field(default_factory=Timings)
    cost: Cost = field(default_factory=Cost)
    malformed_tool_calls: int | None = None
    """Malformed tool calls that were left in the text; None for a step that was read from the ledger."""
    replica: str = ""
    output_flags: tuple[str, ...] = ()
    """What was debatable about it: `malformed_call`, `call_in_open_reasoning`, `retokenized_end`, `stray_marker`;
    a newer server may know more."""


@dataclass(frozen=True, slots=True)
class Started:
    """The server knows the step."""

    step_id: str
    workflow_id: str
    request_id: str
    replayed: bool = False
    """The answer was stored by an earlier call; it is not billed again."""
    attached: bool = False
    """The step was running already."""
    match: str = ""
    """How the workflow of a conversation was found: `new`, `exact` or `ambiguous`; a newer server may know more.
    Empty when the step named it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life before the first token."""

    phase: str
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
class ToolCallReady:
    """A complete tool call."""

    tool_call: ToolCall


@dataclass(frozen=True, slots=True)
class Restarted:
    """The engine was lost and the new attempt says something else: forget all text and tool calls so far."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end."""

    answer: Answer


Event = Started | Progress | ReasoningDelta | TextDelta | ToolCallReady | Restarted | Finished


@dataclass(frozen=True, slots=True)
class StepFailure:
    """What a step that failed after its dispatch had cost by then; it is billed."""

    step_id: str
    usage: Usage
    cost: Cost


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """Why a step ran in its pool: the replicas with one model and one speculation profile."""

    reason: str
    """`only_pool`, `first_step`, `fork`, `compacted`, `stayed`, `switched`, `untried` or `no_place`; a newer
    server may know more."""
    decode_saving: float | None = None
    """Seconds that the other pool was expected to save over the remaining steps; None without another pool."""
    prefill: float | None = None
    """Seconds expected to prefill there what was not in its cache, less the prefill of staying."""


@dataclass(frozen=True, slots=True)
class Step:
    """One model call, as the server keeps it. `answer` is set when it is finished."""

    step_id: str
    workflow_id: str
    parent_step_id: str
    request_id: str
    state: str
    """`queued`, `running`, `finished`, `failed` or `cancelled`."""
    answer: Answer | None
    attempt_count: int = 0
    error_reason: str = ""
    step_class: str = ""
    """`code edit`, `tool call` or `free text` of a finished step; a newer server may know more."""
    pool_choice: PoolChoice | None = None
    """Of the last attempt."""
    match: str = ""
    """How the workflow was found, as in `Started`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a workflow ended, and who says so."""

    kind: OutcomeKind
    source: OutcomeSource
    check_exit_code: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Workflow:
    """One coding task."""

    workflow_id: str
    model: str
    parent_workflow_id: str = ""
    forked_step_id: str = ""
    head_step_id: str = ""
    transcript_policy: str = ""
    """`append_only` or `template_faithful`; a newer server may know more."""
    labels: dict[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    store: str = ""
    """`full` or `none`; a newer server may know more."""
    retention: timedelta | None = None
    """None: as the server is configured."""
    content_deleted_at: datetime | None = None
    """When texts and token ids were deleted the last time, its own or what it shares with the workflow that it was
    forked from; None while all are there."""


@dataclass(frozen=True, slots=True)
class CostSummary:
    """Sums over steps, as far as reported; `unreported_attempts` says how many attempts are missing from them."""

    workflows: int = 0
    succeeded_workflows: int = 0
    known_outcome_workflows: int = 0
    steps: int = 0
    attempts: int = 0
    uncached_prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    unreported_attempts: int = 0
    list_nanos: int = 0
    retry_nanos: int = 0
    infrastructure_nanos: int | None = None
    cost_per_success_nanos: int | None = None
    example_price: bool = False
    mean_acceptance_length: float | None = None
    """Tokens per verification of a draft, the target's own one included; None without a verification."""
