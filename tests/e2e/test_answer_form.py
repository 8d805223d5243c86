"""Tool choice, response format and what is debatable about an answer, over a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.errors import EngineRefused, InvalidArgument
from paceline.transcript.context import unpack
from paceline_agents import types as t

READ = t.Tool("read", "Read a file.", '{"type":"object","properties":{"path":{"type":"string"}}}')
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
SCHEMA = '{"type": "object"}'
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"tool_choice": t.ToolChoice.REQUIRED}, EngineRefused, "tool_choice: replica e0 has no structured outputs"),
    ({"tool_choice": "read"}, EngineRefused, "tool_choice: replica e0 has no structured outputs"),
    ({"tool_choice": "write"}, InvalidArgument, "name one of read"),
    ({"tool_choice": t.ToolChoice.REQUIRED, "tools": ()}, InvalidArgument, "there are no tools"),
    ({"response_format": SCHEMA}, InvalidArgument, "set tool_choice to NONE"),
    ({"response_format": SCHEMA, "tool_choice": "read"}, InvalidArgument, "leave one of them out"),
    ({"response_format": "{", "tool_choice": t.ToolChoice.NONE}, InvalidArgument, "is no valid JSON"),
    ({"response_format": SCHEMA, "tool_choice": t.ToolChoice.NONE}, EngineRefused, "response_format: replica e0"),
    ({"response_format": "", "tools": ()}, EngineRefused, "response_format: replica e0"),
]


async def test_a_form_that_nobody_can_see_to_is_refused_before_anything_is_billed(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow(tools=[READ])
        for options, error, words in REFUSED:
            with pytest.raises(error) as caught:
                await workflow.step("Read.", **options)
            assert words in str(caught.value)
        assert paceline.sql("select count(*) n from attempts") == [{"n": 0}]
        assert await engine.counts() == []


async def test_without_tool_choice_calls_are_text_and_the_prompt_keeps_its_tools(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    await engine.script({"reply": CALL})
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow(tools=[READ])
        free = await workflow.step("Read.", tool_choice=t.ToolChoice.AUTO)
        fork = await workflow.fork(free.step_id)
        result = t.Message(t.Role.TOOL, "x", tool_call_id=free.tool_calls[0].tool_call_id)
        text = await fork.step(result, tool_choice=t.ToolChoice.NONE)
    assert [call.tool_name for call in free.tool_calls] == ["read"]
    assert (text.text, text.tool_calls, text.finish_reason) == (CALL, (), "stop")
    assert (text.reuse.carried_tokens, text.reuse.break_reason) == (
        free.reuse.prompt_tokens + (free.usage.output or 0),
        "",
    )


async def test_what_a_stop_text_leaves_of_a_token_is_kept_flagged_and_billed_in_full(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    await engine.script({"contains": "again", "reply": "ok"}, {"reply": "Hi <tool_call>{ and so on and on"})
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        cut = await workflow.step("go", stop=["call>{"])
        after = await workflow.step("go again")
        stored = await paceline.client.get_step(step_id=cut.step_id)
        row = paceline.sql("select generated_ids from steps order by created_at")[0]
        (first, _) = await engine.counts()
    assert (cut.text, cut.finish_reason, cut.output_flags) == ("Hi <tool_", "stop", ("retokenized_end",))
    assert bytes(list(unpack(row["generated_ids"]))) == b"Hi <tool_"
    assert cut.usage.output == first["output_tokens"]
    assert cut.usage.output != len(unpack(row["generated_ids"]))
    assert stored.answer is not None
    assert stored.answer.output_flags == cut.output_flags
    assert after.reuse.carried_tokens == cut.reuse.prompt_tokens + len(b"Hi <tool_")


async def test_a_malformed_call_is_flagged(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    engine = emulator("--time-scale=0")
    await engine.script({"reply": "<tool_call>read</tool_call>"})
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow(tools=[READ])
        answer = await workflow.step("Read.", request_id="request-one")
        again = await workflow.step("Read.", request_id="request-one")
    assert (answer.malformed_tool_calls, answer.output_flags) == (1, ("malformed_call",))
    assert again.output_flags == answer.output_flags
