"""The prompt of a step: what the parent's context already holds as ids, and the ids of what is new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import StepNotFinished, StepNotFound
from paceline.transcript.chat import ChatModel
from paceline.transcript.context import Context, context_of, pack, unpack
from paceline.transcript.matching import match
from paceline.workflow.commands import Append, RunStep
from paceline.workflow.model import Message, ReuseBreak, Segments, Step, StepState, Tool, Workflow
from paceline.workflow.ports import Ledger


@dataclass(frozen=True, slots=True)
class Head:
    """A finished step, as its continuation needs it."""

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


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to dispatch, and what to store when it succeeds."""

    parent: Head | None
    context: Context
    rendered: list[int]
    carried: int
    messages: tuple[Message, ...]
    """The step's new messages."""
    system: str
    tools: tuple[Tool, ...]
    break_reason: ReuseBreak | None

    def segments(self, chat: ChatModel, generated: Sequence[int]) -> Segments:
        """What the step adds to the transcript."""
        return Segments(
            self.carried, pack(self.rendered), pack(generated), chat.tokenizer_hash, chat.template_hash
        )

    def head(self, step: Step, chat: ChatModel, generated: Sequence[int], replica: str) -> Head:
        """The finished step, for its continuation."""
        return Head(
            step.step_id,
            step.workflow_id,
            self.context.extend(generated),
            chat.closes(generated),
            self.system,
            self.tools,
            chat.tokenizer_hash,
            chat.template_hash,
            replica,
        )


@dataclass(frozen=True, slots=True)
class _Source:
    """What is to be rendered."""

    messages: tuple[Message, ...]
    system: str
    tools: tuple[Tool, ...]
    reason: ReuseBreak | None


class Prompts:
    """Builds prompts. Heads of recent steps stay in memory, the least recently used ones leave first."""

    def __init__(self, ledger: Ledger, cache_bytes: int) -> None:
        self._ledger = ledger
        self._heads: OrderedDict[tuple[str, str], Head] = OrderedDict()
        """By tenant and step: a tenant never continues what is another's."""
        self._room = cache_bytes

    def remember(self, tenant: str, head: Head) -> None:
        """Keep the head of a step that has finished."""
        key = (tenant, head.step_id)
        if old := self._heads.pop(key, None):
            self._room += len(old.context.body)
        self._heads[key] = head
        self._room -= len(head.context.body)
        while self._room < 0 and len(self._heads) > 1:
            _, oldest = self._heads.popitem(last=False)
            self._room += len(oldest.context.body)

    async def build(
        self, command: RunStep, workflow: Workflow, chat: ChatModel, parent_step_id: str | None
    ) -> Prompt:
        """Build the prompt of one step after `parent_step_id` (None: a first step)."""
        tools = command.tools if command.tools is not None else workflow.tools
        parent = await self._head(command.tenant, parent_step_id, chat) if parent_step_id else None
        if parent:
            await self._check_parent(parent, workflow)
        if isinstance(command.input, Append):
            messages, system, reason = command.input.messages, workflow.system, None
            if parent:
                system = parent.system
        else:
            chain = await self._ledger.load_chain(command.tenant, parent.step_id) if parent else []
            found = match(command.input.messages, chain, system=parent.system if parent else workflow.system)
            messages, system, reason = tuple(found.new_messages), found.system, found.break_reason
            if parent and found.parent_step_id != parent.step_id:
                kept = found.parent_step_id
                parent = await self._head(command.tenant, kept, chat) if kept else None
        source = _Source(messages, system, tools, reason)
        return await self._render(command.tenant, chat, parent, source)

    async def _render(self, tenant: str, chat: ChatModel, parent: Head | None, source: _Source) -> Prompt:
        messages, system, tools = source.messages, source.system, source.tools
        reason = source.reason
        carried, context = 0, Context.empty()
        if parent is None:
            rendered = await chat.render_first(system, tools, messages)
        elif changed := _changed(parent, chat, system, tools):
            reason = changed
            history = history_of(await self._ledger.load_chain(tenant, parent.step_id))
            rendered = await chat.render_first(system, tools, [*history, *messages])
        else:
            carried, context = parent.context.tokens, parent.context
            rendered = await chat.render_continuation(messages, tools, closed=parent.closed)
        return Prompt(parent, context.extend(rendered), rendered, carried, messages, system, tools, reason)

    async def _check_parent(self, parent: Head, workflow: Workflow) -> None:
        """A step continues a step of its own workflow, or of the history that it was forked from."""
        if workflow.workflow_id == parent.workflow_id or parent.step_id == workflow.head_step_id:
            return
        head = workflow.head_step_id
        chain = await self._ledger.load_chain(workflow.tenant, head) if head else []
        if parent.step_id not in {step.step_id for step in chain}:
            raise StepNotFound(
                f"step {parent.step_id} is not in workflow {workflow.workflow_id}", step_id=parent.step_id
            )

    async def _head(self, tenant: str, step_id: str, chat: ChatModel) -> Head:
        if head := self._heads.get((tenant, step_id)):
            self._heads.move_to_end((tenant, step_id))
            return head
        chain = await self._ledger.load_chain(tenant, step_id)
        last = chain[-1]
        if last.state is not StepState.FINISHED or last.segments is None:
            raise StepNotFinished(f"step {step_id} is {last.state} and cannot be continued", step_id=step_id)
        head = Head(
            step_id,
            last.workflow_id,
            context_of(chain),
            chat.closes(unpack(last.segments.generated)),
            last.system,
            last.tools,
            last.segments.tokenizer_hash,
            last.segments.template_hash,
            last.replica,
        )
        self.remember(tenant, head)
        return head


def history_of(chain: Sequence[Step]) -> list[Message]:
    """All messages of a chain of finished steps, in order."""
    return [message for step in chain for message in (*step.input, step.output) if message is not None]


def _changed(parent: Head, chat: ChatModel, system: str, tools: tuple[Tool, ...]) -> ReuseBreak | None:
    if parent.tokenizer_hash != chat.tokenizer_hash:
        return ReuseBreak.TOKENIZER_CHANGED
    if parent.template_hash != chat.template_hash:
        return ReuseBreak.TEMPLATE_CHANGED
    if parent.tools != tools:
        return ReuseBreak.TOOLS_CHANGED
    if parent.system != system:
        return ReuseBreak.SYSTEM_CHANGED
    return None if chat.appendable else ReuseBreak.TEMPLATE_RERENDER
