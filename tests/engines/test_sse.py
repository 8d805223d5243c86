from __future__ import annotations

import orjson
from tests.engines.scripted import recorded_body

from paceline.engines.sse import DONE, EventSplitter, without_echo


def split(*pieces: bytes) -> list[bytes]:
    splitter = EventSplitter()
    return [payload for piece in pieces for payload in splitter.feed(piece)]


def test_a_recorded_stream_splits_the_same_at_every_byte() -> None:
    body = recorded_body("stream_length")
    whole = split(body)
    assert [orjson.loads(payload)["object"] for payload in whole[:-1]] == ["text_completion"] * (len(whole) - 1)
    assert whole[-1] == DONE
    for at in range(len(body) + 1):
        assert split(body[:at], body[at:]) == whole
    assert split(*(body[at : at + 1] for at in range(len(body)))) == whole


def test_comments_blank_lines_and_carriage_returns_are_dropped() -> None:
    assert split(b": ping\n\n: ping\r\n\r\nevent: x\ndata: 1\r\n\r\ndata:2\n\n") == [b"1", b"2"]


def test_an_unfinished_line_is_not_an_event() -> None:
    assert split(b"data: 1") == []


def test_a_long_line_in_many_pieces_costs_linear_time() -> None:
    """Quadratic joining would copy hundreds of gigabytes here and run into the time limit."""
    line = b"data: [" + b"1," * 2_500_000 + b"1]\n"
    (payload,) = split(*(line[at : at + 64] for at in range(0, len(line), 64)))
    assert payload == line[6:-1]


def test_the_echo_is_cut_and_the_rest_kept() -> None:
    echo = b",".join(b"%d" % i for i in range(5000))
    payload = b'{"choices":[{"text":"x","prompt_token_ids":[%s],"token_ids":[7,8]}],"usage":null}' % echo
    assert orjson.loads(without_echo(payload)) == {
        "choices": [{"text": "x", "prompt_token_ids": [], "token_ids": [7, 8]}],
        "usage": None,
    }


def test_text_that_looks_like_an_echo_is_kept() -> None:
    text = '"prompt_token_ids":[1,2,3]' * 100
    payload = orjson.dumps({"choices": [{"text": text, "token_ids": [7]}]})
    assert without_echo(payload) == payload


def test_a_long_payload_without_echo_is_kept() -> None:
    payload = orjson.dumps({"choices": [{"text": "x" * 5000, "prompt_token_ids": None, "token_ids": [7]}]})
    assert without_echo(payload) == payload
