"""The words of the domain as frozen types. Times are UTC-aware datetimes, durations seconds, money nano-USD."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Generic, Literal, NamedTuple, TypeVar

from paceline.routing.pools import PoolChoice

T = TypeVar("T")


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool; `arguments_json` is exactly what was generated."""

    tool_call_id: str
    tool_name: str
    arguments_json: str
    defect: str = ""


class CallRef(NamedTuple):
    """A call as its result names it."""

    tool_call_id: str
    tool_name: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    tool_name: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call; `parameters_json` is a JSON Schema as text."""

    tool_name: str
    description: str = ""
    parameters_json: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; None falls back to the next default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_output_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def over(self, base: Sampling) -> Sampling:
        """Return these parameters with `base` filling the gaps."""
        return Sampling(
            temperature=self.temperature if self.temperature is not None else base.temperature,
            top_p=self.top_p if self.top_p is not None else base.top_p,
            top_k=self.top_k if self.top_k is not None else base.top_k,
            seed=self.seed if self.seed is not None else base.seed,
            max_output_tokens=(
                self.max_output_tokens if self.max_output_tokens is not None else base.max_output_tokens
            ),
            stop=self.stop or base.stop,
        )


class UsageSource(StrEnum):
    """Where a count comes from."""

    ENGINE = "engine"
    STREAM = "stream"
    CHECKPOINT = "checkpoint"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class Usage:
    """Disjoint token counts; None means not reported, never 0."""

    uncached_prompt: int | None = None
    cached_prompt: int | None = None
    cache_writes: int | None = None
    output: int | None = None
    reasoning: int | None = None
    prompt_source: UsageSource | None = None
    output_source: UsageSource | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    """What speculation did; None means not reported."""

    profile: str = ""
    drafted: int | None = None
    accepted: int | None = None
    mean_acceptance_length: float | None = None
    draft_steps: int | None = None
    """Verifications of a draft."""


StepClass = Literal["code edit", "tool call", "free text", "unknown"]
"""What an answer is, as `stepclass.classify` tells."""


class ReuseBreak(StrEnum):
    """Why the context was not continued, or not cached, in full."""

    EDITED_HISTORY = "edited_history"
    COMPACTED = "compacted"
    TOOLS_CHANGED = "tools_changed"
    SYSTEM_CHANGED = "system_changed"
    TEMPLATE_CHANGED = "template_changed"
    TOKENIZER_CHANGED = "tokenizer_changed"
    TEMPLATE_RERENDER = "template_rerender"
    UNCLOSED_TURN = "unclosed_turn"
    MODEL_CHANGED = "model_changed"
    RETENTION_EXPIRED = "retention_expired"
    EVICTED = "evicted"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class Reuse:
    """Token counts of one prompt: carried from the parent as ids, and rendered for this step."""

    prompt_tokens: int
    carried_tokens: int
    rendered_tokens: int
    break_reason: ReuseBreak | None = None
    break_message: int | None = None
    """Index in the sent conversation of the first message that is not the stored one."""
    dropped_tokens: int | None = None
    """Tokens of the context so far that the prompt does not have in their place any more; None: was not kept."""
    kept_reasoning_tokens: int | None = None
    """Carried tokens of earlier reasoning that the template would have left out; None: was not kept."""
    volatile_blocks: int | None = None
    """Volatile blocks that were taken out of the system prompt; None: was not kept."""
    block_tokens: int | None = None
    """Size of a block of the replica's cache; None: its engine does not say, or it was not kept."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds, monotonic: arrival to dispatch, dispatch to first token, first to last token, arrival to end."""

    queue: float
    first_token: float | None
    decode: float | None
    total: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Nano-USD. `infrastructure` is provisional."""

    list_nanos: int | None = None
    infrastructure_nanos: int | None = None
    price_name: str = ""
    example_price: bool = False


class FinishReason(StrEnum):
    """Why the generation ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class WorkflowMatch(StrEnum):
    """How the workflow of a step was found whose client named none."""

    NEW = "new"
    EXACT = "exact"
    AMBIGUOUS = "ambiguous"


class OutputFlag(StrEnum):
    """Something about an answer that can be read in two ways, and how it was read."""

    MALFORMED_CALL = "malformed_call"
    """Looked like a tool call and was none: it is in the text."""
    CALL_IN_OPEN_REASONING = "call_in_open_reasoning"
    """A complete call in a reasoning that never ended: it counts."""
    RETOKENIZED_END = "retokenized_end"
    """A stop text began inside a token, whose visible part was tokenized again."""
    STRAY_MARKER = "stray_marker"
    """What belongs to no message of the answer: kept as text."""


class StepState(StrEnum):
    """Where a step is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self in {StepState.FINISHED, StepState.FAILED, StepState.CANCELLED}


class OutcomeKind(StrEnum):
    """How a workflow ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"


class OutcomeSource(StrEnum):
    """Who says how a workflow ended."""

    CLIENT = "client"
    CHECK_COMMAND = "check_command"
    CI = "ci"
    PERSON = "person"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a workflow."""

    kind: OutcomeKind
    source: OutcomeSource
    check_exit_code: int | None = None
    note: str = ""
    set_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one workflow; None does not limit."""

    list_nanos: int | None = None
    tokens: int | None = None
    steps: int | None = None


class TranscriptPolicy(StrEnum):
    """What happens when the chat template would render earlier messages otherwise than they were sent."""

    APPEND_ONLY = "append_only"
    """They stay as they were sent."""
    TEMPLATE_FAITHFUL = "template_faithful"
    """The prompt is rendered in full, as the template has it."""


class StorePolicy(StrEnum):
    """What is stored of a workflow."""

    FULL = "full"
    NONE = "none"
    """Counts and hashes only."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """One coding task."""

    workflow_id: str
    tenant: str
    model: str
    system: str = ""
    tools: tuple[Tool, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    labels: dict[str, str] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    transcript_policy: TranscriptPolicy = TranscriptPolicy.APPEND_ONLY
    store: StorePolicy = StorePolicy.FULL
    retention_seconds: int | None = None
    """How long texts and ids are kept after the last change; None: as configured for the tenant."""
    content_deleted_at: datetime | None = None
    """When texts and ids were deleted the last time, which forks keep; None if never."""
    system_gone: bool = False
    """It has a system prompt that is not stored."""
    tools_gone: bool = False
    """It has tools that are not stored."""
    content_left: bool = False
    """Only what it shares with the workflow that it was forked from was deleted, not its own."""
    parent_workflow_id: str | None = None
    forked_step_id: str | None = None
    head_step_id: str | None = None
    replica: str | None = None
    """The placement binding: name of the replica that holds the prefix of the head."""
    outcome: Outcome | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Segments:
    """What one step added to the transcript, as token ids. A prompt is the parent's whole context + `rendered`.

    `carried` says how many ids of the parent's whole context (its prompt and its generated ids) the prompt
    keeps; it is all of them unless a fork cut into the history, and 0 for a first step.
    `tokenizer_hash` and `template_hash` bind the ids to what made them.
    """

    carried: int
    rendered: bytes
    """uint32 little-endian ids of template output."""
    generated: bytes
    """uint32 little-endian ids as the engine emitted them. Where the step has the flag RETOKENIZED_END, the last
    ones were not generated: they are what a stop text left of a token."""
    tokenizer_hash: str
    template_hash: str
    model_hash: str = ""
    """What tells the model's weights from others; empty: was not kept."""


@dataclass(frozen=True, slots=True)
class Step:
    """One model call, as the ledger keeps it. `segments` and `output` are set when it is finished."""

    step_id: str
    workflow_id: str
    tenant: str
    request_id: str
    request_hash: str
    state: StepState
    input: tuple[Message, ...]
    system: str = ""
    tools: tuple[Tool, ...] = ()
    """The tools and system prompt in force, to see a change at the next step."""
    parent_step_id: str | None = None
    chain_hash: bytes | None = None
    """Hash of the conversation up to here, with the answer of a finished step; None where it was not kept."""
    match: WorkflowMatch | None = None
    """How the workflow was found; None when the client named it."""
    output: Message | None = None
    malformed_tool_calls: int = 0
    output_flags: tuple[OutputFlag, ...] = ()
    segments: Segments | None = None
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    reuse: Reuse | None = None
    speculation: Speculation = field(default_factory=Speculation)
    step_class: StepClass | None = None
    """None unless it is finished, and of steps that ended before classes were kept."""
    pool: PoolChoice | None = None
    """Why its last attempt ran in its pool; None without an attempt, and of steps from before this was kept."""
    timings: Timings | None = None
    cost: Cost = field(default_factory=Cost)
    attempt_count: int = 0
    error_reason: str = ""
    error_message: str = ""
    replica: str = ""
    runtime_id: str = ""
    created_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def gone(self) -> bool:
        """Whether it is finished and its texts are deleted, or were never stored."""
        return self.state is StepState.FINISHED and self.output is None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; `next_token` is empty on the last."""

    items: list[T]
    next_token: str = ""
