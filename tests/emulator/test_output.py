"""Where an output ends, and its text."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.emulator.output import Limits, Plan, plan_output
from paceline.transcript.builtin import TURN_END, builtin_tokenizer

TOKENIZER = builtin_tokenizer()
END: int = TOKENIZER.token_to_id(TURN_END)  # type: ignore[assignment]  # a special token of it


def plan(reply: str, max_tokens: int = 100, **limits: Any) -> Plan:
    ids = TOKENIZER.encode(reply).ids
    return plan_output(ids, Limits(max_tokens, END, **limits), TOKENIZER, lambda count: [ord("x")] * count)


def test_a_reply_ends_with_the_end_id() -> None:
    result = plan("héllo")
    assert result.ids == [*"héllo".encode(), END]
    assert (result.finish_reason, result.stop_reason) == ("stop", None)
    assert "".join(result.texts) == "héllo"
    assert len(result.texts) == len(result.ids)


def test_special_tokens_are_shown_on_request() -> None:
    assert "".join(plan("a", skip_special_tokens=False).texts) == "a" + TURN_END


def test_max_tokens_cuts_and_the_rest_stays_known() -> None:
    result = plan("hello", 3)
    assert (result.ids, result.finish_reason) == ([*b"hel"], "length")
    assert result.upcoming == [*b"hello", END]


@pytest.mark.parametrize(("limit", "reason"), [(5, "length"), (6, "stop")])
def test_the_end_id_counts_as_a_token(limit: int, reason: str) -> None:
    assert plan("hello", limit).finish_reason == reason


def test_a_stop_id_ends_the_output_and_is_named() -> None:
    result = plan("hello", stop_ids=frozenset({ord("l")}))
    assert (result.ids, result.finish_reason, result.stop_reason) == ([*b"hel"], "stop", ord("l"))


def test_min_tokens_goes_on_with_filler() -> None:
    result = plan("hi", min_tokens=5, stop_ids=frozenset({ord("h")}))
    assert result.ids == [*b"hixxx", END]


def test_ignoring_the_end_runs_to_the_limit() -> None:
    assert plan("hi", 6, ignore_end=True).ids == [*b"hixxxx"]


def test_a_stop_text_is_left_out_of_the_text_but_its_ids_are_there() -> None:
    result = plan("one two three", stop_texts=("two", "three"))
    assert "".join(result.texts) == "one "
    assert result.ids == [*b"one two"]
    assert (result.finish_reason, result.stop_reason) == ("stop", "two")
