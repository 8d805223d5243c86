"""The main job: a workflow of several turns, its ids, its reuse, its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from paceline import config, platforms
from paceline.errors import EngineRefused
from paceline.transcript.builtin import TURN_END as TURN_END_TEXT
from paceline.transcript.builtin import builtin_tokenizer
from paceline.transcript.context import pack, unpack
from paceline_agents import types as t

FIX = 'Here is the fix:\n<tool_call>\n{"name": "write", "arguments": {"path": "a.py"}}\n</tool_call>'
TURN_END = builtin_tokenizer().token_to_id(TURN_END_TEXT)
TOOL = t.Tool(
    "write", "Write a file", '{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}'
)


async def test_three_turns_keep_their_ids_and_their_cache(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    await engine.script({"contains": "result: ok", "reply": "All done."}, {"contains": "broken", "reply": FIX})
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow(system="Be brief.", tools=[TOOL], labels={"team": "core"})
        first = await workflow.step("It is broken.", temperature=0.0)
        assert first.finish_reason == "tool_calls"
        assert [(c.tool_name, c.arguments_json) for c in first.tool_calls] == [("write", '{"path": "a.py"}')]
        result = t.Message(
            t.Role.TOOL, "result: ok", tool_call_id=first.tool_calls[0].tool_call_id, tool_name="write"
        )
        second = await workflow.step([result])
        third = await workflow.step("Thank you.")
        rows = paceline.sql("select * from steps order by created_at")
        cost = await workflow.cost()

    assert (second.text, second.finish_reason) == ("All done.", "stop")
    context = 0
    for answer, row in zip((first, second, third), rows, strict=True):
        rendered, generated = unpack(row["rendered_ids"]), unpack(row["generated_ids"])
        assert row["carried_tokens"] == answer.reuse.carried_tokens == context
        assert answer.usage.uncached_prompt + answer.usage.cached_prompt == context + len(rendered)
        if context:
            assert answer.usage.cached_prompt == (context - 1) // 32 * 32
        context += len(rendered) + len(generated)
    assert [row["parent_step_id"] for row in rows] == [None, rows[0]["step_id"], rows[1]["step_id"]]
    assert cost.steps == 3
    assert cost.list_nanos == sum(a.cost.list_nanos for a in (first, second, third))
    assert all(a.cost.infrastructure_nanos > 0 for a in (first, second, third))


async def test_the_engine_gets_the_same_ids_that_the_ledger_has(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0", "--reply-tokens=20")
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        for number in range(4):
            await workflow.step(f"turn {number}")
        rows = paceline.sql("select * from attempts order by dispatched_at")
        counts = await engine.counts()
    assert [
        (c["prompt_tokens"], c["cached_tokens"], c["output_tokens"], c["drafted"], c["accepted"]) for c in counts
    ] == [
        (
            r["prompt_tokens"],
            r["cached_prompt_tokens"],
            r["output_tokens"],
            r["drafted_tokens"],
            r["accepted_tokens"],
        )
        for r in rows
    ]


async def test_a_turn_that_was_cut_is_closed_by_the_template(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    await engine.script({"reply": "a long answer that will be cut"})
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        cut = await workflow.step("go", max_output_tokens=6)
        after = await workflow.step("go on")
        rows = paceline.sql("select * from steps order by created_at")
    assert (cut.text, cut.finish_reason) == ("a long", "length")
    assert (rows[0]["generated_ids"], TURN_END in unpack(rows[1]["rendered_ids"])) == (pack(list(b"a long")), True)
    assert after.reuse.carried_tokens == cut.reuse.prompt_tokens + 6


async def test_a_stop_text_ends_the_answer_and_is_no_part_of_it(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    await engine.script({"reply": "keep this STOP and not this, however long it goes on and on and on"})
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        answer = await workflow.step("go", stop=["STOP"])
        row = paceline.sql("select generated_ids from steps")[0]
    assert (answer.text, answer.finish_reason) == ("keep this ", "stop")
    assert bytes(list(unpack(row["generated_ids"]))) == b"keep this "


async def test_an_openai_style_client_resends_everything(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    await engine.script({"contains": "two", "reply": " second "}, {"contains": "one", "reply": "first"})
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow(system="sys")
        system, one = t.Message(t.Role.SYSTEM, "sys"), t.Message(t.Role.USER, "one")
        two = t.Message(t.Role.USER, "two")
        first = await workflow.step([system, one], whole_conversation=True)
        said = t.Message(t.Role.ASSISTANT, first.text)
        second = await workflow.step([system, one, said, two], whole_conversation=True)
        edited = [system, one, t.Message(t.Role.ASSISTANT, "something else"), two]
        third = await workflow.step(edited, whole_conversation=True)
    assert second.reuse.break_reason == ""
    assert second.reuse.carried_tokens == first.reuse.prompt_tokens + first.usage.output
    assert third.reuse.break_reason == "edited_history"


async def test_forks_share_the_transcript_and_leave_the_original_alone(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow(labels={"team": "core"})
        first = await workflow.step("one")
        await workflow.step("two")
        fork = await workflow.fork(first.step_id, labels={"try": "2"})
        branch = await fork.step("another two")
        original = await paceline.client.get_workflow(workflow.workflow_id)
        cost = await workflow.cost()
        family = await workflow.cost(include_children=True)
    assert fork.info.labels == {"team": "core", "try": "2"}
    assert branch.reuse.carried_tokens == first.reuse.prompt_tokens + first.usage.output
    assert branch.usage.cached_prompt > 0
    assert original.info.head_step_id != branch.step_id
    assert (cost.steps, family.steps) == (2, 3)


async def test_many_workflows_at_once_are_all_right(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    engines = [emulator("--time-scale=0", "--reply-tokens=24") for _ in range(2)]
    async with run(*(engine.url for engine in engines)) as paceline:

        async def workflow(number: int) -> list[Any]:
            handle = await paceline.client.create_workflow()
            return [await handle.step(f"workflow {number}, turn {turn}") for turn in range(4)]

        answers = await asyncio.gather(*(workflow(number) for number in range(24)))
        rows = paceline.sql("select state, count(*) as n from attempts group by state")
        homes = paceline.sql("select workflow_id, count(distinct replica) as n from attempts group by workflow_id")
    assert rows == [{"state": "finished", "n": 96}]
    assert {row["n"] for row in homes} == {1}
    assert all(later.usage.cached_prompt > 0 for answer in answers for later in answer[1:])
    assert all(answer.replica in {"e0", "e1"} for turns in answers for answer in turns)


def test_only_a_cpu_engine_that_speculates_must_not_sample() -> None:
    def reason(platform: str, method: str) -> str:
        engine = config.Engine.model_validate({"model": "m", "platform": platform})
        return platforms.greedy_only(engine, config.Speculation.model_validate({"method": method}))

    assert reason("cpu", "ngram")
    assert not any(reason(*pair) for pair in (("cpu", "none"), ("cuda", "ngram"), ("emulated", "ngram")))


async def test_a_replica_that_must_not_sample_refuses_it(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        paceline.runtime.replicas.all()[0].greedy_only = "this engine samples wrongly"
        workflow = await paceline.client.create_workflow()
        for sampled in ({"temperature": 0.5}, {}):
            with pytest.raises(EngineRefused, match="samples wrongly"):
                await workflow.step("hello", **sampled)
        answer = await workflow.step("hello", temperature=0.0)
        rows = paceline.sql("select state from steps")
    assert answer.text
    assert rows == [{"state": "finished"}]
