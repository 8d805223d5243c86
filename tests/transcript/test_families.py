"""Every family with its real template and vocabulary.

Templates come from the package trl. Vocabularies: Qwen2.5's for all Qwen models (later ones add tokens to it),
Llama 3's own, gpt-oss's own. Qwen3-Coder's template is in no package; Qwen3.5 and later write their calls in the
same way and stand in for it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import jinja2
import jinja2.sandbox
import openai_harmony
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.transcript.conversations import TOOLS, assistant, call, result, user

from paceline.errors import InvalidMessage, ModelError
from paceline.transcript.chat import ChatModel, load
from paceline.transcript.fingerprint import named
from paceline.transcript.harmony import _without_old_reasoning, load_harmony
from paceline.transcript.probes import Finding
from paceline.workflow.model import CallRef, Message, Role, Tool

FolderOf = Callable[[str], Path]
ON: dict[str, Any] = {}
OFF = {"enable_thinking": False}
MODELS = [
    ("qwen2_5", ON, "qwen2.5"),
    ("qwen3", ON, "qwen3"),
    ("qwen3", OFF, "qwen3"),
    ("qwen3_instruct_2507", ON, "qwen2.5"),
    ("qwen3_5_think", ON, "qwen3.5"),
    ("qwen3_5_think", OFF, "qwen3.5"),
    ("qwen3_6", ON, "qwen3.5"),
    ("qwen3_8", ON, "qwen3.5"),
    ("llama3_1", ON, "llama3"),
    ("llama3_2", ON, "llama3"),
]
NAMES = [f"{name}-{'off' if arguments else 'on'}" for name, arguments, _ in MODELS]


@pytest.fixture(params=MODELS, ids=NAMES)
async def made(request: pytest.FixtureRequest, folder_of: FolderOf) -> tuple[ChatModel, Path, dict[str, Any]]:
    """One model, its folder and its template's arguments."""
    name, arguments, _ = request.param
    return await load(str(folder_of(name)), None, arguments), folder_of(name), arguments


@pytest.mark.parametrize(("name", "arguments", "family"), MODELS, ids=NAMES)
async def test_the_family_is_recognised_and_can_be_appended_to(
    folder_of: FolderOf, name: str, arguments: dict[str, Any], family: str
) -> None:
    model = await load(str(folder_of(name)), None, arguments)
    assert model.family.name == family
    assert model.appendable
    assert all(verdict.reason for verdict in model.verdicts if verdict.finding is not Finding.EQUAL)


EQUAL = ["qwen2_5", "qwen3_instruct_2507", "qwen3_8", "llama3_1", "llama3_2"]


@pytest.mark.parametrize("name", EQUAL)
async def test_templates_that_keep_history_are_continued_as_they_would_write(
    folder_of: FolderOf, name: str
) -> None:
    model = await load(str(folder_of(name)))
    others = [verdict for verdict in model.verdicts if verdict.finding is not Finding.EQUAL]
    parallel = ["results of parallel calls"] if name.startswith("llama") else []
    assert [verdict.probe for verdict in others] == parallel
    assert all("single tool-calls" in verdict.reason for verdict in others)


async def test_dropped_thinking_is_reported_with_what_would_stand_there(folder_of: FolderOf) -> None:
    model = await load(str(folder_of("qwen3")))
    verdict = next(verdict for verdict in model.verdicts if verdict.probe == "reasoning before an answer")
    assert verdict.finding is Finding.REWRITES
    assert verdict.reason.startswith(r"sent '<think>\nfirst thought\n</think>'")
    call_kept = next(verdict for verdict in model.verdicts if verdict.probe == "reasoning before a call")
    assert call_kept.finding is Finding.EQUAL


# -- first prompts: the template's own words ----------------------------------------------------------------------

CONVERSATIONS: list[tuple[str, tuple[Tool, ...], list[Message]]] = [
    ("", (), [user("Hi.")]),
    ("Be brief.", (), [user("Hi.")]),
    ("Be brief.", TOOLS, [user("Read <a.py> & 'b' ü.")]),
    ("", TOOLS, [user("Read."), assistant("", call("a.py")), result("x = 1\n")]),
    ("", (), [user("Hi."), assistant("Hello.", reasoning="A greeting."), user("Bye.")]),
]


@pytest.mark.parametrize(("system", "tools", "messages"), CONVERSATIONS)
async def test_a_first_prompt_is_the_rendering_of_the_template(
    made: tuple[ChatModel, Path, dict[str, Any]], system: str, tools: tuple[Tool, ...], messages: list[Message]
) -> None:
    model, folder, arguments = made
    ids = await model.render_first(system, tools, messages)
    leading = [{"role": "system", "content": system}] if system else []
    text = by_jinja(folder, [*leading, *map(as_openai, messages)], [*map(tool_as_openai, tools)], arguments)
    assert ids == model.tokenizer.encode_now(text)
    assert model.tokenizer.decode(ids) == text


def by_jinja(folder: Path, messages: list[Any], tools: list[Any], arguments: dict[str, Any]) -> str:
    """A full rendering as `apply_chat_template` of transformers makes it, by Jinja alone."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = pytest.fail
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    special = {key: value["content"] if isinstance(value, dict) else value for key, value in config.items()}
    return environment.from_string((folder / "chat_template.jinja").read_text()).render(
        messages=messages, tools=tools or None, add_generation_prompt=True, **special, **arguments
    )


def as_openai(message: Message) -> dict[str, Any]:
    """A message in OpenAI's form, arguments as objects."""
    shown: dict[str, Any] = {"role": str(message.role), "content": message.content}
    if message.reasoning:
        shown["reasoning_content"] = message.reasoning
    if message.tool_calls:
        shown["tool_calls"] = [
            {"type": "function", "function": {"name": c.tool_name, "arguments": json.loads(c.arguments_json)}}
            for c in message.tool_calls
        ]
    return shown


def tool_as_openai(tool: Tool) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    parameters = json.loads(tool.parameters_json)
    function = {"name": tool.tool_name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


# -- appending ----------------------------------------------------------------------------------------------------

WORDS = st.text(st.sampled_from("ab \n{}<>/|é漢\"'"), max_size=12)
NEWS = st.lists(st.builds(user, WORDS), min_size=1, max_size=2) | st.lists(
    st.builds(result, WORDS), min_size=1, max_size=2
)
OPENINGS = {
    "qwen2_5": "<|im_end|>\n<|im_start|>assistant\n",
    "qwen3": "<|im_end|>\n<|im_start|>assistant\n",
    "qwen3_6": "<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "llama3_1": "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "gptoss": "<|end|><|start|>assistant",
}
IDS = st.lists(st.integers(0, 5000), max_size=12)


@pytest.mark.parametrize("name", OPENINGS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(turns=st.lists(st.tuples(IDS, st.booleans(), NEWS), min_size=1, max_size=4))
async def test_what_was_sent_stays_a_prefix_whatever_follows(
    folder_of: FolderOf, name: str, turns: list[tuple[list[int], bool, list[Message]]]
) -> None:
    """Ids are only ever appended, and what is appended does not depend on what was generated."""
    model = await load(str(folder_of(name)))
    sent = await model.render_first("Be brief.", TOOLS, [user("Hi.")])
    opening = OPENINGS[name]
    for generated, closed, news in turns:
        before = sent
        answer = [*generated, model.closing_ids[0]] if closed else generated
        assert model.closes(answer) is closed
        appended = await model.render_continuation(news, TOOLS, closed=closed)
        sent = [*before, *answer, *appended]
        assert model.tokenizer.decode(appended).endswith(opening)
        assert (appended[0] == model.closing_ids[0]) is not closed
        if not closed:
            assert appended[1:] == await model.render_continuation(news, TOOLS, closed=True)


# -- gpt-oss ------------------------------------------------------------------------------------------------------


async def test_gpt_oss_is_rendered_by_harmony(folder_of: FolderOf) -> None:
    model = await load(str(folder_of("gptoss")), None, {"conversation_start_date": "2026-01-02"})
    ids = await model.render_first("Be brief.", TOOLS[:1], [user("Hi.")])
    text = model.tokenizer.decode(ids)
    assert text.startswith("<|start|>system<|message|>You are ChatGPT")
    assert "Current date: 2026-01-02" in text
    assert "# Instructions\n\nBe brief." in text
    assert "type read_file = (_: {\npath: string,\n}) => any;" in text
    assert text.endswith("<|start|>user<|message|>Hi.<|end|><|start|>assistant")
    assert model.appendable


async def test_gpt_oss_reads_an_answer_and_goes_on(folder_of: FolderOf) -> None:
    model = await load(str(folder_of("gptoss")))
    written = (
        "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.read_file "
        '<|constrain|>json<|message|>{"path": "a.py"}<|call|>'
    )
    parser = model.parser(TOOLS)
    ids = model.tokenizer.encode_now(written)
    parser.feed(ids)
    answer = parser.finish()
    assert answer.message.reasoning == "Look."
    assert [(c.tool_name, c.arguments_json) for c in answer.message.tool_calls] == [
        ("read_file", '{"path": "a.py"}')
    ]
    assert answer.reasoning_tokens == 2
    assert parser.kept_ids == len(ids)
    assert model.closes(ids)
    appended = await model.render_continuation([result("x")], TOOLS, closed=True)
    assert model.tokenizer.decode(appended) == (
        "<|start|>functions.read_file to=assistant<|channel|>commentary<|message|>x<|end|><|start|>assistant"
    )


LOOK = "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.read_file "
SAY = (
    "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.read_file<|channel|>commentary "
)
HARMONY_ANSWERS = [
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Done.<|return|>",
    "<|channel|>final<|message|>Done.<|return|>",
    LOOK + '<|constrain|>json<|message|>{"path": "a"}<|call|>',
    SAY + 'json<|message|>{"path": "é漢"}<|call|>',
]


@pytest.mark.parametrize("written", HARMONY_ANSWERS)
async def test_gpt_oss_answers_are_read_as_the_library_reads_them(folder_of: FolderOf, written: str) -> None:
    model = await load(str(folder_of("gptoss")))
    ids = model.tokenizer.encode_now(written)
    parser = model.parser(TOOLS)
    for token_id in ids:
        parser.feed([token_id])
    message = parser.finish().message
    encoding = load_harmony(folder_of("gptoss"), model.tokenizer, {})._encoding
    parsed = encoding.parse_messages_from_completion_tokens(ids, openai_harmony.Role.ASSISTANT)
    theirs = [(part.channel, part.recipient, part.content[0].text) for part in parsed]
    assert message.reasoning == "".join(text for channel, _, text in theirs if channel == "analysis")
    texts = [text for channel, to, text in theirs if channel in {"final", "commentary"} and not to]
    assert message.content == "".join(texts)
    called = [(f"functions.{made.tool_name}", made.arguments_json) for made in message.tool_calls]
    assert called == [(to, text) for _, to, text in theirs if to]


async def test_gpt_oss_replaces_the_return_that_its_history_never_has(folder_of: FolderOf) -> None:
    model = await load(str(folder_of("gptoss")))
    parser = model.parser(TOOLS)
    ids = model.tokenizer.encode_now("<|channel|>final<|message|>Done.<|return|>")
    parser.feed(ids)
    assert parser.finish().message.content == "Done."
    kept = ids[: parser.kept_ids]
    assert kept == ids[:-1]
    assert not model.closes(kept)
    appended = await model.render_continuation([user("On.")], TOOLS, closed=False)
    assert model.tokenizer.decode(appended).startswith("<|end|><|start|>user<|message|>On.")


async def test_gpt_oss_needs_the_tools_name(folder_of: FolderOf) -> None:
    model = await load(str(folder_of("gptoss")))
    nameless = Message(Role.TOOL, "x", tool_call_id="call_1")
    with pytest.raises(InvalidMessage, match="set `tool_name`"):
        await model.render_continuation([nameless], TOOLS, closed=True)
    (answers,) = named([nameless], (CallRef("call_1", "read_file"),))
    ids = await model.render_continuation([answers], TOOLS, closed=True)
    assert "functions.read_file to=assistant" in model.tokenizer.decode(ids)


async def test_gpt_oss_is_rendered_message_by_message_in_a_thread(
    folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await load(str(folder_of("gptoss")), None, {"conversation_start_date": "2026-01-02"})
    messages = [
        user("Read."),
        assistant("I look.", call("a"), reasoning="Hm."),
        result("x = 1\n" * 1000),
        assistant("One.", reasoning="So."),
        user("And b?"),
        assistant("", call("b"), reasoning="b, then."),
        result("<|end|>"),
    ]
    renderer = cast("Any", model._renderer)
    lib, encoding = openai_harmony, renderer._encoding
    parts = [*renderer._preamble(messages, TOOLS), *_without_old_reasoning(renderer._all(messages))]
    whole = encoding.render_conversation_for_completion(
        lib.Conversation.from_messages(parts),
        lib.Role.ASSISTANT,
        lib.RenderConversationConfig(auto_drop_analysis=False),
    )
    threads, render = set[int](), encoding.render

    def seen(part: Any) -> Any:
        threads.add(threading.get_ident())
        return render(part)

    monkeypatch.setattr(encoding, "render", seen)
    assert await model.render_first("", TOOLS, messages) == list(whole)
    await model.render_continuation([result("x = 1\n" * 1000)], TOOLS, closed=True)
    assert threads
    assert threading.get_ident() not in threads


async def test_gpt_oss_says_what_is_missing(gpt_oss_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    tokenizer = json.loads((gpt_oss_folder / "tokenizer.json").read_text())
    del tokenizer["model"]["vocab"]["Ġthe"]
    tokenizer["model"]["merges"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match=r"put the file of https://\S+ there as o200k_base\.tiktoken"):
        await load(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({"enable_thinking": False}, "knows no 'enable_thinking'"), ({"reasoning_effort": "most"}, "low, medium")],
)
async def test_gpt_oss_knows_its_arguments(folder_of: FolderOf, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        await load(str(folder_of("gptoss")), None, arguments)


async def test_gpt_oss_by_its_template_is_rendered_in_full(folder_of: FolderOf) -> None:
    """Its template looks back at the call for the name of a tool result: it cannot be continued."""
    folder = folder_of("gptoss")
    model = await load(str(folder), folder / "chat_template.jinja")
    assert not model.appendable
    assert {verdict.probe.split()[0] for verdict in model.unsafe} >= {"a", "results"}


# -- llama --------------------------------------------------------------------------------------------------------


async def test_llamas_end_of_message_closes_its_turn(folder_of: FolderOf) -> None:
    model = await load(str(folder_of("llama3_1")))
    end_of_message = model.tokenizer.id_of("<|eom_id|>")
    assert end_of_message in model.stop_token_ids
    assert model.closes([1, 2, end_of_message or 0])
    assert not model.closes([1, 2, model.tokenizer.id_of("<|end_of_text|>") or 0])


async def test_template_arguments_are_part_of_the_template(folder_of: FolderOf) -> None:
    on, off = await load(str(folder_of("qwen3"))), await load(str(folder_of("qwen3")), None, OFF)
    assert on.template_hash != off.template_hash
    ids = await off.render_first("", (), [user("Hi.")])
    assert off.tokenizer.decode(ids).endswith("assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(ModelError, match="tools is set by every step"):
        await load(str(folder_of("qwen3")), None, {"tools": 1})
