"""Answers that can be read in two ways: what runs, what stays text, and that it is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.transcript.conversations import READ, TOOLS

from paceline.transcript.chat import ChatModel
from paceline.transcript.families import gpt_oss, llama3, qwen2_5, qwen3, qwen3_coder
from paceline.transcript.families.base import Family
from paceline.transcript.parsing import Answer, OutputParser
from paceline.transcript.pieces import OutputEvent
from paceline.transcript.tokenizer import load_tokenizer
from paceline.workflow.events import ReasoningDelta, TextDelta, ToolCallEvent
from paceline.workflow.model import OutputFlag, Tool

TOKENIZER = load_tokenizer("emulated")
END = 258
GOOD = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>'
OTHER = GOOD.replace("a.py", "b.py")
UNKNOWN = GOOD.replace("read_file", "unknown")
XML = "<tool_call>\n<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>"


def parser_of(family: Family, tools: Sequence[Tool] = TOOLS) -> OutputParser:
    """A parser over the built-in tokenizer, whose ids are bytes and a few markers."""
    return OutputParser(
        TOKENIZER.stream(), end_ids=(END,), closing_ids=(END,), family=family, tools=tools, stop=()
    )


def read(
    text: str, family: Family = qwen3.FAMILY, *, cut: bool = False, tools: Sequence[Tool] = TOOLS
) -> tuple[list[OutputEvent], Answer]:
    """Read a text that is generated id by id."""
    parser = parser_of(family, tools)
    events = [event for token_id in TOKENIZER.encode_now(text) for event in parser.feed([token_id])]
    answer = parser.finish(cut=cut)
    return [*events, *answer.events], answer


def calls(answer: Answer) -> list[tuple[str, str]]:
    """Names and arguments."""
    return [(call.tool_name, call.arguments_json) for call in answer.message.tool_calls]


# -- reasoning that never ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "paths"),
    [
        (f"A.\n{GOOD}", "A.", "", ["a.py"]),
        (f"A.\n{GOOD}\nB.", "A.", "B.", ["a.py"]),
        (f"A.\n{GOOD}\n{OTHER}\n", "A.", "", ["a.py", "b.py"]),
        (f"A.\n{GOOD}\n{OTHER.removesuffix('</tool_call>')}", "A.", "", ["a.py", "b.py"]),
        (f"A <tool_call>no</tool_call> B.{GOOD}", "A <tool_call>no</tool_call> B.", "", ["a.py"]),
        (f"A.{GOOD}</thi", "A.", "</thi", ["a.py"]),
        (GOOD, "", "", ["a.py"]),
        (GOOD.replace("a.py", "<think>"), "", "", ["<think>"]),
    ],
)
def test_a_complete_call_in_reasoning_that_never_ends_counts(
    text: str, reasoning: str, content: str, paths: list[str]
) -> None:
    events, answer = read(f"<think>\n{text}")
    assert (answer.message.reasoning, answer.message.content) == (reasoning, content)
    assert calls(answer) == [("read_file", f'{{"path": "{path}"}}') for path in paths]
    assert OutputFlag.CALL_IN_OPEN_REASONING in answer.flags
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == reasoning
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == content
    assert [event.tool_call for event in events if isinstance(event, ToolCallEvent)] == list(
        answer.message.tool_calls
    )


def test_the_tokens_of_such_a_call_are_no_reasoning() -> None:
    _, answer = read(f"<think>\nA.\n{GOOD}")
    assert answer.reasoning_tokens == len("\nA.\n")
    _, answer = read(f"<think>\nA.\n{GOOD}\n</think>")
    assert answer.reasoning_tokens == len(TOKENIZER.encode_now(f"\nA.\n{GOOD}\n"))


@pytest.mark.parametrize(
    "text",
    [
        f"A.\n{GOOD}\nB.\n</think>\n\nC.",
        f"{GOOD}</think>C.",
        f"{GOOD}{OTHER}</think>\nC.",
    ],
)
def test_calls_in_reasoning_that_ends_are_reasoning(text: str) -> None:
    events, answer = read(f"<think>{text}")
    assert answer.message.reasoning == text.partition("</think>")[0].rstrip()
    assert (answer.message.content, answer.message.tool_calls, answer.flags) == ("C.", (), ())
    assert not any(isinstance(event, ToolCallEvent) for event in events)


@pytest.mark.parametrize("text", [f"A.{UNKNOWN}", f"A.{GOOD.removesuffix('>')}", "A.<tool_call>{}</tool_call>"])
def test_what_is_no_complete_call_of_a_tool_stays_reasoning(text: str) -> None:
    _, answer = read(f"<think>{text}")
    assert (answer.message.reasoning, answer.message.content, answer.flags) == (text, "", ())


def test_a_call_in_reasoning_that_was_cut_stays_reasoning() -> None:
    _, answer = read(f"<think>A.{GOOD}", cut=True)
    assert (answer.message.reasoning, answer.message.tool_calls, answer.flags) == (f"A.{GOOD}", (), ())


def test_a_call_in_reasoning_before_a_stop_text_stays_reasoning(emulated: ChatModel) -> None:
    parser = OutputParser(
        TOKENIZER.stream(), end_ids=(END,), closing_ids=(END,), family=qwen3.FAMILY, tools=TOOLS, stop=("STOP",)
    )
    parser.feed(emulated.tokenizer.encode_now(f"<think>A.{GOOD} STOP"))
    assert parser.finish().message.tool_calls == ()


def test_nothing_of_a_call_in_reasoning_is_sent_before_its_reading_is_certain() -> None:
    parser = parser_of(qwen3.FAMILY)
    assert parser.feed(TOKENIZER.encode_now(f"<think>A.\n{GOOD}\nB.")) == [ReasoningDelta("A.")]
    assert parser.feed(TOKENIZER.encode_now("</think>")) == [ReasoningDelta(f"\n{GOOD}\nB.")]


def test_without_tools_reasoning_is_sent_at_once() -> None:
    parser = parser_of(qwen3.FAMILY, ())
    assert parser.feed(TOKENIZER.encode_now(f"<think>A.{GOOD}")) == [ReasoningDelta(f"A.{GOOD}")]
    assert parser.finish().flags == ()


def test_many_markers_in_reasoning_are_read_once() -> None:
    parser = parser_of(qwen3.FAMILY)
    parser.feed(TOKENIZER.encode_now("<think>" + '<tool_call>{"' * 100_000))
    assert parser.finish().message.tool_calls == ()


# -- calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [qwen2_5.FAMILY, qwen3.FAMILY])
@pytest.mark.parametrize(
    "body",
    [
        '{"name": "read_file", "name": "run_tests", "arguments": {}}',
        '{"name": "read_file", "arguments": {"path": "a"}, "arguments": {"path": "b"}}',
        '{"name": "read_file", "arguments": {"path": "a", "path": "b"}}',
        '{"name": "read_file", "arguments": {"path": {"x": 1, "x": 2}}}',
        '{"name": "read_file", "arguments": {"path": "a"}, "timeout": 5}',
    ],
)
def test_a_call_that_asks_for_two_things_is_none(family: Family, body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    _, answer = read(text, family)
    assert (answer.message.content, answer.message.tool_calls) == (text, ())
    assert (answer.malformed_tool_calls, answer.flags) == (1, (OutputFlag.MALFORMED_CALL,))


def test_an_id_and_a_type_beside_a_call_mean_nothing() -> None:
    body = '{"type": "function", "id": "1", "name": "read_file", "arguments": {"path": "a"}}'
    _, answer = read(f"<tool_call>{body}</tool_call>")
    assert (calls(answer), answer.flags) == ([("read_file", '{"path": "a"}')], ())
    _, answer = read(body, llama3.FAMILY)
    assert (calls(answer), answer.flags) == ([("read_file", '{"path": "a"}')], ())


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "read_file", "parameters": {"path": "a", "path": "b"}}',
        '{"name": "read_file", "parameters": {"path": "a"}, "parameters": {"path": "b"}}',
        '{"name": "read_file", "parameters": {"path": "a"}, "timeout": 5}',
    ],
)
def test_a_call_of_llama_that_asks_for_two_things_is_none(text: str) -> None:
    _, answer = read(text, llama3.FAMILY)
    assert (answer.message.content, answer.message.tool_calls) == (text, ())
    assert answer.flags == (OutputFlag.MALFORMED_CALL,)


def test_a_key_twice_in_a_call_of_harmony_makes_it_none() -> None:
    text = '<|channel|>commentary to=functions.read_file<|message|>{"path": "a", "path": "b"}'
    _, answer = read(text, gpt_oss.FAMILY)
    assert (answer.message.content, answer.message.tool_calls) == (text, ())


# -- markers that belong to nothing -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["One. <think>two</think>", "</think>", "<think>a</think>b</think>"])
@pytest.mark.parametrize("family", [qwen3.FAMILY, qwen3_coder.REASONING])
def test_a_marker_of_reasoning_in_text_is_flagged(family: Family, text: str) -> None:
    assert read(text, family)[1].flags == (OutputFlag.STRAY_MARKER,)


def test_a_message_that_starts_inside_another_is_flagged() -> None:
    parser = parser_of(gpt_oss.FAMILY)
    text = "<|channel|>final<|message|>One.<|start|>assistant<|channel|>final<|message|>Two."
    for byte in text.encode():
        parser.feed([byte])
    answer = parser.finish()
    assert answer.message.content == text.partition("<|message|>")[2]
    assert answer.flags == (OutputFlag.STRAY_MARKER,)


@pytest.mark.parametrize("text", ["Done.", "<think>a</think>b", f"<think>a</think>b{GOOD}", ""])
def test_what_is_clear_has_no_flag(text: str) -> None:
    assert read(text)[1].flags == ()


def test_without_tools_a_call_is_text() -> None:
    for family, text in ((qwen3.FAMILY, GOOD), (qwen3_coder.FAMILY, XML)):
        _, answer = read(text, family, tools=())
        assert (answer.message.content, answer.message.tool_calls) == (text, ())


# -- stop texts ---------------------------------------------------------------------------------------------------


def test_the_visible_part_of_a_token_that_a_stop_cuts_is_tokenized_again(model: ChatModel) -> None:
    parser = model.parser((), stop=("lo wo",))
    ids = model.tokenizer.encode_now("Say hello world")
    parser.feed(ids)
    answer = parser.finish()
    assert model.tokenizer.decode([*ids[: parser.kept_ids], *answer.retokenized]) == "Say hel"
    assert (OutputFlag.RETOKENIZED_END in answer.flags) == bool(answer.retokenized)
    assert bool(answer.retokenized) == (len(ids) != len("Say hello world"))


def test_a_stop_inside_a_marker_leaves_its_beginning(emulated: ChatModel) -> None:
    parser = emulated.parser([READ], stop=("call>{",))
    ids = emulated.tokenizer.encode_now("Hi <tool_call>{")
    parser.feed(ids)
    answer = parser.finish()
    assert (answer.message.content, parser.kept_ids) == ("Hi <tool_", 3)
    assert answer.retokenized == tuple(b"<tool_")
    assert answer.flags == (OutputFlag.RETOKENIZED_END,)


def test_a_stop_that_begins_a_token_leaves_nothing_to_tokenize(emulated: ChatModel) -> None:
    parser = emulated.parser((), stop=("END",))
    parser.feed(emulated.tokenizer.encode_now("one END"))
    answer = parser.finish()
    assert (answer.retokenized, answer.flags) == ((), ())


def test_the_part_of_a_token_that_was_sent_long_ago_is_kept_too(emulated: ChatModel) -> None:
    parser = emulated.parser((), stop=(">END",))
    first, *rest = emulated.tokenizer.encode_now("<tool_call>END")
    assert parser.feed([first]) == [TextDelta("<tool_call")]
    parser.feed(rest)
    answer = parser.finish()
    assert (answer.message.content, answer.retokenized) == ("<tool_call", tuple(b"<tool_call"))
