"""The prompt of a step: what the parent's context already holds as ids, and the ids of what is new."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.errors import StepNotFound
from paceline.transcript.chat import ChatModel
from paceline.transcript.context import Context, pack
from paceline.transcript.fingerprint import Keyed, Link, calls_of, keys_of, named, trail_of
from paceline.transcript.matching import Match, match
from paceline.transcript.volatile import Steady, VolatileBlocks
from paceline.workflow.commands import Append, Conversation, RunStep
from paceline.workflow.heads import Head, head_of, stored_trail
from paceline.workflow.model import (
    CallRef,
    Message,
    ReuseBreak,
    Role,
    Segments,
    Step,
    Tool,
    TranscriptPolicy,
    Workflow,
)
from paceline.workflow.ports import Ledger

MATCH_AT_ONCE_CHARACTERS = 500_000
"""A longer conversation is matched in a thread: hashing it would hold up everybody else."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to dispatch, and what to store when it succeeds."""

    parent: Head | None
    context: Context
    rendered: list[int]
    carried: int
    messages: tuple[Message, ...]
    """The step's new messages."""
    calls: tuple[CallRef, ...]
    """The calls that the first of them may answer, by the ids that the client gives them."""
    system: str
    tools: tuple[Tool, ...]
    break_reason: ReuseBreak | None
    break_message: int | None
    """Index in the sent conversation of the first message that is not the stored one."""
    dropped: int
    """Tokens of the context so far that are not in their place any more."""
    kept_reasoning: int
    """Carried tokens of earlier reasoning that the template would have left out."""
    volatile_blocks: int
    """Volatile blocks that were taken out of the system prompt."""

    def segments(self, chat: ChatModel, generated: Sequence[int]) -> Segments:
        """What the step adds to the transcript."""
        hashes = chat.tokenizer_hash, chat.template_hash, chat.model_hash
        return Segments(self.carried, pack(self.rendered), pack(generated), *hashes)

    def keyed(self, output: Message) -> Keyed:
        """The keys of the step's messages and its answer. Work for their bytes."""
        return keys_of([*self.messages, output], self.calls)

    def head(
        self,
        step: Step,
        chat: ChatModel,
        *,
        keyed: Keyed,
        generated: Sequence[int],
        reasoning_tokens: int | None,
        replica: str,
    ) -> Head:
        """The finished step, for its continuation."""
        before = self.parent.trail if self.parent else ()
        appended = self.parent is not None and self.carried == self.parent.context.tokens
        reasoning = self.parent.reasoning_tokens if self.parent and appended else 0
        return Head(
            step_id=step.step_id,
            workflow_id=step.workflow_id,
            context=self.context.extend(generated),
            closed=chat.closes(generated),
            system=self.system,
            tools=self.tools,
            tokenizer_hash=chat.tokenizer_hash,
            template_hash=chat.template_hash,
            model_hash=chat.model_hash,
            replica=replica,
            trail=(*before, Link(step.step_id, keyed.keys)),
            calls=keyed.calls,
            reasoning_tokens=reasoning + (reasoning_tokens or 0),
            kept_reasoning=self.kept_reasoning,
        )


@dataclass(frozen=True, slots=True)
class _Source:
    """What is to be rendered."""

    expected: Head | None
    """The step that was to be continued."""
    parent: Head | None
    """The step that is."""
    messages: tuple[Message, ...]
    """What is new, as the client said it, results with the names of their tools."""
    calls: tuple[CallRef, ...]
    """The calls that the first of them may answer."""
    shown: tuple[Message, ...]
    """The same with moved blocks of the system prompt at its end."""
    steady: Steady
    system: str
    tools: tuple[Tool, ...]
    policy: TranscriptPolicy
    reason: ReuseBreak | None
    break_message: int | None


class Prompts:
    """Builds prompts. Heads of recent steps stay in memory, the least recently used ones leave first."""

    def __init__(self, ledger: Ledger, cache_bytes: int, volatile: VolatileBlocks) -> None:
        self._ledger = ledger
        self._volatile = volatile
        self._heads: OrderedDict[tuple[str, str], Head] = OrderedDict()
        """By tenant and step: a tenant never continues what is another's."""
        self._room = cache_bytes

    def remember(self, tenant: str, head: Head) -> None:
        """Keep the head of a step that has finished."""
        key = (tenant, head.step_id)
        if old := self._heads.pop(key, None):
            self._room += old.size
        self._heads[key] = head
        self._room -= head.size
        while self._room < 0 and len(self._heads) > 1:
            _, oldest = self._heads.popitem(last=False)
            self._room += oldest.size

    async def build(
        self, command: RunStep, workflow: Workflow, chat: ChatModel, parent_step_id: str | None
    ) -> Prompt:
        """Build the prompt of one step after `parent_step_id` (None: a first step)."""
        tools = command.tools if command.tools is not None else workflow.tools
        expected = await self._head(command.tenant, parent_step_id, chat) if parent_step_id else None
        if expected:
            await self._check_parent(expected, workflow)
        steady, given = self._take_out(command.input, workflow, expected)
        calls = expected.calls if expected and isinstance(given, Append) else ()
        given = replace(given, messages=named(given.messages, calls))
        in_force = expected.system if expected else steady.system
        parent = expected
        if isinstance(given, Append):
            found = Match(parent_step_id, given.messages, in_force)
        else:
            found = await _match(given.messages, expected, in_force, steady.system)
            if expected and found.parent_step_id != expected.step_id:
                kept = found.parent_step_id
                parent = await self._head(command.tenant, kept, chat) if kept else None
        source = _Source(
            expected=expected,
            parent=parent,
            messages=found.new_messages,
            calls=calls or _calls_before(given.messages, found.new_messages),
            shown=steady.at_end(found.new_messages),
            steady=steady,
            system=found.system,
            tools=tools,
            policy=workflow.transcript_policy,
            reason=found.break_reason,
            break_message=found.break_message,
        )
        return await self._render(command.tenant, chat, source)

    def _take_out(
        self, given: Append | Conversation, workflow: Workflow, expected: Head | None
    ) -> tuple[Steady, Append | Conversation]:
        """The system prompt that is given now, and the input without its volatile blocks. New messages keep the
        one in force; a conversation without one has the workflow's."""
        if isinstance(given, Conversation) and given.messages[0].role is Role.SYSTEM:
            first, *rest = given.messages
            steady = self._volatile.take_out(first.content)
            return steady, Conversation((replace(first, content=steady.system), *rest))
        if expected and isinstance(given, Append):
            return Steady(expected.system), given
        own = self._volatile.take_out(workflow.system)
        return Steady(own.system) if expected else own, given

    async def _render(self, tenant: str, chat: ChatModel, source: _Source) -> Prompt:
        parent, system, tools = source.parent, source.system, source.tools
        reason, base = _changed(source.expected, chat, system, tools) or source.reason, Context.empty()
        if parent is None:
            ids = await chat.render_first(system, tools, source.shown)
        elif await self._in_full(tenant, chat, parent, source):
            # A template that goes its own way is only named when nothing else broke.
            reason = reason or ReuseBreak.TEMPLATE_RERENDER
            history = await self._history(tenant, parent)
            ids = await chat.render_first(system, tools, [*history, *source.shown])
            if parent.tokenizer_hash == chat.tokenizer_hash:
                base = parent.context.common(Context.empty().extend(ids))
        else:
            base = parent.context
            ids = await chat.render_continuation(source.shown, tools, closed=parent.closed)
            if parent.model_hash and parent.model_hash != chat.model_hash:
                reason = reason or ReuseBreak.MODEL_CHANGED
        appended = parent is not None and base is parent.context
        rendered = ids if appended else ids[base.tokens :]
        context = base.extend(rendered)
        before = source.expected.context if source.expected else Context.empty()
        return Prompt(
            parent=parent,
            context=context,
            rendered=rendered,
            carried=base.tokens,
            messages=source.messages,
            calls=source.calls,
            system=system,
            tools=tools,
            break_reason=reason,
            break_message=source.break_message,
            dropped=0 if base is before else before.tokens - before.common(context).tokens,
            kept_reasoning=_kept_reasoning(parent, source.messages, chat) if appended else 0,
            volatile_blocks=source.steady.count,
        )

    async def _in_full(self, tenant: str, chat: ChatModel, parent: Head, source: _Source) -> bool:
        """Whether the context of the parent cannot be appended to."""
        if _changed(parent, chat, source.system, source.tools) or not chat.appendable:
            return True
        if source.policy is TranscriptPolicy.TEMPLATE_FAITHFUL and chat.rewriting:
            history = await self._history(tenant, parent)
            leading = [Message(Role.SYSTEM, source.system)] if source.system else []
            return await asyncio.to_thread(
                chat.rewrites, [*leading, *history[:-1]], history[-1], source.shown, source.tools
            )
        return False

    async def _history(self, tenant: str, parent: Head) -> list[Message]:
        return history_of(await self._ledger.load_chain(tenant, parent.step_id))

    async def _check_parent(self, parent: Head, workflow: Workflow) -> None:
        """A step continues a step of its own workflow, or of the history that it was forked from."""
        if workflow.workflow_id == parent.workflow_id or parent.step_id == workflow.head_step_id:
            return
        head = workflow.head_step_id
        if not head or not await self._ledger.is_ancestor(workflow.tenant, parent.step_id, of=head):
            raise StepNotFound(
                f"step {parent.step_id} is not in workflow {workflow.workflow_id}", step_id=parent.step_id
            )

    async def _head(self, tenant: str, step_id: str, chat: ChatModel) -> Head:
        if head := self._heads.get((tenant, step_id)):
            self._heads.move_to_end((tenant, step_id))
            return head
        links = await self._ledger.load_links(tenant, step_id)
        trail = stored_trail(links)
        if trail is None:  # of steps from before keys were kept, the texts tell
            trail = trail_of(await self._ledger.load_chain(tenant, step_id))
        head = await asyncio.to_thread(head_of, links, trail, chat)
        self.remember(tenant, head)
        return head


async def _match(messages: Sequence[Message], expected: Head | None, system: str, own: str) -> Match:
    trail = expected.trail if expected else ()
    arguments = sum(len(call.arguments_json) for message in messages for call in message.tool_calls)
    said = sum(len(message.content) + len(message.reasoning) for message in messages)
    if arguments + said > MATCH_AT_ONCE_CHARACTERS:
        return await asyncio.to_thread(match, messages, trail, system, own)
    return match(messages, trail, system, own)


def _calls_before(said: Sequence[Message], new: Sequence[Message]) -> tuple[CallRef, ...]:
    """The calls of the message before the new ones."""
    return calls_of(said[-len(new) - 1]) if len(said) > len(new) else ()


def history_of(chain: Sequence[Step]) -> list[Message]:
    """All messages of a chain of finished steps, in order."""
    said = [message for step in chain for message in (*step.input, step.output) if message is not None]
    return list(named(said))


def _kept_reasoning(parent: Head | None, messages: Sequence[Message], chat: ChatModel) -> int:
    """Tokens of the parent's context that a template which drops earlier reasoning would leave out."""
    if parent is None or not chat.drops_reasoning:
        return 0
    asked = any(message.role is Role.USER for message in messages)
    return parent.reasoning_tokens if asked else parent.kept_reasoning


def _changed(before: Head | None, chat: ChatModel, system: str, tools: tuple[Tool, ...]) -> ReuseBreak | None:
    """What comes before the messages in a prompt and is not what it was, the first of it."""
    if before is None:
        return None
    if before.tokenizer_hash != chat.tokenizer_hash:
        return ReuseBreak.TOKENIZER_CHANGED
    if before.template_hash != chat.template_hash:
        return ReuseBreak.TEMPLATE_CHANGED
    if before.tools != tools:
        return ReuseBreak.TOOLS_CHANGED
    if before.system != system:
        return ReuseBreak.SYSTEM_CHANGED
    return None
