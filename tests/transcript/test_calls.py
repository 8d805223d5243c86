"""Answers of the families whose tool calls are not Hermes calls: XML, bare JSON, harmony."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transcript.conversations import READ, TOOLS

from paceline.transcript.families import gpt_oss, llama3, qwen3_coder
from paceline.transcript.families.base import Family
from paceline.transcript.parsing import Answer, OutputParser
from paceline.transcript.pieces import OutputEvent
from paceline.transcript.tokenizer import load_tokenizer
from paceline.workflow.events import TextDelta, ToolCallEvent
from paceline.workflow.model import Tool

TOKENIZER = load_tokenizer("emulated")
WRITE = Tool(
    "write",
    parameters_json=json.dumps(
        {
            "properties": {
                "path": {"type": "string"},
                "count": {"type": "integer"},
                "deep": {"type": "object"},
                "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                "note": {"type": ["string", "null"]},
                "any": {},
            }
        }
    ),
)
ALL = (*TOOLS, WRITE)
FAMILIES = [qwen3_coder.FAMILY, qwen3_coder.REASONING, llama3.FAMILY, gpt_oss.FAMILY]


def make(family: Family, tools: Sequence[Tool] = ALL) -> OutputParser:
    """A parser over the built-in tokenizer, whose ids are bytes."""
    return OutputParser(
        TOKENIZER.stream(), end_ids=(258,), closing_ids=(258,), family=family, tools=tools, stop=()
    )


def parse(family: Family, text: str, tools: Sequence[Tool] = ALL) -> tuple[list[OutputEvent], Answer]:
    """Parse a text that comes byte by byte."""
    parser = make(family, tools)
    events = [event for byte in text.encode() for event in parser.feed([byte])]
    answer = parser.finish()
    return [*events, *answer.events], answer


def calls(answer: Answer) -> list[tuple[str, object]]:
    """Names and arguments."""
    return [(call.tool_name, json.loads(call.arguments_json)) for call in answer.message.tool_calls]


def xml(name: str = "write", **values: str) -> str:
    """A call as Qwen3-Coder writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


# -- XML ----------------------------------------------------------------------------------------------------------


def test_an_xml_call_is_sent_when_it_closes() -> None:
    parser = make(qwen3_coder.FAMILY)
    text = f"Reading.\n{xml('read_file', path='a.py')}"
    assert parser.feed(text[:-1].encode()) == [TextDelta("Reading.")]
    (event,) = parser.feed(text[-1].encode())
    assert isinstance(event, ToolCallEvent)
    assert (event.tool_call.tool_name, event.tool_call.arguments_json) == ("read_file", '{"path": "a.py"}')
    assert event.tool_call.defect == ""


def test_parallel_xml_calls_and_text() -> None:
    _, answer = parse(qwen3_coder.FAMILY, f"A\n{xml(path='x')}\n{xml(path='y')}\nB")
    assert calls(answer) == [("write", {"path": "x"}), ("write", {"path": "y"})]
    assert answer.message.content == "A\nB"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("path", '{"a": 1}', '{"a": 1}'),
        ("path", "5", "5"),
        ("path", "null", "null"),
        ("path", "\n  indented\n\n", "\n  indented\n\n"),
        ("path", "", ""),
        ("path", "a</parameter>b", "a</parameter>b"),
        ("path", "</function>\n</tool_call>", "</function>\n</tool_call>"),
        ("path", "<parameter=count>\n1\n", "<parameter=count>\n1\n"),
        ("path", "<tool_call>", "<tool_call>"),
        ("path", "</parameter>" + " " * 65 + "</function>", "</parameter>" + " " * 65 + "</function>"),
        ("count", "5", 5),
        ("count", "five", "five"),
        ("deep", '{"a": [1, null]}', {"a": [1, None]}),
        ("flag", "true", True),
        ("flag", "True", True),
        ("flag", "null", None),
        ("note", "null", None),
        ("note", "5", "5"),
        ("any", "5", "5"),
        ("unknown", "5", "5"),
    ],
)
def test_values_are_text_unless_the_schema_asks_for_json(name: str, text: str, value: object) -> None:
    _, answer = parse(qwen3_coder.FAMILY, xml(**{name: text}))
    assert calls(answer) == [("write", {name: value})]
    assert answer.message.content == ""


def test_a_value_that_is_not_what_the_schema_asks_for_is_a_defect() -> None:
    _, answer = parse(qwen3_coder.FAMILY, xml(count="five"))
    assert "'five' is not of type 'integer'" in answer.message.tool_calls[0].defect


def test_an_xml_call_without_parameters() -> None:
    _, answer = parse(qwen3_coder.FAMILY, xml("run_tests"))
    assert calls(answer) == [("run_tests", {})]


def test_an_xml_call_on_one_line() -> None:
    text = "<tool_call><function=write><parameter=path>x</parameter></function></tool_call>"
    _, answer = parse(qwen3_coder.FAMILY, text)
    assert calls(answer) == [("write", {"path": "x"})]


@pytest.mark.parametrize("end", ["", "\n", "\n</tool_"])
def test_at_the_end_a_complete_xml_call_needs_no_marker(end: str) -> None:
    _, answer = parse(qwen3_coder.FAMILY, xml(path="x").removesuffix("\n</tool_call>") + end)
    assert calls(answer) == [("write", {"path": "x"})]
    assert answer.malformed_tool_calls == 0


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call>",
        "<tool_call>\nread_file(a.py)\n</tool_call>",
        '<tool_call>{"name": "write", "arguments": {}}</tool_call>',
        "<tool_call>\n<function=write>\n<parameter=path>\nx\n</parameter>\n",
        "<tool_call>\n<function=write>\n<parameter=path>\nx",
        "<tool_call>\n<function=write>\nx\n</function>\n</tool_call>",
        "<tool_call>\n<function=write>\n<parameter=path>x</parameter>y</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=write>\n</tool_call>",
        xml(path="x").replace("</function>", "<parameter=path>\ny\n</parameter>\n</function>"),
    ],
)
def test_what_is_no_xml_call_stays_text_and_is_counted(broken: str) -> None:
    _, answer = parse(qwen3_coder.FAMILY, f"A\n{broken}")
    assert answer.message.content == f"A\n{broken}"
    assert (answer.malformed_tool_calls, answer.message.tool_calls) == (1, ())


def test_an_xml_call_inside_reasoning_that_never_ends_counts() -> None:
    _, answer = parse(qwen3_coder.REASONING, f"<think>\nI could {xml(path='x')}")
    assert (answer.message.reasoning, answer.message.content) == ("I could", "")
    assert calls(answer) == [("write", {"path": "x"})]


# -- Llama --------------------------------------------------------------------------------------------------------

ONE = '{"name": "read_file", "parameters": {"path": "a.py"}}'
TWO = '{"type": "function", "name": "write", "arguments": {"path": "}{\\""}}'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (ONE, ["read_file"]),
        (f"<|python_tag|>{ONE}", ["read_file"]),
        (f"\n {ONE}\n", ["read_file"]),
        (f"{ONE}; {TWO}", ["read_file", "write"]),
        (f"{ONE}\n{TWO}", ["read_file", "write"]),
        ('<|python_tag|>{"name": "unknown", "parameters": {}}', ["unknown"]),
    ],
)
def test_an_answer_of_json_calls(text: str, names: list[str]) -> None:
    events, answer = parse(llama3.FAMILY, text)
    assert [call.tool_name for call in answer.message.tool_calls] == names
    assert (answer.message.content, answer.malformed_tool_calls) == ("", 0)
    assert [event.tool_call for event in events if isinstance(event, ToolCallEvent)] == list(
        answer.message.tool_calls
    )


@pytest.mark.parametrize(
    ("text", "malformed"),
    [
        (f"{ONE} is what I would call.", 1),
        (f"I call {ONE}", 0),
        ('{"name": "Bob", "parameters": {}}', 0),
        ('{"name": "Bob", "age": 5}', 0),
        ('{"answer": 42}', 0),
        ("{}", 0),
        ("{", 0),
        (ONE[:-1], 1),
        ('{"name": "read_file", "parameters": [1]}', 1),
        ('{"name": "read_file", "parameters": {"path": "a"}, "arguments": {"path": "b"}}', 1),
        ("<|python_tag|>print(1)", 1),
        ("<|python", 0),
        (f'{ONE};{{"name": "unknown", "parameters": {{}}}}', 1),
    ],
)
def test_anything_else_than_json_calls_is_text(text: str, malformed: int) -> None:
    _, answer = parse(llama3.FAMILY, text)
    assert (answer.message.content, answer.message.tool_calls) == (text, ())
    assert answer.malformed_tool_calls == malformed


def test_text_and_json_that_can_be_no_call_are_streamed() -> None:
    parser = make(llama3.FAMILY)
    assert parser.feed(b"Hi") == [TextDelta("Hi")]
    parser = make(llama3.FAMILY)
    assert parser.feed(b'{"na') == []
    assert parser.feed(b'ked": 1') == [TextDelta('{"naked": 1')]


# -- harmony ------------------------------------------------------------------------------------------------------

THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Done."
CALLED = '<|start|>assistant<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{"path": "a"}'


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "names"),
    [
        (THOUGHT + FINAL, "Hm.", "Done.", []),
        (FINAL.removeprefix("<|start|>assistant"), "", "Done.", []),
        (THOUGHT + CALLED + "<|call|>", "Hm.", "", ["read_file"]),
        (THOUGHT + CALLED, "Hm.", "", ["read_file"]),
        (THOUGHT + CALLED + "<|end|>" + CALLED, "Hm.", "", ["read_file", "read_file"]),
        (
            ' to=functions.read_file<|channel|>commentary json<|message|>{"path": "a"}<|call|>',
            "",
            "",
            ["read_file"],
        ),
        (
            '<|channel|>analysis to=functions.read_file code<|message|>{"path": "a"}<|call|>',
            "",
            "",
            ["read_file"],
        ),
        (
            "<|channel|>commentary<|message|>I look.<|end|>" + CALLED + "<|call|>",
            "",
            "I look.",
            ["read_file"],
        ),
        (THOUGHT + "<|start|>assistant" + THOUGHT + FINAL, "Hm.\nHm.", "Done.", []),
        ("<|channel|>analysis<|message|>Hm", "Hm", "", []),
        (THOUGHT, "Hm.", "", []),
        (THOUGHT + "<|start|>assis", "Hm.", "", []),
    ],
)
def test_channels_of_harmony(text: str, reasoning: str, content: str, names: list[str]) -> None:
    _, answer = parse(gpt_oss.FAMILY, text)
    assert (answer.message.reasoning, answer.message.content) == (reasoning, content)
    assert [call.tool_name for call in answer.message.tool_calls] == names
    assert answer.malformed_tool_calls == 0


NO_CALLS = [
    CALLED.replace("read_file", ""),
    CALLED.replace('"a"', "NaN"),
    CALLED.replace('"a"', '"\\ud83d"'),
]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (CALLED[:-1], CALLED[:-1]),
        (CALLED.replace('{"path": "a"}', "[1]"), CALLED.replace('{"path": "a"}', "[1]")),
        ("Just text.", "Just text."),
        ("<|channel|>python to=python<|message|>print(1)", "<|channel|>python to=python<|message|>print(1)"),
        ("<|channel|>other<|message|>x", "<|channel|>other<|message|>x"),
        ("x" * 2000, "x" * 2000),
        (" " * 900 + "x<|message|>y", " " * 900 + "x<|message|>y"),
        *((text, text) for text in NO_CALLS),
    ],
)
def test_what_harmony_does_not_know_stays_text_and_is_counted(text: str, content: str) -> None:
    _, answer = parse(gpt_oss.FAMILY, text)
    assert (answer.message.content, answer.message.tool_calls) == (content, ())
    assert answer.malformed_tool_calls == 1


def test_without_tools_a_harmony_call_is_text() -> None:
    _, answer = parse(gpt_oss.FAMILY, CALLED + "<|call|>", ())
    assert answer.message.tool_calls == ()
    assert '{"path": "a"}' in answer.message.content


# -- every family -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family.name))
@given(st.text(st.sampled_from('<|>/=_{}"\\: \nabcfnt漢'), max_size=60))
def test_plain_text_comes_through_unchanged(family: Family, text: str) -> None:
    _, answer = parse(family, text, (READ,))
    if family is gpt_oss.FAMILY:
        assert answer.message.content in {text, ""}
        assert answer.message.content or not text.strip() or "<|start|>assistant".startswith(text.strip())
    else:
        assert answer.message.content == text
