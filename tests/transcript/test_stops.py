"""Stop texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transcript.conversations import READ

from paceline.transcript.chat import ChatModel
from paceline.transcript.stops import StopFilter, held_back
from paceline.workflow.events import TextDelta


@pytest.mark.parametrize(
    ("text", "markers", "length"),
    [
        ("ab<", ("<x>",), 1),
        ("b<x", ("<x>",), 2),
        ("b<x>", ("<x>",), 0),
        ("ab", ("abc", "bd"), 2),
        ("", ("a",), 0),
    ],
)
def test_what_may_become_a_marker_is_held_back(text: str, markers: tuple[str, ...], length: int) -> None:
    assert held_back(text, markers) == length


@given(
    st.lists(st.text(alphabet="ab", max_size=4), max_size=12),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_first_stop_cuts_and_nothing_else_is_lost(pieces: list[str], stops: list[str]) -> None:
    whole, stop_filter, released = "".join(pieces), StopFilter(stops), ""
    for index, piece in enumerate(pieces):
        released += stop_filter.feed(piece, index)
        if stop_filter.kept_ids is not None:
            break
    starts = [whole.find(stop) for stop in stops if stop in whole]
    if not starts:
        assert released + stop_filter.flush() == whole
        assert stop_filter.kept_ids is None
        return
    kept = stop_filter.kept_ids
    assert kept is not None
    assert whole.startswith(released)
    assert any(whole.startswith(stop, len(released)) for stop in stops)
    assert len("".join(pieces[:kept])) <= len(released) < len("".join(pieces[: kept + 1]))


async def test_a_stop_may_begin_inside_a_token(model: ChatModel) -> None:
    parser = model.parser((), stop=("lo wo",))
    ids = model.tokenizer.encode_now("Say hello world")
    events = [event for token_id in ids for event in parser.feed([token_id])]
    answer = parser.finish()
    assert answer.message.content == "Say hel"
    assert "".join(event.text for event in [*events, *answer.events] if isinstance(event, TextDelta)) == "Say hel"
    assert parser.stopped
    kept = model.tokenizer.decode(ids[: parser.kept_ids])
    assert kept == ("Say hel" if len(ids) == 15 else "Say")


async def test_what_follows_a_stop_is_ignored(emulated: ChatModel) -> None:
    parser = emulated.parser((), stop=("END", "NEVER"))
    ids = emulated.tokenizer.encode_now("one END two END")
    assert parser.feed(ids) == [TextDelta("one")]
    assert parser.feed(ids) == []
    answer = parser.finish()
    assert (answer.message.content, parser.kept_ids) == ("one ", 4)


async def test_a_stop_that_does_not_come_holds_nothing_back_at_the_end(emulated: ChatModel) -> None:
    parser = emulated.parser((), stop=("END",))
    ids = [*emulated.tokenizer.encode_now("one EN"), 0xE6, emulated.closing_ids[0]]
    parser.feed(ids)
    assert parser.finish().message.content == "one EN\ufffd"
    assert not parser.stopped
    assert parser.kept_ids == len(ids)


async def test_a_stop_inside_a_tool_call_leaves_the_text(emulated: ChatModel) -> None:
    parser = emulated.parser([READ], stop=("STOP",))
    parser.feed(emulated.tokenizer.encode_now('<tool_call>{"name": "STOP"'))
    answer = parser.finish()
    assert answer.message.content == '<tool_call>{"name": "'
    assert answer.malformed_tool_calls == 1
