"""Prompts of workflows whose content is deleted, or was never stored."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.transcript.conversations import READ, RUN, assistant, user
from tests.workflow.test_prompts import SYSTEM, Talk

from paceline.errors import TranscriptGone
from paceline.transcript.chat import load
from paceline.workflow.commands import Append, Conversation
from paceline.workflow.model import Message, ReuseBreak, Role
from paceline.workflow.prompts import Prompt

NEW = Append((user("three"),))
WHOLE = Conversation(
    (
        Message(Role.SYSTEM, SYSTEM),
        *(user("one"), assistant("first"), user("two"), assistant("second")),
        user("three"),
    )
)


class Deleted(Talk):
    """Two turns, which can be deleted."""

    async def two(self) -> None:
        """Run them."""
        await self.step(Append((user("one"),)), "first", assistant("first"))
        await self.step(Append((user("two"),)), "second", assistant("second"))

    def unstore(self, *names: str) -> None:
        """The ledger has nothing of these steps; the memory has."""
        for name in names or tuple(self.chains.steps):
            self.chains.steps[name] = replace(self.chains.steps[name], input=(), output=None, segments=None)
            link = self.chains.links[name]
            self.chains.links[name] = replace(link, segments=None, calls=(), tokens=100)

    def delete(self) -> None:
        """As by another process."""
        self.unstore()
        moment = datetime(2026, 1, 2, tzinfo=UTC)
        self.workflow = replace(self.workflow, content_deleted_at=moment, system="", system_gone=True)


@pytest.fixture
async def talk() -> Deleted:
    talk = Deleted(await load("emulated"))
    await talk.two()
    return talk


async def whole(talk: Talk) -> Prompt:
    """The same conversation in a new workflow."""
    other = Talk(talk.chat)
    return await other.build(WHOLE)


async def test_what_was_deleted_is_not_continued_from_memory(talk: Deleted) -> None:
    talk.delete()
    with pytest.raises(TranscriptGone, match="send the whole conversation"):
        await talk.build(NEW)


async def test_a_conversation_is_rendered_once_and_then_continued(talk: Deleted) -> None:
    talk.delete()
    prompt = await talk.step(WHOLE, "third", assistant("third"))
    assert prompt.context == (await whole(talk)).context
    assert (prompt.parent, prompt.carried, prompt.dropped) == (None, 0, 100)
    assert (prompt.break_reason, prompt.break_message) == (ReuseBreak.RETENTION_EXPIRED, None)
    assert prompt.messages == WHOLE.messages[1:]
    reads = talk.chains.reads
    after = await talk.build(Append((user("four"),)))
    assert after.break_reason is None
    assert after.carried > prompt.context.tokens
    assert talk.chains.reads == reads
    talk.forget()
    again = await talk.build(Conversation((*WHOLE.messages, assistant("third"), user("four"))))
    assert (again.context, again.break_reason) == (after.context, None)


async def test_the_system_prompt_has_to_come_again(talk: Deleted) -> None:
    talk.delete()
    with pytest.raises(TranscriptGone, match="beginning with its system message"):
        await talk.build(Conversation(WHOLE.messages[1:]))


async def test_tools_have_to_come_again() -> None:
    talk = Deleted(await load("emulated"), tools=(READ,))
    await talk.two()
    talk.delete()
    talk.workflow = replace(talk.workflow, tools=(), tools_gone=True)
    with pytest.raises(TranscriptGone, match="`tools`"):
        await talk.build(WHOLE)
    assert (await talk.build(WHOLE, tools=(READ,))).break_reason is ReuseBreak.RETENTION_EXPIRED


async def test_one_lost_ancestor_loses_the_context(talk: Deleted) -> None:
    """As in a fork of a workflow that was deleted."""
    talk.unstore("step-0")
    talk.forget()
    with pytest.raises(TranscriptGone):
        await talk.build(NEW)
    assert (await talk.build(WHOLE)).break_reason is ReuseBreak.RETENTION_EXPIRED


async def test_forgetting_leaves_what_came_after_the_deletion(talk: Deleted) -> None:
    room = talk.prompts._room
    talk.delete()
    await talk.step(WHOLE, "third", assistant("third"))
    moment = talk.workflow.content_deleted_at
    assert moment
    assert len(talk.prompts._heads) == 3
    talk.prompts.forget({("tenant", "other"): moment, ("other", "workflow"): moment})
    assert len(talk.prompts._heads) == 3
    talk.prompts.forget({("tenant", "workflow"): moment})
    assert [step_id for _, step_id in talk.prompts._heads] == ["step-2"]
    assert talk.prompts._room > room
    reads = talk.chains.reads
    await talk.build(Append((user("four"),)))
    assert talk.chains.reads == reads


async def test_nothing_stored_goes_on_from_memory(talk: Deleted) -> None:
    talk.unstore()
    prompt = await talk.step(NEW, "third", assistant("third"))
    assert prompt.carried > 0
    talk.unstore()
    assert (await talk.build(Conversation((*WHOLE.messages, assistant("third"), user("four"))))).carried > 0
    talk.forget()
    with pytest.raises(TranscriptGone):
        await talk.build(Append((user("four"),)))


async def test_other_tools_are_rendered_from_what_the_client_says(talk: Deleted) -> None:
    """The texts are not stored; only a whole conversation has them."""
    talk.unstore()
    prompt = await talk.build(WHOLE, tools=(RUN,))
    other = Talk(talk.chat, tools=(RUN,))
    assert prompt.context == (await other.build(WHOLE)).context
    assert (prompt.break_reason, prompt.messages) == (ReuseBreak.TOOLS_CHANGED, (user("three"),))
    with pytest.raises(TranscriptGone):
        await talk.build(NEW, tools=(RUN,))


async def test_an_edit_whose_beginning_is_lost_is_rendered_whole(talk: Deleted) -> None:
    talk.unstore()
    del talk.prompts._heads["tenant", "step-0"]
    edited = Conversation((*WHOLE.messages[:3], user("another"), assistant("second"), user("three")))
    prompt = await talk.build(edited)
    assert (prompt.parent, prompt.messages) == (None, edited.messages[1:])
    assert (prompt.break_reason, prompt.break_message) == (ReuseBreak.EDITED_HISTORY, 3)
