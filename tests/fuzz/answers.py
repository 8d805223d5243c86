"""Answers in every family's syntax, whole and broken: what a parser must do with each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle
from typing import Any

from hypothesis import strategies as st
from tests.transcript.conversations import TOOLS

from paceline.transcript.families import gpt_oss, llama3, plain, qwen2_5, qwen3, qwen3_coder
from paceline.transcript.families.base import Family
from paceline.transcript.parsing import Answer, OutputParser
from paceline.transcript.pieces import OutputEvent, Splitter
from paceline.transcript.tokenizer import load_tokenizer
from paceline.workflow.events import ReasoningDelta, TextDelta, ToolCallEvent
from paceline.workflow.model import Message, Tool

TOKENIZER = load_tokenizer("emulated")
END, REPLACED = 258, 256
ENDS = {END: 1, REPLACED: 0}
"""Ids that end an answer, and whether they stay in the transcript."""
WRITE = Tool(
    "write",
    parameters_json=json.dumps(
        {
            "properties": {
                "path": {"type": "string"},
                "count": {"type": "integer"},
                "deep": {"type": "object"},
                "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            },
            "additionalProperties": {"type": ["string", "array"]},
        }
    ),
)
ALL = (*TOOLS, WRITE)
WORD = "§"
"""Becomes another word at each place: w0z, w1z, ..."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The parser of one family after one kind of prompt."""

    name: str
    family: Family
    reasoning_open: bool = False

    def parser(self, case: Case) -> OutputParser:
        """A parser over the built-in tokenizer, whose ids are bytes and a few markers."""
        return OutputParser(
            TOKENIZER.stream(),
            end_ids=tuple(ENDS),
            closing_ids=(END,),
            family=self.family,
            tools=case.tools,
            stop=case.stop,
            reasoning_open=self.reasoning_open,
        )

    def splitter(self, case: Case) -> Splitter:
        """What the parser is made of, for text instead of ids."""
        return self.family.splitter(case.tools, self.reasoning_open)


READERS = [
    Reader("plain", plain.FAMILY),
    Reader("reasoning", plain.REASONING),
    Reader("qwen2.5", qwen2_5.FAMILY),
    Reader("qwen3", qwen3.FAMILY),
    Reader("qwen3-open", qwen3.FAMILY, True),
    Reader("qwen3-coder", qwen3_coder.FAMILY),
    Reader("qwen3.5-open", qwen3_coder.REASONING, True),
    Reader("llama3", llama3.FAMILY),
    Reader("gpt-oss", gpt_oss.FAMILY),
]


@dataclass(frozen=True, slots=True)
class Case:
    """What a model generates, and how it comes."""

    pieces: tuple[str, ...]
    spelled: bool
    """Whether markers come byte by byte, not as one token."""
    noise: tuple[tuple[int, int], ...]
    """Other ids between, with their places."""
    sizes: tuple[int, ...]
    """Of chunks, again and again."""
    stop: tuple[str, ...]
    tools: tuple[Tool, ...]

    @property
    def ids(self) -> list[int]:
        """What is generated."""
        number = count()
        text = re.sub(WORD, lambda _: f"w{next(number)}z", "".join(self.pieces))
        ids = list(text.encode()) if self.spelled else TOKENIZER.encode_now(text)
        for place, token_id in self.noise:
            ids.insert(place % (len(ids) + 1), token_id)
        return ids


# -- what is generated --------------------------------------------------------------------------------------------

MARKERS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<function=write>", "</function>", "<|python_tag|>"),
    *(
        "<parameter=path>",
        "<parameter=count>",
        "<parameter=deep>",
        "</parameter>",
        "<tool_call>\n",
        "<tool_",
        "</thi",
    ),
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>", "<|start|>assistant"),
    *(
        "<tool_",
        "</thi",
        "assistant",
        "analysis",
        "final",
        "commentary",
        " to=functions.write",
        " to=functions.",
        " to=python",
    ),
)
JUNK = (
    *("\n", " ", "\t", "<", "</", "<|", "|>", ">", '"', "\\", "{", "}", "[", "]", ";", ",", ":", "=", "NaN"),
    *("é", "漢", "🚲", "e\u0301", "\u202e", "\0", "\u2028", "\ufffd", "\ufeff", "\\ud83d", '\\"', "\\u0000"),
    *(" " * 70, "\n" * 9, "[" * 40, '{"a":' * 40, "}" * 40, "9" * 40),
)
texts = st.text(st.characters(codec="utf-8") | st.sampled_from('<>|/"\\{}\n '), max_size=6)
words = st.sampled_from([WORD, f"{WORD} {WORD}", f"\n{WORD}\n", f"a {WORD}.", *MARKERS, *JUNK]) | texts
names = st.sampled_from(["read_file", "write", "write", "run_tests", WORD, "", "é", "a b"])
keys = st.sampled_from([*["path", "count", "deep", "flag", WORD] * 3, "", "\ud83d", "é"]) | texts
values = st.recursive(
    st.sampled_from([None, True, 5, -0.0, 1e300, 10**30]) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2),
    max_leaves=3,
)
arguments = st.dictionaries(keys, values, max_size=3)


MARKED = ("<tool_call>{}</tool_call>", "<tool_call>\n{}\n</tool_call>\n", "{}")
BARE = ("{}", "{}; ", "{};\n", "<|python_tag|>{}")


@st.composite
def json_calls(draw: st.DrawFn, around: Sequence[str] = MARKED) -> str:
    """A call as Qwen and Llama write it, between markers or bare."""
    name, given, escaped = draw(names), draw(arguments), draw(st.booleans())
    key = draw(st.sampled_from(["arguments", "arguments", "arguments", "parameters", "other"]))
    indent = draw(st.sampled_from([None, 1]))
    call = json.dumps({"name": name, key: given}, ensure_ascii=escaped, indent=indent)
    if "\ud83d" in call:
        call = json.dumps({"name": name, key: given})
    return draw(st.sampled_from(around)).replace("{}", call)


@st.composite
def xml_calls(draw: st.DrawFn) -> str:
    """A call as Qwen3-Coder writes it."""
    space = draw(st.sampled_from(["\n", "", "\n\n"]))
    parts = [
        f"<parameter={key}>{space}{draw(words | values.map(shown))}{space}</parameter>{space}"
        for key in draw(st.lists(keys.filter(lambda key: key != "\ud83d"), max_size=3))
    ]
    return f"<tool_call>{space}<function={draw(names)}>{space}{''.join(parts)}</function>{space}</tool_call>"


def shown(value: Any) -> str:
    """A value as a model writes it."""
    return json.dumps(value)


@st.composite
def harmony_messages(draw: st.DrawFn) -> str:
    """A message as gpt-oss writes it, or nearly."""
    start = draw(st.sampled_from([*["<|start|>assistant"] * 4, "", "<|start|>"]))
    kind = draw(st.sampled_from(["", " <|constrain|>json", " json", f"<|constrain|>{WORD}"]))
    end = draw(st.sampled_from([*["<|end|>", "<|call|>"] * 4, "", "<|return|>"]))
    if draw(st.booleans()):
        to = draw(st.sampled_from([*[" to=functions.{}"] * 7, " to={}"])).format(draw(names))
        channel, body = draw(st.sampled_from([*["commentary"] * 4, "analysis", ""])), draw(arguments.map(shown))
    else:
        to, body = "", draw(words)
        channel = draw(st.sampled_from([*["analysis", "final", "commentary"] * 3, WORD]))
    header = draw(st.sampled_from([f"{to}<|channel|>{channel}{kind}", f"<|channel|>{channel}{to}{kind}"]))
    return f"{start}{header}<|message|>{body}{end}"


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[str]) -> str:
    """A text, perhaps cut, or with something put in or left out."""
    text = draw(whole)
    at = draw(st.integers(0, len(text)))
    way = draw(st.sampled_from(["", "", "cut", "put in", "leave out"]))
    if way == "cut":
        return text[:at]
    if way == "put in":
        return text[:at] + draw(words) + text[at:]
    return text[:at] + text[at + 1 :] if way == "leave out" else text


STYLES: dict[str, st.SearchStrategy[str]] = {
    "plain": json_calls(),
    "reasoning": json_calls(),
    "qwen2.5": json_calls(),
    "qwen3": json_calls() | st.just(f"<think>{WORD}</think>"),
    "qwen3-open": json_calls() | st.just(f"{WORD}</think>"),
    "qwen3-coder": xml_calls(),
    "qwen3.5-open": xml_calls() | st.just(f"{WORD}</think>"),
    "llama3": json_calls(BARE),
    "gpt-oss": harmony_messages(),
}
noise = st.tuples(st.integers(0, 10**4), st.integers(0, 400) | st.sampled_from([END, REPLACED, 0xC3, 0xF0, 0x9F]))


def cases(reader: Reader) -> st.SearchStrategy[Case]:
    """What a model of the reader's family may generate."""
    style = STYLES[reader.name]
    return st.builds(
        Case,
        pieces=(st.lists(style, max_size=3) | st.lists(style | damaged(style) | words, max_size=6)).map(tuple),
        spelled=st.booleans(),
        noise=st.just(()) | st.just(()) | st.lists(noise, max_size=3).map(tuple),
        sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
        stop=st.just(()) | st.just(()) | st.lists(stops, min_size=1, max_size=3).map(tuple),
        tools=st.sampled_from([ALL, ALL, ALL, (), TOOLS[:1]]),
    )


stops = st.sampled_from(["\n\n", "</", "w1z", "z\n", "é", "<tool_call>", "}", "|>", "\0", "> "]) | texts.filter(
    bool
)

# -- what is read -------------------------------------------------------------------------------------------------


def check(reader: Reader, case: Case) -> None:
    """Read the answer in several ways: the result is always the same, whole, and fit to be sent."""
    ids = case.ids
    text, kept, stopped = heard(ids, case.stop)
    whole = reader.parser(case)
    expected = read(whole, [ids])
    assert (whole.kept_ids, whole.stopped) == (kept, stopped)
    if stopped and not case.noise:
        assert TOKENIZER.decode([*ids[:kept], *expected.retokenized]) == text
    parser = reader.parser(case)
    assert compared(read(parser, chunks(ids, case.sizes))) == compared(expected)
    assert (parser.kept_ids, parser.stopped) == (kept, stopped)
    for parts in ([text], list(chunks(text, case.sizes))):
        splitter = reader.splitter(case)
        for part in parts:
            splitter.feed(part)
        splitter.finish(stopped)
        assert (splitter.pieces.text, splitter.pieces.reasoning) == (
            expected.message.content,
            expected.message.reasoning,
        )
        assert splitter.pieces.malformed == expected.malformed_tool_calls
        assert [bare(call) for call in splitter.pieces.tool_calls] == [
            bare(c) for c in expected.message.tool_calls
        ]
    check_message(reader, text, expected.message)


def heard(ids: Sequence[int], stop: Sequence[str]) -> tuple[str, int, bool]:
    """The text up to a stop, how many ids are kept, and whether there was a stop: in the simplest way."""
    stream, text = TOKENIZER.stream(), ""
    places: list[int] = []
    """For each character, how many ids come before its piece."""
    taken = begun = 0
    for token_id in [*ids, None]:
        ended = token_id is None or token_id in ENDS
        piece = stream.flush() if token_id is None or token_id in ENDS else stream.step(token_id)
        taken += not ended
        text += piece
        places += [begun] * len(piece)
        begun = taken if piece else begun
        if starts := [start for each in stop if (start := text.find(each)) >= 0]:
            return text[: min(starts)], places[min(starts)], True
        if token_id is None or token_id in ENDS:
            return text, taken + ENDS.get(token_id or 0, 0), False
    raise AssertionError


def chunks(whole: Any, sizes: Sequence[int]) -> Iterator[Any]:
    """Cut something into parts."""
    at = 0
    for size in cycle(sizes):
        if at >= len(whole):
            return
        yield whole[at : at + size]
        at += size


def read(parser: OutputParser, parts: Any) -> Answer:
    """Parse the parts. The events are the message."""
    events: list[OutputEvent] = [event for part in parts for event in parser.feed(part)]
    answer = parser.finish()
    events += answer.events
    assert all(event.text for event in events if not isinstance(event, ToolCallEvent))
    message = answer.message
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == message.content
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == message.reasoning
    assert tuple(event.tool_call for event in events if isinstance(event, ToolCallEvent)) == message.tool_calls
    return answer


def bare(call: Any) -> Any:
    """A call without its random id."""
    return replace(call, tool_call_id="")


def compared(answer: Answer) -> Answer:
    """What is the same however the ids come."""
    message = replace(answer.message, tool_calls=tuple(map(bare, answer.message.tool_calls)))
    return replace(answer, message=message, events=[])


def check_message(reader: Reader, text: str, message: Message) -> None:
    """Nothing is lost, nothing is invented, and the calls can be sent and run."""
    said = [message.content, message.reasoning]
    called = [part for call in message.tool_calls for part in (call.tool_name, call.arguments_json)]
    dropped = set(re.findall(r"w\d+z", "".join(re.findall(r"<\|(?:channel|constrain)\|>\s*[^\s<]*", text))))
    for word in set(re.findall(r"w\d+z", text)) - (dropped if reader.family is gpt_oss.FAMILY else set()):
        assert "\n".join([*said, *called]).count(word) == 1, f"{word} is lost or comes twice"
    for part in said:
        left = iter(visible(text))
        assert all(character in left for character in visible(part)), "a text that was not generated"
    if not message.tool_calls and reader.family is not gpt_oss.FAMILY:
        check_text(reader, text, message)
    for call in message.tool_calls:
        assert call.tool_name
        assert isinstance(json.loads(call.arguments_json, parse_constant=reject), dict)
        if reader.family not in {qwen3_coder.FAMILY, qwen3_coder.REASONING}:
            assert call.arguments_json in text
        f"{call.tool_name}{call.arguments_json}{call.defect}".encode()


def check_text(reader: Reader, text: str, message: Message) -> None:
    """Without calls, everything but the markers of the reasoning is there."""
    opening = reader.family.reasoning_opening
    begun = text.lstrip(" \t\r\n")
    if opening and (reader.reasoning_open or begun.startswith(opening)):
        body = text if reader.reasoning_open else begun.removeprefix(opening)
        reasoning, _, content = body.partition("</think>")
        assert visible(message.reasoning + message.content) == visible(reasoning + content)
    else:
        assert (message.content, message.reasoning) == (text, "")


def visible(text: str) -> str:
    """A text without what may be left out beside markers."""
    return re.sub(r"[ \t\r\n]", "", text)


def reject(constant: str) -> Any:
    """Refuse what Python takes for JSON and others do not."""
    raise AssertionError(f"{constant} is no JSON")


def checker(reader: Reader) -> Callable[[Any], None]:
    """The check of a reader's target."""
    return lambda case: check(reader, case)
