"""First prompts and tool calls against vLLM's own, family by family."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.transcript import models
from tests.transcript.conversations import TOOLS, assistant, call, result, user
from tests.transcript.test_families import as_openai, tool_as_openai

from paceline.transcript.chat import ChatModel, load
from paceline.workflow.model import Message, Tool

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

FolderOf = Callable[[str], Path]
ORACLE = Path(__file__).with_name("oracle.py")
TEMPLATES: list[tuple[str, dict[str, Any]]] = [
    ("qwen2_5", {}),
    ("qwen3", {}),
    ("qwen3", {"enable_thinking": False}),
    ("qwen3_6", {}),
    ("llama3_1", {}),
    ("llama3_2", {}),
]
FIRST: list[tuple[str, tuple[Tool, ...], list[Message]]] = [
    ("", (), [user("Hi.")]),
    ("Be brief.", TOOLS, [user("Read <a.py> & 'b' ü.")]),
    ("", TOOLS, [user("Read."), assistant("", call("a.py")), result("x = 1\n")]),
    ("", (), [user("Hi."), assistant("Hello."), user("Bye.")]),
]
XML = (
    "Reading.\n<tool_call>\n<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>",
    (
        "<tool_call>\n<function=run_tests>\n<parameter=count>\n5\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=read_file>\n<parameter=path>\n  x\n\n</parameter>\n</function>\n</tool_call>"
    ),
    "No call.",
)
HERMES = (
    'Reading.\n<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>',
    (
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "run_tests", "arguments": {"count": 5}}\n</tool_call>'
    ),
    "No call.",
)
LLAMA = (
    '{"name": "read_file", "parameters": {"path": "a.py"}}',
    '{"name": "read_file", "parameters": {"path": "a"}}; {"name": "run_tests", "parameters": {"count": 5}}',
    "No call.",
)
RESULT_OF_VLLM, RESULT_OF_GPT_OSS = "<|channel|>commentary to=assistant", " to=assistant<|channel|>commentary"
"""The head of a tool result: vLLM's fork of openai-harmony puts the recipient behind the channel, gpt-oss's own
template and openai-harmony before it."""
AMBIGUOUS = (
    '<tool_call>{"name": "read_file", "name": "run_tests", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "read_file", "arguments": {"path": "a"}, "timeout": 5}</tool_call>',
    '<tool_call>{"name": "read_file", "arguments": {"path": "a", "path": "b"}}</tool_call>',
)
"""vLLM runs what is left of these; Paceline runs none."""
IN_REASONING = [("qwen3", "hermes", HERMES[0]), ("qwen3_6", "qwen3_coder", XML[0])]
ANSWERS = [
    *(("qwen2_5", "hermes", text) for text in HERMES),
    *(("qwen3_6", "qwen3_coder", text) for text in XML),
    *(("llama3_1", "llama3_json", text) for text in LLAMA),
]


def ask(question: dict[str, Any]) -> dict[str, Any]:
    """Ask vLLM, which takes half a minute to import."""
    python = os.environ["PACELINE_TEST_ENGINE_PYTHON"]
    vocabulary = models.shipped("tml-renderers", "tml_renderers/data")
    environment = {**os.environ, "TIKTOKEN_ENCODINGS_BASE": str(vocabulary), "CUDA_VISIBLE_DEVICES": ""}
    command, asked = [python, str(ORACLE)], json.dumps(question)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def as_vllm(system: str, messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as they come to vLLM's template: arguments are objects."""
    leading = [{"role": "system", "content": system}] if system else []
    return [*leading, *map(as_openai, messages)]


async def test_first_prompts_and_calls_are_vllms(folder_of: FolderOf) -> None:
    tools = [tool_as_openai(tool) for tool in TOOLS]
    of_template = [
        {
            "folder": str(folder_of(name)),
            "messages": as_vllm(system, messages),
            "tools": tools if given else [],
            "arguments": arguments,
        }
        for name, arguments in TEMPLATES
        for system, given, messages in FIRST
    ]
    of_harmony = [
        {"messages": with_text_arguments(as_vllm(system, messages)), "tools": tools if given else []}
        for system, given, messages in FIRST
    ]
    of_answers = [
        {"folder": str(folder_of(name)), "parser": parser, "text": text, "tools": tools}
        for name, parser, text in ANSWERS
    ]
    of_reasoning = [
        {"folder": str(folder_of(name)), "parser": parser, "text": f"<think>{text}{end}", "tools": tools}
        for name, parser, text in IN_REASONING
        for end in ("", "\nNo.</think>\nDone.")
    ]
    of_answers += [
        {"folder": str(folder_of("qwen2_5")), "parser": "hermes", "text": text, "tools": tools}
        for text in AMBIGUOUS
    ]
    theirs = ask({"template": of_template, "harmony": of_harmony, "parsed": of_answers, "reasoned": of_reasoning})

    ours = [
        await (await load(str(folder_of(name)), None, arguments)).render_first(*case)
        for name, arguments in TEMPLATES
        for case in FIRST
    ]
    assert ours == theirs["template"]
    gpt_oss = await load(str(folder_of("gptoss")))
    for case, ids in zip(FIRST, theirs["harmony"], strict=True):
        text = gpt_oss.tokenizer.decode(ids).replace(RESULT_OF_VLLM, RESULT_OF_GPT_OSS)
        rendered = await gpt_oss.render_first(*case)
        assert gpt_oss.tokenizer.decode(rendered) == text
        assert rendered == gpt_oss.tokenizer.encode_now(text)
    await _check_ambiguous(theirs["parsed"][len(ANSWERS) :], await load(str(folder_of("qwen2_5"))))
    await _check_reasoning(theirs["reasoned"], folder_of)
    for (name, _, text), found in zip(ANSWERS, theirs["parsed"][: len(ANSWERS)], strict=True):
        model = await load(str(folder_of(name)))
        parser = model.parser(TOOLS)
        parser.feed(model.tokenizer.encode_now(f"<think></think>{text}" if name == "qwen3_6" else text))
        message = parser.finish().message
        calls = [[made.tool_name, json.loads(made.arguments_json)] for made in message.tool_calls]
        assert calls == found["calls"]
        assert message.content == (found["content"] or "").rstrip("\n")


def read(model: ChatModel, text: str) -> Message:
    """What Paceline finds in a whole answer."""
    parser = model.parser(TOOLS)
    parser.feed(model.tokenizer.encode_now(text))
    return parser.finish().message


def found_calls(message: Message) -> list[list[Any]]:
    """Names and arguments."""
    return [[made.tool_name, json.loads(made.arguments_json)] for made in message.tool_calls]


async def _check_ambiguous(theirs: list[dict[str, Any]], model: ChatModel) -> None:
    """What asks for two things at once vLLM runs in part; here it is text."""
    for text, found in zip(AMBIGUOUS, theirs, strict=True):
        assert found["calls"]
        message = read(model, text)
        assert (message.tool_calls, message.content) == ((), text)


async def _check_reasoning(theirs: list[dict[str, Any]], folder_of: FolderOf) -> None:
    """A call in reasoning that never ends counts for both. In reasoning that does end, vLLM runs it too, and loses
    the text behind it; here it is reasoning."""
    for (name, _, text), opened, ended in zip(IN_REASONING, theirs[::2], theirs[1::2], strict=True):
        model = await load(str(folder_of(name)))
        start = "" if name == "qwen3_6" else "<think>"
        message = read(model, f"{start}{text}")
        assert found_calls(message) == opened["calls"]
        assert message.reasoning == opened["reasoning"].strip()
        message = read(model, f"{start}{text}\nNo.</think>\nDone.")
        assert (message.tool_calls, message.content, message.reasoning) == ((), "Done.", f"{text}\nNo.")
        assert (ended["calls"], ended["content"]) == (opened["calls"], None)


def with_text_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as clients send them: arguments are JSON text, results name their call."""
    for message in messages:
        for made in message.get("tool_calls", []):
            made["id"] = "call_1"
            made["function"]["arguments"] = json.dumps(made["function"]["arguments"])
        if message["role"] == "tool":
            message["tool_call_id"] = "call_1"
    return messages
