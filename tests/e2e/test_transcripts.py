"""Clients that resend everything, edit, compact, branch: what is kept, what breaks and why, over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.transcript import models

from paceline_agents import types as t

READ = t.Tool("read", "Read a file.", '{"type":"object","properties":{"path":{"type":"string"}}}')
LIST = t.Tool("list", "List files.", '{"type":"object","properties":{}}')
TWO_CALLS = (
    '<think>\nBoth.\n</think>\n\n<tool_call>\n{"name": "read", "arguments": {"path": "a", "n": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "read", "arguments": {"path": "b"}}\n</tool_call>'
)
SYSTEM = t.Message(t.Role.SYSTEM, "Be brief. " * 20)
ASK, NEXT = t.Message(t.Role.USER, "Read both."), t.Message(t.Role.USER, "Next.")


def tool(text: str, call_id: str) -> t.Message:
    """The result of a call."""
    return t.Message(t.Role.TOOL, text, tool_call_id=call_id, tool_name="read")


async def begin(engine: Any, paceline: Any) -> tuple[Any, t.Answer]:
    """A workflow of two steps: parallel calls, and their results."""
    await engine.script({"contains": "x = 1", "reply": "Read."}, {"contains": "Read both.", "reply": TWO_CALLS})
    workflow = await paceline.client.create_workflow(system=SYSTEM.content, tools=[READ, LIST])
    first = await workflow.step([SYSTEM, ASK], whole_conversation=True)
    one, two = (call.tool_call_id for call in first.tool_calls)
    return workflow, await workflow.step([tool("x = 1\n", one), tool("y = 2\n", two)])


def resent(result: str = "x = 1\n") -> list[t.Message]:
    """The conversation as another client writes it: own ids, keys and spaces, results in another order."""
    calls = (t.ToolCall("c1", "read", '{"n":1,"path":"a"}'), t.ToolCall("c2", "read", '{ "path": "b" }'))
    answer = t.Message(t.Role.ASSISTANT, "", tool_calls=calls)
    return [SYSTEM, ASK, answer, tool("y = 2\n", "c2"), tool(result, "c1"), t.Message(t.Role.ASSISTANT, "Read. ")]


async def test_a_careless_client_does_not_break_the_transcript(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        workflow, second = await begin(engine, paceline)
        third = await workflow.step([*resent(), NEXT], whole_conversation=True)
    said = t.Message(t.Role.ASSISTANT, third.text)
    async with run(engine.url) as paceline:
        workflow = await paceline.client.get_workflow(workflow.workflow_id)
        fourth = await workflow.step([*resent(), NEXT, said, NEXT], whole_conversation=True)
    for before, after in ((second, third), (third, fourth)):
        assert after.reuse.carried_tokens == before.reuse.prompt_tokens + (before.usage.output or 0)
        assert (after.reuse.break_message, after.reuse.dropped_tokens) == (None, 0)
    assert third.reuse.break_reason == ""


async def test_an_edit_breaks_at_its_message_and_the_rest_is_found(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        workflow, second = await begin(engine, paceline)
        edited = await workflow.step([*resent("  x = 1\n"), NEXT], whole_conversation=True)
        stored = await paceline.client.get_step(step_id=edited.step_id)
    assert (edited.reuse.break_reason, edited.reuse.break_message) == ("edited_history", 4)
    assert 0 < edited.reuse.carried_tokens < second.reuse.prompt_tokens
    assert edited.usage.cached_prompt >= edited.reuse.carried_tokens // 32 * 32
    assert 0 < edited.reuse.dropped_tokens < second.reuse.prompt_tokens
    assert stored.answer.reuse == edited.reuse


async def test_compaction_tools_and_system_are_told_apart(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        workflow, _ = await begin(engine, paceline)
        tools = await workflow.step([*resent(), NEXT], whole_conversation=True, tools=[LIST, READ])
        said = t.Message(t.Role.ASSISTANT, tools.text)
        other = t.Message(t.Role.SYSTEM, "Be long.")
        system = await workflow.step(
            [other, *resent()[1:], NEXT, said, NEXT], whole_conversation=True, tools=[LIST, READ]
        )
        summary = t.Message(t.Role.USER, "Both were read.")
        compacted = await workflow.step([other, summary], whole_conversation=True, tools=[LIST, READ])
        rows = paceline.sql("select input from steps order by created_at")
    reasons = [answer.reuse.break_reason for answer in (tools, system, compacted)]
    assert reasons == ["tools_changed", "system_changed", "compacted"]
    assert system.reuse.break_message == 0
    assert compacted.reuse.break_message == 1
    assert [row["input"].count('"role"') for row in rows[2:]] == [1, 1, 1]


async def test_a_turn_that_was_cut_is_named(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        cut = await workflow.step("go", max_output_tokens=6)
        after = await workflow.step("go on")
        then = await workflow.step("and on")
    assert (cut.finish_reason, after.reuse.break_reason) == ("length", "unclosed_turn")
    assert (after.reuse.carried_tokens, after.reuse.dropped_tokens) == (cut.reuse.prompt_tokens + 6, 0)
    assert then.reuse.break_reason == ""


async def test_the_policy_decides_about_earlier_reasoning(
    emulator: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    template = tmp_path / "qwen3.jinja"
    template.write_text(models.template("qwen3"))
    engine = emulator("--time-scale=0")
    await engine.script({"reply": "<think>\nA long thought.\n</think>\n\nDone."})
    async with run(engine.url, models={"m": {"path": "emulated", "template": str(template)}}) as paceline:
        kept = await paceline.client.create_workflow()
        faithful = await paceline.client.create_workflow(transcript_policy=t.TranscriptPolicy.TEMPLATE_FAITHFUL)
        branch = None
        answers = []
        for workflow in (kept, faithful):
            answers += [await workflow.step("one"), await workflow.step("two")]
            branch = await workflow.fork()
        policies = paceline.sql("select transcript_policy from workflows order by created_at")
    first, appended, _, rendered = answers
    assert first.usage.reasoning > 0
    assert (appended.reuse.break_reason, appended.reuse.dropped_tokens) == ("", 0)
    assert appended.reuse.kept_reasoning_tokens == first.usage.reasoning
    assert rendered.reuse.break_reason == "template_rerender"
    assert rendered.reuse.kept_reasoning_tokens == 0
    assert rendered.reuse.dropped_tokens > first.usage.reasoning
    assert rendered.reuse.prompt_tokens < appended.reuse.prompt_tokens - first.usage.reasoning
    assert branch
    assert branch.info.transcript_policy == t.TranscriptPolicy.TEMPLATE_FAITHFUL
    assert [row["transcript_policy"] for row in policies].count("template_faithful") == 2


async def test_a_system_block_that_always_changes_is_left_out_and_counted(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    rules = {"billing": {"pattern": "x-billing-header: .*"}, "clock": {"pattern": "now: .*", "action": "move"}}
    async with run(engine.url, volatile=rules) as paceline:
        workflow = await paceline.client.create_workflow()

        def system(turn: int) -> t.Message:
            return t.Message(t.Role.SYSTEM, f"x-billing-header: {turn}\nBe brief.\nnow: {turn}")

        one = await workflow.step([system(1), ASK], whole_conversation=True)
        said = t.Message(t.Role.ASSISTANT, one.text)
        two = await workflow.step([system(2), ASK, said, NEXT], whole_conversation=True)
        rows = paceline.sql("select reuse_volatile_blocks from steps")
    assert two.reuse.break_reason == ""
    assert two.reuse.carried_tokens == one.reuse.prompt_tokens + (one.usage.output or 0)
    assert [one.reuse.volatile_blocks, two.reuse.volatile_blocks] == [2, 2]
    assert rows == [{"reuse_volatile_blocks": 2}] * 2


async def test_branches_at_any_step_run_side_by_side_on_one_prefix(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow(system=SYSTEM.content)
        base = await workflow.step("one")
        head = await workflow.step("two")
        agents = [await workflow.fork(base.step_id) for _ in range(3)]
        deeper = await agents[0].fork(base.step_id)  # a fork of a fork, at a step that it inherited
        branches = await asyncio.gather(*(agent.step("side task") for agent in (*agents, deeper)))
        again = await workflow.step("two, otherwise", parent_step_id=base.step_id)
        rows = paceline.sql("select step_id, parent_step_id from steps")
    prefix = base.reuse.prompt_tokens + base.usage.output
    assert {answer.reuse.carried_tokens for answer in (head, *branches, again)} == {prefix}
    assert all(answer.usage.cached_prompt >= (prefix - 5) // 32 * 32 for answer in (*branches, again))
    parents = {row["step_id"]: row["parent_step_id"] for row in rows}
    assert {parents[answer.step_id] for answer in (*branches, again)} == {base.step_id}


async def test_concurrent_steps_of_one_workflow_never_interleave(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0", "--reply-tokens=8")
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        answers = await asyncio.gather(*(workflow.step(f"turn {number}") for number in range(8)))
        rows = paceline.sql("select step_id, parent_step_id from steps")
    parents = {row["step_id"]: row["parent_step_id"] for row in rows}
    assert len(set(parents.values())) == 8  # a chain: every step continues another one
    assert sorted(answer.reuse.carried_tokens == 0 for answer in answers) == [False] * 7 + [True]
