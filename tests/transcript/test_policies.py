"""Templates that render earlier messages otherwise: kept as sent, or followed, by the policy of the workflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.transcript.conversations import READ, assistant, call, result, user
from tests.workflow.test_prompts import Talk

from paceline.transcript.chat import load
from paceline.workflow.commands import Append, Conversation
from paceline.workflow.model import ReuseBreak, TranscriptPolicy

THOUGHT = assistant("first", reasoning="hm")
CALLING = assistant("", call("a.py"), reasoning="look")
CALL_TEXT = (
    '<think>\nlook\n</think>\n\n<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>'
)


async def talk(folder: Path, policy: TranscriptPolicy) -> Talk:
    """A workflow with a tool on Qwen3's own template and vocabulary."""
    return Talk(await load(str(folder)), tools=(READ,), transcript_policy=policy)


async def test_reasoning_is_kept_and_counted(folder_of: Callable[[str], Path]) -> None:
    qwen3 = await talk(folder_of("qwen3"), TranscriptPolicy.APPEND_ONLY)
    await qwen3.step(Append((user("one"),)), CALL_TEXT, CALLING, 3)
    await qwen3.step(Append((result("x"),)), "<think>\nhm\n</think>\n\nfirst", THOUGHT, 4)
    qwen3.forget()
    asked = await qwen3.step(Append((user("two"),)), "<think>\nhm\n</think>\n\nfirst", THOUGHT, 5)
    assert (asked.break_reason, asked.dropped, asked.kept_reasoning) == (None, 0, 7)
    again = await qwen3.build(Append((user("three"),)))
    assert again.kept_reasoning == 12
    qwen3.forget()
    assert (await qwen3.build(Append((user("three"),)))).kept_reasoning == 12


async def test_the_template_is_followed_where_it_drops_reasoning(folder_of: Callable[[str], Path]) -> None:
    qwen3 = await talk(folder_of("qwen3"), TranscriptPolicy.TEMPLATE_FAITHFUL)
    await qwen3.step(Append((user("one"),)), CALL_TEXT, CALLING, 3)
    told = await qwen3.step(Append((result("x"),)), "<think>\nhm\n</think>\n\nfirst", THOUGHT, 4)
    assert (told.break_reason, told.dropped) == (None, 0)  # in one round of tools nothing is dropped
    asked = await qwen3.build(Append((user("two"),)))
    whole = await qwen3.chat.render_first(
        "Be brief.", (READ,), [user("one"), CALLING, result("x"), THOUGHT, user("two")]
    )
    assert asked.break_reason is ReuseBreak.TEMPLATE_RERENDER
    assert asked.context.tokens == len(whole)
    assert "<think>" not in qwen3.chat.tokenizer.decode(whole)
    assert asked.parent
    assert asked.carried > 0
    assert asked.dropped == asked.parent.context.tokens - asked.carried > 0
    assert asked.kept_reasoning == 0


async def test_reasoning_that_is_off_is_rendered_again_at_each_answer(folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("qwen3")
    off = Talk(
        await load(str(folder), None, {"enable_thinking": False}),
        transcript_policy=TranscriptPolicy.TEMPLATE_FAITHFUL,
    )
    await off.step(Append((user("one"),)), "first", assistant("first"))
    assert (await off.build(Append((user("two"),)))).break_reason is ReuseBreak.TEMPLATE_RERENDER


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "gptoss"])
async def test_a_template_that_changes_nothing_is_appended_to(folder_of: Callable[[str], Path], name: str) -> None:
    plain = Talk(await load(str(folder_of(name))), transcript_policy=TranscriptPolicy.TEMPLATE_FAITHFUL)
    text = "<|channel|>final<|message|>first" if name == "gptoss" else "first"
    await plain.step(Append((user("one"),)), text, assistant("first"))
    asked = await plain.build(Append((user("two"),)))
    assert (asked.break_reason, asked.dropped) == (None, 0)


async def test_results_of_a_conversation_need_no_name_of_a_tool(folder_of: Callable[[str], Path]) -> None:
    gpt_oss = Talk(await load(str(folder_of("gptoss"))), tools=(READ,))
    text = '<|channel|>commentary to=functions.read_file<|constrain|>json<|message|>{"path": "a.py"}'
    await gpt_oss.step(Append((user("one"),)), text, assistant("", call("a.py")))
    said = (user("one"), assistant("", call("a.py", "x1")), result("x", "x1", name=""))
    asked = await gpt_oss.build(Conversation(said))
    assert (asked.break_reason, asked.messages) == (None, (result("x", "x1"),))
    assert "functions.read_file to=assistant" in gpt_oss.chat.tokenizer.decode(asked.rendered)
