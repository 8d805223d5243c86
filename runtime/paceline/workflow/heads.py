"""A finished step as its continuation needs it, kept in memory or read from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from paceline.errors import StepNotFinished
from paceline.transcript.chat import ChatModel
from paceline.transcript.context import Context, context_of, unpack
from paceline.transcript.fingerprint import Link, Trail
from paceline.workflow.chain import ChainLink
from paceline.workflow.model import CallRef, StepState, Tool

_LINK_BYTES, _KEY_BYTES = 200, 66
"""What a link of a trail and each of its keys take in memory."""


@dataclass(frozen=True, slots=True)
class Head:
    """A finished step. Its texts are not here: the ids say what was sent, the trail what it meant."""

    step_id: str
    workflow_id: str
    context: Context
    """Prompt and generated ids."""
    closed: bool
    """Whether the generated ids end the turn themselves."""
    system: str
    tools: tuple[Tool, ...]
    tokenizer_hash: str
    template_hash: str
    model_hash: str
    replica: str
    trail: Trail
    """The step and its ancestors, root first."""
    calls: tuple[CallRef, ...]
    """The calls of the answer."""
    reasoning_tokens: int = 0
    """Reasoning that was generated since the context was last rendered in full."""
    kept_reasoning: int = 0
    """How much of it the template would have left out of the prompt."""
    deleted_at: datetime | None = None
    """`content_deleted_at` of the workflow whose step it was made or read for: when that changes, this may
    be what was deleted."""

    @property
    def size(self) -> int:
        """Bytes in memory, as if it shared nothing with other heads; texts as if they were ASCII."""
        keys = sum(len(link.keys) for link in self.trail)
        tools = sum(len(tool.description) + len(tool.parameters_json) for tool in self.tools)
        trail = _LINK_BYTES * len(self.trail) + _KEY_BYTES * keys
        return len(self.context.body) + len(self.system) + tools + trail


def head_of(chain: Sequence[ChainLink], trail: Trail, chat: ChatModel) -> Head:
    """The head of a chain of steps, root first, of which `trail` is. Raises `StepNotFinished`."""
    last = chain[-1]
    if last.state is not StepState.FINISHED or last.segments is None:
        raise StepNotFinished(f"step {last.step_id} is {last.state} and cannot be continued", step_id=last.step_id)
    return Head(
        step_id=last.step_id,
        workflow_id=last.workflow_id,
        context=context_of(chain),
        closed=chat.closes(unpack(last.segments.generated)),
        system=last.system,
        tools=last.tools,
        tokenizer_hash=last.segments.tokenizer_hash,
        template_hash=last.segments.template_hash,
        model_hash=last.segments.model_hash,
        replica=last.replica,
        trail=trail,
        calls=last.calls,
        reasoning_tokens=_reasoning(chain),
        kept_reasoning=last.kept_reasoning_tokens,
    )


def stored_trail(chain: Sequence[ChainLink]) -> Trail | None:
    """The trail of a chain; None if some step is from before keys were kept."""
    links = [Link(step.step_id, step.keys) for step in chain if step.keys is not None]
    return tuple(links) if len(links) == len(chain) else None


def _reasoning(chain: Sequence[ChainLink]) -> int:
    """Reasoning tokens since the last step that rendered history again."""
    reasoning = tokens = 0
    for step in chain:
        if step.segments is None:
            continue
        if step.segments.carried < tokens:
            reasoning = 0
        reasoning += step.reasoning_tokens
        tokens = step.segments.carried + len(unpack(step.segments.rendered)) + len(unpack(step.segments.generated))
    return reasoning
