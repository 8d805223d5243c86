"""A finished step as its continuation needs it, kept in memory or read from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import StepNotFinished
from paceline.transcript.chat import ChatModel
from paceline.transcript.context import Context, context_of, unpack
from paceline.transcript.fingerprint import Link, Trail, keys_of, trail_of
from paceline.workflow.model import Message, Step, StepState, Tool

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
    replica: str
    trail: Trail
    """The step and its ancestors, root first."""
    calls: tuple[str, ...]
    """Ids of the calls of the answer."""
    reasoning_tokens: int = 0
    """Reasoning that was generated since the context was last rendered in full."""
    kept_reasoning: int = 0
    """How much of it the template would have left out of the prompt."""

    @property
    def size(self) -> int:
        """Bytes in memory, as if it shared nothing with other heads; texts as if they were ASCII."""
        keys = sum(len(link.keys) for link in self.trail)
        tools = sum(len(tool.description) + len(tool.parameters_json) for tool in self.tools)
        trail = _LINK_BYTES * len(self.trail) + _KEY_BYTES * keys
        return len(self.context.body) + len(self.system) + tools + trail


def continued(parent: Head | None, step_id: str, messages: Sequence[Message]) -> tuple[Trail, tuple[str, ...]]:
    """The trail and the calls after one more step. Work for its messages."""
    before, calls = (parent.trail, parent.calls) if parent else ((), ())
    keyed = keys_of(messages, calls)
    return (*before, Link(step_id, keyed.keys)), keyed.calls


def head_of(chain: Sequence[Step], chat: ChatModel) -> Head:
    """The head of a chain of steps, root first. Raises `StepNotFinished`."""
    last = chain[-1]
    if last.state is not StepState.FINISHED or last.segments is None:
        raise StepNotFinished(f"step {last.step_id} is {last.state} and cannot be continued", step_id=last.step_id)
    trail, calls = trail_of(chain)
    return Head(
        step_id=last.step_id,
        workflow_id=last.workflow_id,
        context=context_of(chain),
        closed=chat.closes(unpack(last.segments.generated)),
        system=last.system,
        tools=last.tools,
        tokenizer_hash=last.segments.tokenizer_hash,
        template_hash=last.segments.template_hash,
        replica=last.replica,
        trail=trail,
        calls=calls,
        reasoning_tokens=_reasoning(chain),
        kept_reasoning=(last.reuse.kept_reasoning_tokens or 0) if last.reuse else 0,
    )


def _reasoning(chain: Sequence[Step]) -> int:
    """Reasoning tokens since the last step that rendered history again."""
    reasoning = tokens = 0
    for step in chain:
        if step.segments is None:
            continue
        if step.segments.carried < tokens:
            reasoning = 0
        reasoning += step.usage.reasoning or 0
        tokens = step.segments.carried + len(unpack(step.segments.rendered)) + len(unpack(step.segments.generated))
    return reasoning
