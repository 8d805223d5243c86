"""Prompts of steps on the built-in model: what is read from the ledger, and what is rendered again."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.transcript.conversations import READ, RUN, assistant, call, result, user

from paceline.errors import StepNotFound
from paceline.transcript.chat import ChatModel, load
from paceline.transcript.volatile import VolatileBlocks, VolatileRule
from paceline.workflow.chain import ChainLink
from paceline.workflow.commands import Append, Conversation, RunStep
from paceline.workflow.model import (
    Message,
    Reuse,
    ReuseBreak,
    Role,
    Step,
    StepState,
    Tool,
    ToolCall,
    Usage,
    Workflow,
)
from paceline.workflow.prompts import Prompt, Prompts

SYSTEM = "Be brief."


class Chains:
    """The only part of a ledger that prompts use: it keeps steps and counts the reads of chains."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.links: dict[str, ChainLink] = {}
        self.reads = 0

    async def load_chain(self, tenant: str, step_id: str) -> list[Step]:
        """The step and its ancestors, root first."""
        self.reads += 1
        chain = [self.steps[step_id]]
        while parent := chain[0].parent_step_id:
            chain.insert(0, self.steps[parent])
        return chain

    async def load_links(self, tenant: str, step_id: str) -> list[ChainLink]:
        """The same without texts."""
        self.reads += 1
        link = self.links[step_id]
        return [*(await self.load_links(tenant, link.parent_step_id) if link.parent_step_id else []), link]

    async def is_ancestor(self, tenant: str, step_id: str, of: str) -> bool:
        """Whether a step is another or one of its ancestors."""
        chain = await Chains.load_chain(self, tenant, of)
        self.reads -= 1  # of ids
        return step_id in {step.step_id for step in chain}


class Talk:
    """One workflow whose steps end at once with a given answer."""

    def __init__(self, chat: ChatModel, *rules: VolatileRule, **fields: Any) -> None:
        self.chat, self.chains = chat, Chains()
        self.rules = VolatileBlocks(rules)
        self.forget()
        self.workflow = Workflow("workflow", "tenant", "m", **{"system": SYSTEM, **fields})

    def forget(self) -> None:
        """As after a restart."""
        self.prompts = Prompts(cast("Any", self.chains), 2**20, self.rules)

    async def build(self, given: Append | Conversation, tools: tuple[Tool, ...] | None = None) -> Prompt:
        """The prompt after the head."""
        command = RunStep("tenant", "workflow", "request", given, tools=tools)
        return await self.prompts.build(command, self.workflow, self.chat, self.workflow.head_step_id)

    async def step(self, given: Append | Conversation, answer: str, output: Message, thoughts: int = 0) -> Prompt:
        """Run a step that the model answers with a text, which means `output`."""
        prompt = await self.build(given)
        generated = [*self.chat.tokenizer.encode_now(answer), *self.chat.closing_ids[:1]]
        step = Step(
            step_id=f"step-{len(self.chains.steps)}",
            workflow_id="workflow",
            tenant="tenant",
            request_id="request",
            request_hash="hash",
            state=StepState.FINISHED,
            input=prompt.messages,
            system=prompt.system,
            tools=prompt.tools,
            parent_step_id=prompt.parent.step_id if prompt.parent else None,
            output=output,
            segments=prompt.segments(self.chat, generated),
            usage=Usage(reasoning=thoughts),
            replica="one",
            reuse=Reuse(0, 0, 0, kept_reasoning_tokens=prompt.kept_reasoning),
        )
        self.chains.steps[step.step_id] = step
        keyed = prompt.keyed(output)
        self.chains.links[step.step_id] = ChainLink(
            step.step_id,
            step.workflow_id,
            step.parent_step_id,
            step.state,
            step.segments,
            keyed.keys,
            keyed.calls,
            step.system,
            step.tools,
            thoughts,
            prompt.kept_reasoning,
            step.replica,
        )
        head = prompt.head(
            step, self.chat, keyed=keyed, generated=generated, reasoning_tokens=thoughts, replica="one"
        )
        self.prompts.remember("tenant", head)
        self.workflow = replace(self.workflow, head_step_id=step.step_id)
        return prompt


@pytest.fixture
async def talk() -> Talk:
    """Three turns of a conversation, the second with parallel calls."""
    talk = Talk(await load("emulated"), tools=(READ, RUN))
    await talk.step(Append((user("one"),)), "first", assistant("first"))
    calls = assistant("", call("a", "call_a"), call("b", "call_b"))
    await talk.step(Append((user("two"),)), "calls", calls)
    results = (result("x = 1\n", "call_a"), result("y = 2\n", "call_b"))
    await talk.step(Append(results), "third", assistant("third"))
    return talk


RESENT = (
    Message(Role.SYSTEM, SYSTEM),
    user("one"),
    assistant("first\n"),
    user("two"),
    assistant("", call("a", "x1"), call("b", "x2")),
    result("y = 2\n", "x2"),
    result("x = 1\n", "x1"),
    assistant("third"),
    user("four"),
)


async def test_a_conversation_that_is_sent_again_reads_nothing_from_the_ledger(talk: Talk) -> None:
    prompt = await talk.build(Conversation(RESENT))
    appended = await talk.build(Append((user("four"),)))
    assert prompt == appended
    assert (prompt.break_reason, prompt.dropped, talk.chains.reads) == (None, 0, 0)


async def test_after_a_restart_it_matches_what_the_ledger_has(talk: Talk) -> None:
    warm = await talk.build(Conversation(RESENT))
    talk.forget()
    talk.chains.steps.clear()  # no text is read
    assert await talk.build(Conversation(RESENT)) == warm


async def test_steps_from_before_keys_were_kept_are_matched_by_their_texts(talk: Talk) -> None:
    warm = await talk.build(Conversation(RESENT))
    talk.forget()
    talk.chains.links = {key: replace(link, keys=None) for key, link in talk.chains.links.items()}
    assert await talk.build(Conversation(RESENT)) == warm


async def test_an_indentation_in_a_tool_result_breaks_there_and_keeps_the_rest(talk: Talk) -> None:
    expected = await talk.build(Append((user("four"),)))
    edited = [*RESENT[:5], result("  y = 2\n", "x2"), *RESENT[6:]]
    prompt = await talk.build(Conversation(tuple(edited)))
    assert (prompt.break_reason, prompt.break_message) == (ReuseBreak.EDITED_HISTORY, 5)
    assert prompt.parent
    assert prompt.parent.step_id == "step-1"
    assert prompt.carried == prompt.parent.context.tokens
    assert prompt.messages == tuple(edited[5:])
    assert expected.parent
    assert prompt.dropped == expected.parent.context.tokens - expected.parent.context.common(prompt.context).tokens
    assert (
        0 < prompt.dropped < expected.parent.context.tokens - prompt.carried
    )  # the result before it is there still


@pytest.mark.parametrize("tools", [(RUN, READ), (READ,), ()])
async def test_other_tools_render_again_and_say_so(talk: Talk, tools: tuple[Tool, ...]) -> None:
    prompt = await talk.build(Conversation(RESENT), tools)
    assert (prompt.break_reason, prompt.messages) == (ReuseBreak.TOOLS_CHANGED, (user("four"),))
    whole = await talk.chat.render_first(SYSTEM, tools, _stored(talk))
    assert prompt.context.prompt_json() == _json(whole)
    assert prompt.carried + len(prompt.rendered) == len(whole)
    assert prompt.parent
    assert 0 < prompt.dropped == prompt.parent.context.tokens - prompt.carried


async def test_another_system_prompt_renders_again_but_appends_only_what_is_new(talk: Talk) -> None:
    changed = (Message(Role.SYSTEM, "Be long."), *RESENT[1:])
    prompt = await talk.build(Conversation(changed))
    assert (prompt.break_reason, prompt.break_message) == (ReuseBreak.SYSTEM_CHANGED, 0)
    assert (prompt.messages, prompt.system) == ((user("four"),), "Be long.")
    assert prompt.context.prompt_json() == _json(
        await talk.chat.render_first("Be long.", (READ, RUN), _stored(talk))
    )


async def test_other_weights_keep_the_ids_and_say_that_no_cache_has_them(talk: Talk) -> None:
    before = await talk.build(Append((user("four"),)))
    own, talk.chat = talk.chat, copy(talk.chat)
    talk.chat.model_hash = "other"
    for _ in range(2):
        prompt = await talk.build(Append((user("four"),)))
        assert (prompt.break_reason, prompt.dropped) == (ReuseBreak.MODEL_CHANGED, 0)
        assert prompt.context == before.context
        talk.forget()
    edited = (*RESENT[:3], user("Two?"))
    assert (await talk.build(Conversation(edited))).break_reason is ReuseBreak.EDITED_HISTORY
    await talk.step(Append((user("four"),)), "fourth", assistant("fourth"))
    assert (await talk.build(Append((user("five"),)))).break_reason is None
    talk.chat = own
    assert (await talk.build(Append((user("five"),)))).break_reason is ReuseBreak.MODEL_CHANGED


async def test_steps_from_before_models_were_told_apart_do_not_break(talk: Talk) -> None:
    talk.forget()
    for key, link in talk.chains.links.items():
        assert link.segments
        talk.chains.links[key] = replace(link, segments=replace(link.segments, model_hash=""))
    assert (await talk.build(Append((user("four"),)))).break_reason is None


OTHER = Message(Role.SYSTEM, "Be long.")
EDITED, SYSTEM_CHANGED, TOOLS_CHANGED = (
    ReuseBreak.EDITED_HISTORY,
    ReuseBreak.SYSTEM_CHANGED,
    ReuseBreak.TOOLS_CHANGED,
)


@pytest.mark.parametrize(
    ("system", "tools", "reason", "at"),
    [
        (OTHER, None, EDITED, 3),
        (RESENT[0], None, SYSTEM_CHANGED, 0),
        (OTHER, (READ,), TOOLS_CHANGED, 3),
    ],
)
async def test_who_goes_back_behind_another_system_prompt_changed_only_the_messages(
    talk: Talk, system: Message, tools: tuple[Tool, ...] | None, reason: ReuseBreak, at: int
) -> None:
    head = await talk.step(Conversation((OTHER, *RESENT[1:])), "fourth", assistant("fourth"))
    prompt = await talk.build(Conversation((system, *RESENT[1:3], user("Two?"))), tools)
    assert (prompt.break_reason, prompt.break_message) == (reason, at)
    assert prompt.parent
    assert prompt.parent.step_id == "step-0"
    assert prompt.parent.system != head.system
    said = [user("one"), assistant("first"), user("Two?")]
    whole = await talk.chat.render_first(system.content, (READ, RUN) if tools is None else tools, said)
    assert prompt.context.prompt_json() == _json(whole)


async def test_other_tools_are_named_before_messages_also_where_nothing_is_left(talk: Talk) -> None:
    prompt = await talk.build(Conversation((RESENT[0], user("So far: x is 1."), user("Go on."))), (READ,))
    assert (prompt.break_reason, prompt.parent) == (TOOLS_CHANGED, None)


async def test_a_conversation_without_a_system_prompt_has_that_of_the_workflow(talk: Talk) -> None:
    other = (Message(Role.SYSTEM, "Be long."), *RESENT[1:])
    await talk.step(Conversation(other), "four", assistant("four"))
    assert (await talk.build(Append((user("five"),)))).system == "Be long."
    bare = await talk.build(Conversation((*RESENT[1:], assistant("four"), user("five"))))
    assert (bare.system, bare.break_reason, bare.break_message) == (SYSTEM, ReuseBreak.SYSTEM_CHANGED, 0)
    assert bare.messages == (user("five"),)
    said = [*_stored(talk)[:-1], user("five")]
    assert bare.context.prompt_json() == _json(await talk.chat.render_first(SYSTEM, (READ, RUN), said))


async def test_blocks_of_the_workflow_are_moved_once() -> None:
    talk = Talk(await load("emulated"), VolatileRule("now: .*", move=True), system=SYSTEM + "\nnow: 1")
    first = await talk.step(Conversation((user("one"),)), "first", assistant("first"))
    assert first.volatile_blocks == 1
    second = await talk.build(Conversation((user("one"), assistant("first"), user("two"))))
    assert (second.break_reason, second.volatile_blocks) == (None, 0)
    assert "now:" not in talk.chat.tokenizer.decode(second.rendered)


async def test_the_preamble_counts_as_memory(talk: Talk) -> None:
    head = (await talk.build(Append((user("four"),)))).parent
    assert head
    more = replace(head, system=head.system + "x" * 1000, tools=(*head.tools, Tool("t", "y" * 50, "z" * 500)))
    assert more.size - head.size == 1550


async def test_a_summary_replaces_what_it_stands_for(talk: Talk) -> None:
    prompt = await talk.build(Conversation((RESENT[0], user("So far: x is 1."), user("Go on."))))
    assert (prompt.break_reason, prompt.break_message, prompt.parent) == (ReuseBreak.COMPACTED, 1, None)
    assert prompt.dropped > 0


async def test_a_fork_goes_back_behind_its_beginning_without_reading_the_chain(talk: Talk) -> None:
    talk.workflow = replace(talk.workflow, workflow_id="fork")
    command = RunStep("tenant", "fork", "request", Append((user("two?"),)))
    prompt = await talk.prompts.build(command, talk.workflow, talk.chat, "step-0")
    assert prompt.parent
    assert (prompt.parent.step_id, talk.chains.reads) == ("step-0", 0)
    for head in ("step-0", None):
        shorter = replace(talk.workflow, head_step_id=head)
        with pytest.raises(StepNotFound, match="step step-1 is not in workflow fork"):
            await talk.prompts.build(command, shorter, talk.chat, "step-1")


@pytest.mark.parametrize("ids", [("call_b", "call_a"), ("", "")])
async def test_results_get_the_names_of_the_tools_that_they_answer(ids: tuple[str, str]) -> None:
    talk = Talk(await load("emulated"), tools=(READ, RUN))
    calls = call("a", "call_a"), ToolCall("call_b", "run_tests", "{}")
    await talk.step(Append((user("one"),)), "calls", assistant("", *calls))
    results = tuple(result("out", one, name="") for one in ids)
    names = ["run_tests", "read_file"] if ids[0] else ["read_file", "run_tests"]
    own = tuple(replace(one, tool_call_id=f"own_{one.tool_call_id}" if ids[0] else "") for one in calls)
    whole = tuple(replace(one, tool_call_id=one.tool_call_id and f"own_{one.tool_call_id}") for one in results)
    given: tuple[Append | Conversation, ...]
    given = Append(results), Conversation((user("one"), assistant("", *own), *whole))
    for talk_again in (False, True):
        if talk_again:
            talk.forget()
        for one in given:
            prompt = await talk.build(one)
            assert [message.tool_name for message in prompt.messages] == names
            assert prompt.break_reason is None


async def test_results_by_the_clients_own_ids_are_known_again_in_any_order() -> None:
    talk = Talk(await load("emulated"), tools=(READ,))
    await talk.step(Append((user("one"),)), "calls", assistant("", call("a", "call_a"), call("b", "call_b")))
    calls = assistant("", call("a", "own_a"), call("b", "own_b"))
    said = user("one"), calls, result("y = 2\n", "own_b"), result("x = 1\n", "own_a")
    await talk.step(Conversation(said), "read", assistant("read"))
    again = await talk.build(Conversation((*said, assistant("read"), user("two"))))
    assert (again.break_reason, again.messages) == (None, (user("two"),))


async def test_a_long_conversation_is_matched_in_a_thread(talk: Talk) -> None:
    long = Conversation((*RESENT[:-1], user("x" * 600_000)))
    assert (await talk.build(long)).break_reason is None


async def test_volatile_blocks_do_not_break_the_context() -> None:
    billing = "bill: {}\n" + SYSTEM
    talk = Talk(await load("emulated"), VolatileRule("bill: .*"), system=billing.format(1))
    first = await talk.step(Append((user("one"),)), "first", assistant("first"))
    assert (first.system, first.volatile_blocks) == (SYSTEM, 1)
    said = (user("one"), assistant("first"), user("two"))
    again = await talk.build(Conversation((Message(Role.SYSTEM, billing.format(2)), *said)))
    assert (again.break_reason, again.volatile_blocks, again.messages) == (None, 1, (user("two"),))
    other = await talk.build(Conversation((Message(Role.SYSTEM, billing.format(2) + "!"), *said)))
    assert other.break_reason is ReuseBreak.SYSTEM_CHANGED
    assert (await talk.build(Append((user("two"),)))).volatile_blocks == 0


async def test_moved_blocks_are_seen_at_the_end_and_do_not_count_as_said() -> None:
    talk = Talk(await load("emulated"), VolatileRule("now: .*", move=True))
    system = (Message(Role.SYSTEM, SYSTEM + "\nnow: 1"), Message(Role.SYSTEM, SYSTEM + "\nnow: 2"))
    first = await talk.step(Conversation((system[0], user("one"))), "first", assistant("first"))
    assert talk.chat.tokenizer.decode(first.rendered).endswith("one\n\nnow: 1<|im_end|>\n<|im_start|>assistant\n")
    second = await talk.build(Conversation((system[1], user("one"), assistant("first"), user("two"))))
    assert (second.break_reason, second.messages) == (None, (user("two"),))
    assert "two\n\nnow: 2" in talk.chat.tokenizer.decode(second.rendered)


def _stored(talk: Talk) -> list[Message]:
    steps = talk.chains.steps.values()
    said = [message for step in steps for message in (*step.input, step.output) if message]
    return [*said, user("four")]


def _json(ids: list[int]) -> bytes:
    return b"[" + b",".join(b"%d" % one for one in ids) + b"]"
