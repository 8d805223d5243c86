"""Steps to replay: classes, files, and the choice among many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.speculation.tune.sample import ReplayStep, choose, digest, of_file
from paceline.transcript import chat
from paceline.workflow.model import Message, Role, ToolCall
from paceline.workflow.stepclass import classify


def answer(text: str, *calls: ToolCall) -> Message:
    return Message(Role.ASSISTANT, text, tool_calls=calls)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (None, "unknown"),
        (answer("Look at line 3: it adds one too many."), "free text"),
        (answer("Here it is:\n```python\npass\n```"), "code edit"),
        (answer("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE"), "code edit"),
        (answer("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b"), "code edit"),
        (answer("```\nls\n```", ToolCall("1", "bash", "{}")), "tool call"),
    ],
)
def test_the_class_is_that_of_the_answer(message: Message | None, kind: str) -> None:
    assert classify(message) == kind


async def test_a_file_of_steps(tmp_path: Path) -> None:
    model = await chat.load("emulated")
    path = tmp_path / "steps.jsonl"
    lines = [
        {"prompt_ids": [1, 2, 3], "max_tokens": 7, "class": "tool call"},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    first, second = await of_file(path, model, 50)
    assert first == ReplayStep("line-1", b"[1,2,3]", 3, 7, "tool call")
    asked = [Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Why?")]
    assert json.loads(second.prompt_json) == await model.render_first("", (), asked)
    assert (second.max_tokens, second.kind) == (50, "unknown")
    assert (await of_file(path, model, 5))[0].max_tokens == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "line 1: give exactly one of `prompt_ids` and `messages`"),
        ('{"prompt_ids": [1], "messages": [{"role": "user"}]}', "exactly one"),
        ('{"prompt": "text"}', "unknown field `prompt`"),
        ('{"prompt_ids": [1], "class": "poem"}', "Invalid enum value 'poem'"),
        ('{"prompt_ids": [1], "max_tokens": 1}', "max_tokens"),
        ('{"prompt_ids": [-1]}', "prompt_ids"),
        ("not json", "line 1"),
        ("", "is empty"),
    ],
)
async def test_lines_that_are_no_steps(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=message):
        await of_file(path, await chat.load("emulated"), 50)


async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a readable file"):
        await of_file(tmp_path / "none.jsonl", await chat.load("emulated"), 50)


def test_the_choice_is_spread_evenly() -> None:
    steps = [ReplayStep(str(number), b"[1]", 1, 8, "unknown") for number in range(10)]
    assert [step.step_id for step in choose(steps, 4)] == ["0", "2", "5", "7"]
    assert choose(steps, 10) == choose(steps, 99) == steps


def test_the_digest_is_that_of_what_is_asked() -> None:
    step = ReplayStep("a", b"[1]", 1, 8, "unknown")
    assert digest([step]) == digest([ReplayStep("b", b"[1]", 1, 8, "tool call")])
    assert len({digest([step]), digest([ReplayStep("a", b"[2]", 1, 8, "unknown")]), digest([step, step])}) == 3
