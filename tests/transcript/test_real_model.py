"""The real Qwen2.5-Coder files: its own template and vocabulary."""

from __future__ import annotations

import os

import pytest
from tests.transcript.conversations import TOOLS, assistant, call, result, user

from paceline.transcript.chat import ChatModel, load
from paceline.transcript.probes import Finding
from paceline.workflow.model import Message

pytestmark = pytest.mark.engine


@pytest.fixture
async def qwen() -> ChatModel:
    """The model under test."""
    return await load(os.environ["PACELINE_TEST_MODEL"])


async def test_the_model_is_known(qwen: ChatModel) -> None:
    assert qwen.family.name == "qwen2.5"
    assert {verdict.finding for verdict in qwen.verdicts} == {Finding.EQUAL}
    assert qwen.tokenizer.decode([qwen.stop_token_ids[0]]) == "<|im_end|>"


@pytest.mark.parametrize("system", ["", "Be brief."])
@pytest.mark.parametrize("tools", [(), TOOLS])
@pytest.mark.parametrize(
    ("answer", "news"),
    [
        (assistant("Done."), [user("Thanks, go on.")]),
        (assistant("", call("a.py")), [result("x = 1\n")]),
        (assistant("Reading.", call("a.py"), call("b.py")), [result("x"), result("y")]),
        (assistant("Reading.", call("a.py")), [result("x"), user("And now?")]),
        (assistant("Done."), [user("One."), assistant("Two."), user("Three.")]),
    ],
)
async def test_a_continuation_equals_the_full_rendering(
    qwen: ChatModel, system: str, tools: tuple[()], answer: Message, news: list[Message]
) -> None:
    whole = await qwen.render_first(system, tools, [user("Hi."), answer, *news])
    seam = await qwen.render_continuation(news, tools, closed=False)
    assert whole[-len(seam) :] == seam
    assert whole[: -len(seam)] + await qwen.tokenizer.encode(qwen.tokenizer.decode(seam)) == whole


async def test_ids_as_sampled_are_kept_where_text_would_change_them(qwen: ChatModel) -> None:
    """Two newlines sampled one by one are another token when the text is tokenized again."""
    newline = qwen.tokenizer.encode_now("\n")
    sampled = [*qwen.tokenizer.encode_now("a:"), *newline, *newline, qwen.closing_ids[0]]
    assert qwen.tokenizer.encode_now(qwen.tokenizer.decode(sampled)) != sampled
    prompt = await qwen.render_first("", (), [user("Hi.")])
    following = prompt + sampled + await qwen.render_continuation([user("Go on.")], (), closed=True)
    assert following[: len(prompt) + len(sampled)] == prompt + sampled
