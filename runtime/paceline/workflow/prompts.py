"""The prompt of a step: what the parent's context already holds as ids, and the ids of what is new."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from paceline.errors import StepNotFound, TranscriptGone
from paceline.transcript.chat import ChatModel
from paceline.transcript.context import Context, pack
from paceline.transcript.fingerprint import Keyed, Link, calls_of, keys_of, named, takes_long, trail_of
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

CACHE_SHARE = 0.88
"""How much of the memory limit the heads may take: the allocator holds more than it gave out (8 % with contexts of
many sizes, see `benchmarks/live.py`)."""


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
    deleted_at: datetime | None = None
    """The workflow's `content_deleted_at`."""

    def segments(self, chat: ChatModel, generated: Sequence[int]) -> Segments:
        """What the step adds to the transcript."""
        hashes = chat.tokenizer_hash, chat.template_hash, chat.model_hash
        return Segments(self.carried, pack(self.rendered), pack(generated), *hashes)

    def keyed(self, output: Message) -> Keyed:
        """The keys of the step's messages and its answer. Work for their bytes."""
        return keys_of([*self.messages, output], self.calls)

    async def keyed_apart(self, output: Message) -> Keyed:
        """The same, in a thread where that takes long."""
        if takes_long([*self.messages, output]):
            return await asyncio.to_thread(self.keyed, output)
        return self.keyed(output)

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
            deleted_at=self.deleted_at,
        )


@dataclass(frozen=True, slots=True)
class _Lost:
    """A finished step whose ids are deleted or were never stored."""

    step_id: str
    workflow_id: str
    tokens: int


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
    said: tuple[Message, ...] | None
    """What a whole conversation says of the messages up to the parent; None: only new ones came."""
    lost_tokens: int
    """The context so far, where its ids are gone."""
    deleted_at: datetime | None


class Prompts:
    """Builds prompts. Heads of recent steps stay in memory, the least recently used ones leave first."""

    def __init__(self, ledger: Ledger, cache_bytes: int, volatile: VolatileBlocks) -> None:
        self._ledger = ledger
        self._volatile = volatile
        self._heads: OrderedDict[tuple[str, str], Head] = OrderedDict()
        """By tenant and step: a tenant never continues what is another's."""
        self._room = int(cache_bytes * CACHE_SHARE)

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
        """Build the prompt of one step after `parent_step_id` (None: a first step). Raises `TranscriptGone` where
        only new messages came and what they continue is not there any more."""
        tools = _tools_of(command, workflow)
        known = await self._find(workflow, parent_step_id, chat) if parent_step_id else None
        if known:
            await self._check_parent(known, workflow)
        expected, lost = (None, known) if isinstance(known, _Lost) else (known, None)
        steady, given = self._take_out(command.input, workflow, expected)
        calls = expected.calls if expected and isinstance(given, Append) else ()
        given = replace(given, messages=named(given.messages, calls))
        in_force = expected.system if expected else steady.system
        parent, said = expected, None
        if isinstance(given, Append):
            if lost:
                raise _gone(lost.step_id)
            found = Match(parent_step_id, given.messages, in_force)
        else:
            found = await _match(given.messages, expected, in_force, steady.system)
            if expected and found.parent_step_id != expected.step_id:
                parent = await self._earlier(workflow, found.parent_step_id, chat)
                if found.parent_step_id and parent is None:
                    whole = await _match(given.messages, None, in_force, steady.system)
                    found = replace(found, parent_step_id=None, new_messages=whole.new_messages)
            said = given.messages[given.messages[0].role is Role.SYSTEM : -len(found.new_messages)]
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
            reason=ReuseBreak.RETENTION_EXPIRED if lost else found.break_reason,
            break_message=found.break_message,
            said=said,
            lost_tokens=lost.tokens if lost else 0,
            deleted_at=workflow.content_deleted_at,
        )
        return await self._render(command.tenant, chat, source)

    def forget(self, deleted: Mapping[tuple[str, str], datetime]) -> None:
        """Drop what is in memory of workflows from before they were deleted, given by tenant and id."""
        at = {key: deleted.get((key[0], head.workflow_id)) for key, head in self._heads.items()}
        for key in [key for key, head in self._heads.items() if at[key] and head.deleted_at != at[key]]:
            self._room += self._heads.pop(key).size

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
        if workflow.system_gone:
            raise TranscriptGone(
                f"the system prompt of workflow {workflow.workflow_id} is deleted or was never stored; send the "
                "whole conversation, beginning with its system message",
                workflow_id=workflow.workflow_id,
            )
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
            history = await self._history(tenant, parent, source)
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
            dropped=source.lost_tokens + (0 if base is before else before.tokens - before.common(context).tokens),
            kept_reasoning=_kept_reasoning(parent, source.messages, chat) if appended else 0,
            volatile_blocks=source.steady.count,
            deleted_at=source.deleted_at,
        )

    async def _in_full(self, tenant: str, chat: ChatModel, parent: Head, source: _Source) -> bool:
        """Whether the context of the parent cannot be appended to."""
        if _changed(parent, chat, source.system, source.tools) or not chat.appendable:
            return True
        if source.policy is TranscriptPolicy.TEMPLATE_FAITHFUL and chat.rewriting:
            history = await self._history(tenant, parent, source)
            leading = [Message(Role.SYSTEM, source.system)] if source.system else []
            return await asyncio.to_thread(
                chat.rewrites, [*leading, *history[:-1]], history[-1], source.shown, source.tools
            )
        return False

    async def _history(self, tenant: str, parent: Head, source: _Source) -> list[Message]:
        """The messages up to the parent; where they are not stored, as the client says them."""
        chain = await self._ledger.load_chain(tenant, parent.step_id)
        if not any(step.gone for step in chain):
            return history_of(chain)
        if source.said is None:
            raise _gone(parent.step_id)
        return list(source.said)

    async def _check_parent(self, parent: Head | _Lost, workflow: Workflow) -> None:
        """A step continues a step of its own workflow, or of the history that it was forked from."""
        if workflow.workflow_id == parent.workflow_id or parent.step_id == workflow.head_step_id:
            return
        head = workflow.head_step_id
        if not head or not await self._ledger.is_ancestor(workflow.tenant, parent.step_id, of=head):
            raise StepNotFound(
                f"step {parent.step_id} is not in workflow {workflow.workflow_id}", step_id=parent.step_id
            )

    async def _earlier(self, workflow: Workflow, step_id: str | None, chat: ChatModel) -> Head | None:
        """An earlier step of the chain, if its ids are there."""
        found = await self._find(workflow, step_id, chat) if step_id else None
        return found if isinstance(found, Head) else None

    async def _find(self, workflow: Workflow, step_id: str, chat: ChatModel) -> Head | _Lost:
        """The step in memory, or else as it is stored."""
        tenant, deleted_at = workflow.tenant, workflow.content_deleted_at
        if (head := self._heads.get((tenant, step_id))) and head.deleted_at == deleted_at:
            self._heads.move_to_end((tenant, step_id))
            return head
        links = await self._ledger.load_links(tenant, step_id)
        if any(link.gone for link in links):
            return _Lost(step_id, links[-1].workflow_id, links[-1].tokens or 0)
        trail = stored_trail(links)
        if trail is None:  # of steps from before keys were kept, the texts tell
            trail = trail_of(await self._ledger.load_chain(tenant, step_id))
        head = replace(await asyncio.to_thread(head_of, links, trail, chat), deleted_at=deleted_at)
        self.remember(tenant, head)
        return head


def _tools_of(command: RunStep, workflow: Workflow) -> tuple[Tool, ...]:
    if command.tools is None and workflow.tools_gone:
        raise TranscriptGone(
            f"the tools of workflow {workflow.workflow_id} are deleted or were never stored; send `tools` with "
            "the whole conversation",
            workflow_id=workflow.workflow_id,
        )
    return workflow.tools if command.tools is None else command.tools


def _gone(step_id: str) -> TranscriptGone:
    return TranscriptGone(
        f"the content of step {step_id} is deleted or was never stored; send the whole conversation, or make a "
        "new workflow",
        step_id=step_id,
    )


async def _match(messages: Sequence[Message], expected: Head | None, system: str, own: str) -> Match:
    trail = expected.trail if expected else ()
    if takes_long(messages):
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
