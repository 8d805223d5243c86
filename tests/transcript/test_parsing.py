"""Answers: reasoning, text and tool calls, however the ids are cut into chunks."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence

import pytest
from tests.transcript.conversations import READ, TOOLS

from paceline.transcript.families import plain, qwen2_5, qwen3
from paceline.transcript.families.base import Family
from paceline.transcript.parsing import Answer, OutputParser
from paceline.transcript.pieces import OutputEvent
from paceline.transcript.tokenizer import load_tokenizer
from paceline.workflow.events import ReasoningDelta, TextDelta, ToolCallEvent
from paceline.workflow.model import Tool, ToolCall

TOKENIZER = load_tokenizer("emulated")
END, REPLACED = 258, 256
GOOD = '{"name": "read_file", "arguments": {"path": "a.py"}}'


def make(family: Family = qwen3.FAMILY, tools: Sequence[Tool] = TOOLS) -> OutputParser:
    """A parser over the built-in tokenizer."""
    return OutputParser(
        TOKENIZER.stream(), end_ids=(END, REPLACED), closing_ids=(END,), family=family, tools=tools, stop=()
    )


def parse(
    text: str, family: Family = qwen3.FAMILY, tools: Sequence[Tool] = TOOLS
) -> tuple[list[OutputEvent], Answer]:
    """Parse a text that is generated id by id."""
    parser = make(family, tools)
    events = [event for token_id in TOKENIZER.encode_now(text) for event in parser.feed([token_id])]
    answer = parser.finish()
    return [*events, *answer.events], answer


def calls(answer: Answer) -> list[tuple[str, str]]:
    """Names and arguments."""
    return [(call.tool_name, call.arguments_json) for call in answer.message.tool_calls]


# -- text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "Hi.", "\n\n Hi.\n", "a < b <to", "<tool", "if a <b: pass  ", "é漢🚲"])
def test_text_comes_through_unchanged(text: str) -> None:
    events, answer = parse(text)
    assert answer.message.content == text
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == text
    assert answer.malformed_tool_calls == 0


def test_text_is_sent_as_soon_as_it_is_certain() -> None:
    parser = make()
    assert parser.feed(b"Hi") == [TextDelta("Hi")]
    assert parser.feed(b" \n<") == []
    assert parser.feed(b"b") == [TextDelta(" \n<b")]


def test_end_ids_are_no_text_and_end_the_answer() -> None:
    parser = make()
    parser.feed([*b"Hi", END, *b"more"])
    assert parser.finish().message.content == "Hi"
    assert parser.kept_ids == 3


def test_an_end_id_that_the_template_does_not_write_is_not_kept() -> None:
    parser = make()
    parser.feed([*b"Hi", REPLACED, *b"more"])
    assert parser.finish().message.content == "Hi"
    assert parser.kept_ids == 2


# -- calls ------------------------------------------------------------------------------------------------------


def test_a_call_is_sent_whole_when_it_closes() -> None:
    parser = make()
    text = f"Reading.\n<tool_call>\n{GOOD}\n</tool_call>"
    assert parser.feed(TOKENIZER.encode_now(text)[:-1]) == [TextDelta("Reading.")]
    (event,) = parser.feed([TOKENIZER.encode_now("</tool_call>")[0]])
    assert isinstance(event, ToolCallEvent)
    assert event.tool_call == ToolCall(event.tool_call.tool_call_id, "read_file", '{"path": "a.py"}')
    assert re.fullmatch(r"call_[A-Za-z0-9_-]{24}", event.tool_call.tool_call_id)
    assert parser.finish().message.tool_calls == (event.tool_call,)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("{call}", ""),
        ("\n{call}\n\n{call}\n", ""),
        ("One.\n\n{call}\n{call}", "One."),
        ("One.\n{call}\nTwo.\n", "One.\nTwo.\n"),
        ("{call}\nTwo.", "Two."),
        ("One.{call}Two.{call}Three.", "One.Two.Three."),
    ],
)
def test_whitespace_beside_calls_is_text_only_between_texts(text: str, content: str) -> None:
    _, answer = parse(text.replace("{call}", f"<tool_call>{GOOD}</tool_call>"))
    assert answer.message.content == content
    assert calls(answer) == [("read_file", '{"path": "a.py"}')] * text.count("{call}")


@pytest.mark.parametrize(
    "arguments",
    [
        '{"path": "</tool_call>"}',
        '{"path": "\\"</tool_call>\\\\"}',
        '{"path": "<tool_call>{}</tool_call><think>"}',
        '{"path": "{\\"a\\": 1}"}',
        '{ "path" :\n"a\\u00e9\\n" }',
    ],
)
def test_markers_and_json_inside_a_string_are_data(arguments: str) -> None:
    _, answer = parse(f'<tool_call>{{"name": "read_file", "arguments": {arguments}}}</tool_call>ok')
    assert calls(answer) == [("read_file", arguments)]
    assert answer.message.tool_calls[0].defect == ""
    assert answer.message.content == "ok"


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call></tool_call>",
        "<tool_call>read_file(a.py)</tool_call>",
        f"<tool_call>[{GOOD}]</tool_call>",
        f"<tool_call>{GOOD}}}</tool_call>",
        '<tool_call>{"name": "read_file", "arguments": {"path": a.py}}</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": "a.py"}</tool_call>',
        '<tool_call>{"name": "read_file"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": {"path": NaN}}</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": {"path": "\\ud83d"}}</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": {"path": "a\nb"}}</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": {"path": "a}}\n</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": ' + '{"a":' * 5000 + "1" + "}" * 5001 + "</tool_call>",
    ],
)
def test_what_is_no_call_stays_text_and_is_counted(broken: str) -> None:
    _, answer = parse(f"One.\n{broken}\n<tool_call>{GOOD}</tool_call>")
    assert answer.message.content == f"One.\n{broken}"
    assert answer.malformed_tool_calls == 1
    assert len(answer.message.tool_calls) == 1


def test_the_next_call_after_a_lost_marker_counts() -> None:
    _, answer = parse(f"<tool_call>\n<tool_call>{GOOD}</tool_call>")
    assert (answer.message.content, answer.malformed_tool_calls) == ("<tool_call>", 1)
    assert len(answer.message.tool_calls) == 1


@pytest.mark.parametrize("end", ["", "\n", "\n</tool_", "\n</tool_call"])
def test_at_the_end_a_complete_call_needs_no_marker(end: str) -> None:
    _, answer = parse(f"<tool_call>\n{GOOD}{end}")
    assert calls(answer) == [("read_file", '{"path": "a.py"}')]
    assert (answer.message.content, answer.malformed_tool_calls) == ("", 0)


@pytest.mark.parametrize(
    "cut", ["", "\n", '{"name": "re', GOOD[:-1], '{"name": "x", "arguments": {"a": "</tool_call>\\']
)
def test_a_call_that_is_cut_stays_text(cut: str) -> None:
    _, answer = parse(f"One.\n<tool_call>{cut}")
    assert answer.message.content == f"One.\n<tool_call>{cut}"
    assert (answer.malformed_tool_calls, answer.message.tool_calls) == (1, ())


def test_without_tools_nothing_is_a_call() -> None:
    text = f"<tool_call>{GOOD}</tool_call>"
    for family, tools in [(qwen2_5.FAMILY, ()), (plain.FAMILY, TOOLS)]:
        _, answer = parse(text, family, tools)
        assert (answer.message.content, answer.malformed_tool_calls) == (text, 0)


# -- defects ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "defect"),
    [
        ("read_file", '{"path": "a.py"}', ""),
        ("read_file", "{}", "arguments $: 'path' is a required property"),
        ("read_file", '{"path": 1}', "arguments $.path: 1 is not of type 'string'"),
        ("delete", "{}", "unknown tool 'delete'"),
        ("no_schema", '{"any": 1}', ""),
        ("bad_pattern", '{"a": "b"}', "arguments not checked, the tool's schema is unusable"),
        ("no_type", '{"a": "b"}', "arguments not checked, the tool's schema is unusable"),
        ("endless", '{"a": "b"}', "arguments not checked, the tool's schema is unusable"),
    ],
)
def test_a_call_that_does_not_fit_its_schema_says_why(name: str, arguments: str, defect: str) -> None:
    tools = [
        READ,
        Tool("no_schema"),
        Tool("bad_pattern", parameters_json='{"properties": {"a": {"pattern": "("}}}'),
        Tool("no_type", parameters_json='{"type": "nothing"}'),
        Tool("endless", parameters_json='{"$ref": "#"}'),
    ]
    body = json.dumps({"name": name, "arguments": json.loads(arguments)})
    _, answer = parse(f"<tool_call>{body}</tool_call>", tools=tools)
    (call,) = answer.message.tool_calls
    assert call.defect.startswith(defect)
    assert bool(call.defect) == bool(defect)


def test_references_out_of_a_schema_are_not_followed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tool = Tool("elsewhere", parameters_json=f'{{"$ref": "http://127.0.0.1:{port}/schema.json"}}')
        _, answer = parse('<tool_call>{"name": "elsewhere", "arguments": {}}</tool_call>', tools=[tool])
        assert "schema is unusable" in answer.message.tool_calls[0].defect
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_defect_is_short() -> None:
    body = json.dumps({"name": "read_file", "arguments": {"path": ["x"] * 1000}})
    _, answer = parse(f"<tool_call>{body}</tool_call>")
    assert len(answer.message.tool_calls[0].defect) == 300


# -- reasoning --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", ["", "\n"])
def test_reasoning_comes_first(lead: str) -> None:
    events, answer = parse(f"{lead}<think>\nA <b> c.\n</think>\n\nDone.\n")
    assert (answer.message.reasoning, answer.message.content) == ("A <b> c.", "Done.\n")
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "A <b> c."
    assert answer.reasoning_tokens == len("\nA <b> c.\n")


@pytest.mark.parametrize("text", ["A.\n</thi", f"A.\n<tool_call>{GOOD}</tool_", "A.\n<tool_call>x</tool_call>"])
def test_reasoning_that_never_closes_is_reasoning(text: str) -> None:
    _, answer = parse(f"<think>{text}")
    assert (answer.message.reasoning, answer.message.content, answer.message.tool_calls) == (text, "", ())


@pytest.mark.parametrize("text", ["One. <think>two</think>", "<thi", "\n <", "</think>"])
def test_markers_elsewhere_are_text(text: str) -> None:
    _, answer = parse(text)
    assert (answer.message.reasoning, answer.message.content) == ("", text)
    assert answer.reasoning_tokens == 0


def test_a_family_without_reasoning_reports_none() -> None:
    _, answer = parse("<think>a</think>", qwen2_5.FAMILY)
    assert (answer.message.content, answer.reasoning_tokens) == ("<think>a</think>", None)
