"""What XGrammar lets through of a wanted form: what the template writes, and nothing that is read otherwise."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.transcript.conversations import READ, TOOLS, assistant, call, user

from paceline.transcript.chat import ChatModel, load
from paceline.workflow.model import Tool, ToolCall

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

FolderOf = Callable[[str], Path]
ORACLE = Path(__file__).with_name("grammar_oracle.py")
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("qwen2_5", {}),
    ("qwen3", {}),
    ("qwen3", {"enable_thinking": False}),
    ("qwen3_6", {}),
    ("llama3_1", {}),
]
NO_PARAMETERS = Tool("stop", "Stop.", '{"type": "object", "properties": {}}')
SCHEMA = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'
ANSWERS = ('{"ok": true}', '{"ok": 5}', "Yes.")
Question = tuple[dict[str, Any], list[str]]


def ask(questions: list[Question]) -> list[list[bool]]:
    """Ask XGrammar."""
    command = [os.environ["PACELINE_TEST_ENGINE_PYTHON"], str(ORACLE)]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[list[bool]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def written(model: ChatModel, *calls: ToolCall) -> str:
    """An answer as the template writes it, its reasoning included, its end left out."""
    reasoning = "Hm." if model.family.reasons else ""
    answer = assistant("", *calls, reasoning=reasoning)
    text = model._renderer.answer_text([user("Go."), answer], [*TOOLS, NO_PARAMETERS])
    for end in model.stop_token_ids:
        text = text.removesuffix("\n").removesuffix(model.tokenizer.decode([end]))
    return text


async def test_the_templates_own_calls_are_let_through_and_others_are_not(folder_of: FolderOf) -> None:
    models = [await load(str(folder_of(name)), None, arguments) for name, arguments in MODELS]
    questions: list[Question] = []
    wanted: list[list[bool]] = []
    test, end = ToolCall("c", "run_tests", '{"count": 5}'), ToolCall("c", "stop", "{}")
    for model in models:
        several = [] if model.family.name == "llama3" else [written(model, call("a.py"), test)]
        one, other, empty = written(model, call("a.py")), written(model, test), written(model, end)
        wrong = one.replace("path", "pfad")
        named = model.enforce_calls([READ], several=False)
        required = model.enforce_calls([*TOOLS, NO_PARAMETERS], several=True)
        questions.append((named, [one, other, wrong, f"{one}\n", f"Hi.{one}", "Hi.", *several]))
        wanted.append([True, False, False, False, model._reasoning_open, False, *(False for _ in several)])
        questions.append((required, [one, other, empty, wrong, "", "Hi.", *several]))
        wanted.append([True, True, True, False, False, False, *(True for _ in several)])
        for texts, accepted in ((questions[-2][1], wanted[-2]), (questions[-1][1], wanted[-1])):
            for text, good in zip(texts, accepted, strict=True):
                _check_parsed(model, text, good=good)
    assert ask(questions) == wanted


async def test_json_of_a_schema(folder_of: FolderOf) -> None:
    models = [await load(str(folder_of(name)), None, arguments) for name, arguments in MODELS]
    questions: list[Question] = []
    for model in models:
        opened = "Hm.\n</think>\n\n" if model._reasoning_open else ""
        texts = [opened + text for text in ANSWERS]
        questions += [(model.enforce_json(SCHEMA), texts), (model.enforce_json(""), texts)]
    assert ask(questions) == [[True, False, False], [True, True, False]] * len(models)


async def test_reasoning_may_come_first(folder_of: FolderOf) -> None:
    model = await load(str(folder_of("qwen3")))
    form = model.enforce_json(SCHEMA)
    texts = [
        f"<think>\nHm.\n</think>\n\n{ANSWERS[0]}",
        f"<think>\nHm.{ANSWERS[0]}",
        f"<think></think>{ANSWERS[0]}",
    ]
    assert ask([(form, texts)]) == [[True, False, False]]


async def test_references_of_a_schema_are_followed(folder_of: FolderOf) -> None:
    model = await load(str(folder_of("qwen2_5")))
    schema = '{"$defs": {"p": {"type": "string"}}, "properties": {"path": {"$ref": "#/$defs/p"}}}'
    form = model.enforce_calls([Tool("read_file", parameters_json=schema)], several=False)
    one = written(model, call("a.py"))
    assert ask([(form, [one, one.replace('"a.py"', "5")])]) == [[True, False]]


def _check_parsed(model: ChatModel, text: str, *, good: bool) -> None:
    """Whatever is let through is read as nothing but calls without a defect."""
    if not good:
        return
    parser = model.parser([*TOOLS, NO_PARAMETERS])
    parser.feed(model.tokenizer.encode_now(text))
    answer = parser.finish()
    assert (answer.message.content, answer.flags) == ("", ())
    assert answer.message.tool_calls
    assert not any(made.defect for made in answer.message.tool_calls)
