"""Where a resent conversation continues."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.transcript.conversations import assistant, call, result, user

from paceline.errors import InvalidMessage
from paceline.transcript.fingerprint import Trail, agrees, keys_of, takes_long, trail_of
from paceline.transcript.matching import match
from paceline.workflow.model import Message, ReuseBreak, Role, Step, StepState, ToolCall


def step(step_id: str, output: Message, *inputs: Message) -> Step:
    """A finished step."""
    return Step(step_id, "workflow", "tenant", "request", "hash", StepState.FINISHED, inputs, output=output)


CALL = ToolCall("call_a", "read_file", '{"path": "a.py", "lines": [1, 2.0]}')
FIRST, SECOND, THIRD = user("Fix it."), result("x = 1\n", "call_a"), user("And the tests?")
ONE, TWO, THREE = assistant("Reading.\n", CALL, reasoning="First read."), assistant("Fixed."), assistant("Pass.")
STEPS = [step("one", ONE, FIRST), step("two", TWO, SECOND), step("three", THREE, THIRD)]
CHAIN = trail_of(STEPS)
HISTORY = [FIRST, ONE, SECOND, TWO, THIRD, THREE]
NEW = user("Good.")


def test_new_messages_continue_the_last_step() -> None:
    found = match([*HISTORY, NEW], CHAIN, "")
    assert (found.parent_step_id, found.new_messages, found.break_reason) == ("three", (NEW,), None)


@pytest.mark.parametrize(
    "resent",
    [
        assistant("  Reading.", CALL, reasoning="First read."),
        assistant("Reading.", CALL),
        assistant("Reading.", ToolCall("", "read_file", '{"lines":[1,2],"path":"a.py"}')),
        assistant("Reading.", ToolCall("toolu_1", "read_file", CALL.arguments_json)),
    ],
)
def test_an_answer_with_the_same_meaning_keeps_its_ids(resent: Message) -> None:
    found = match([FIRST, resent, *HISTORY[2:], NEW], CHAIN, "")
    assert (found.parent_step_id, found.break_reason) == ("three", None)


@pytest.mark.parametrize(
    "edited",
    [
        assistant("Reading!", CALL),
        assistant("Reading."),
        assistant("Reading.", CALL, CALL),
        assistant("Reading.", CALL, reasoning="Other thoughts."),
        assistant("Reading.", ToolCall("call_a", "write_file", CALL.arguments_json)),
        assistant("Reading.", ToolCall("call_a", "read_file", '{"path": "a.py", "lines": [true, 2]}')),
        assistant("Reading.", ToolCall("call_a", "read_file", "not JSON")),
        user("Reading."),
    ],
)
def test_an_edited_answer_breaks_at_its_step(edited: Message) -> None:
    found = match([FIRST, edited, *HISTORY[2:], NEW], CHAIN, "")
    assert found.parent_step_id is None
    assert found.new_messages == (FIRST, edited, *HISTORY[2:], NEW)
    assert (found.break_reason, found.break_message) == (ReuseBreak.EDITED_HISTORY, 1)


@pytest.mark.parametrize("edited", [result("  x = 1\n", "call_a"), result("x = 1", "call_a"), user("x = 1\n")])
def test_every_character_of_an_input_counts(edited: Message) -> None:
    conversation = [FIRST, ONE, edited, TWO, THIRD, THREE, NEW]
    found = match(conversation, CHAIN, "")
    assert (found.parent_step_id, found.break_reason) == ("one", ReuseBreak.EDITED_HISTORY)
    assert (found.new_messages, found.break_message) == (tuple(conversation[2:]), 2)


def test_a_shorter_conversation_continues_where_it_ends() -> None:
    found = match([FIRST, ONE, SECOND], CHAIN, "")
    assert (found.parent_step_id, found.new_messages) == ("one", (SECOND,))
    assert (found.break_reason, found.break_message) == (ReuseBreak.EDITED_HISTORY, 3)
    again = match([FIRST], CHAIN, "")
    assert (again.parent_step_id, again.new_messages) == (None, (FIRST,))


@pytest.mark.parametrize("conversation", [HISTORY, HISTORY[:2]])
def test_a_conversation_that_ends_with_a_stored_answer_asks_for_nothing(conversation: list[Message]) -> None:
    with pytest.raises(InvalidMessage, match="nothing follows the last answer") as caught:
        match(conversation, CHAIN, "")
    assert caught.value.field == "conversation.messages"


def test_a_first_conversation_is_all_new() -> None:
    system = Message(Role.SYSTEM, "Be brief.")
    found = match([system, FIRST], (), "")
    assert (found.parent_step_id, found.new_messages, found.system) == (None, (FIRST,), "Be brief.")
    assert found.break_reason is None


def test_the_system_prompt_is_compared() -> None:
    system = Message(Role.SYSTEM, "Be brief.")
    assert match([system, *HISTORY, NEW], CHAIN, "Be brief.").parent_step_id == "three"
    assert match([*HISTORY, NEW], CHAIN, "Be brief.").system == "Be brief."
    changed = match([system, *HISTORY, NEW], CHAIN, "Be long.")
    assert (changed.parent_step_id, changed.system) == ("three", "Be brief.")
    assert changed.new_messages == (NEW,)
    assert (changed.break_reason, changed.break_message) == (ReuseBreak.SYSTEM_CHANGED, 0)


def test_arguments_that_are_no_json_are_compared_as_text() -> None:
    deep = "[" * 100_000
    broken, other = ToolCall("1", "x", deep), ToolCall("1", "x", deep + " ")
    assert same(assistant("", broken), assistant("", broken))
    assert not same(assistant("", broken), assistant("", other))
    assert same(assistant("", ToolCall("1", "x", "")), assistant("", ToolCall("2", "x", "{}")))
    assert not same(assistant("", call("a")), assistant("", call("b")))
    huge, larger = ToolCall("1", "x", '{"n": 1e400}'), ToolCall("1", "x", '{"n": 1e999}')
    assert same(assistant("", huge), assistant("", huge))
    assert not same(assistant("", huge), assistant("", larger))


def same(sent: Message, stored: Message) -> bool:
    """Whether one message means the other."""
    return agrees(keys_of([sent]).keys[0], keys_of([stored]).keys[0])


SUMMARY = user("So far: a.py was read and fixed.")


@pytest.mark.parametrize(
    ("conversation", "parent", "at"),
    [
        ([SUMMARY], None, 0),
        ([SUMMARY, NEW], None, 0),
        ([SUMMARY, THREE, NEW], None, 0),  # the end was kept
        ([FIRST, assistant("I did much."), THIRD, THREE, NEW], None, 1),
        ([FIRST, SUMMARY, NEW], None, 1),
        ([*HISTORY[:2], SUMMARY], "one", 2),
    ],
)
def test_fewer_messages_with_a_summary_are_a_compaction(
    conversation: list[Message], parent: str | None, at: int
) -> None:
    found = match(conversation, CHAIN, "")
    assert (found.break_reason, found.break_message) == (ReuseBreak.COMPACTED, at)
    assert (found.parent_step_id, found.new_messages) == (parent, tuple(conversation[2 if parent else 0 :]))


@pytest.mark.parametrize(
    ("conversation", "chain"),
    [
        ([user("Fix it!")], CHAIN[:1]),  # one answer is gone: asked differently
        ([FIRST, ONE, result("x = 2", "call_a")], CHAIN),  # went back to a message of the same role
        ([FIRST, ONE, SECOND], CHAIN),  # only went back
        ([SUMMARY, *HISTORY[1:], NEW], CHAIN),  # as long as what is stored
    ],
)
def test_other_breaks_are_edits(conversation: list[Message], chain: Trail) -> None:
    assert match(conversation, chain, "").break_reason is ReuseBreak.EDITED_HISTORY


A, B = call("a", "call_a"), call("b", "call_b")
PARALLEL = [
    step("one", assistant("", A, B), FIRST),
    step("two", TWO, result("1", "call_a"), result("2", "call_b")),
]


@pytest.mark.parametrize(
    ("results", "fits"),
    [
        ([result("1", "call_a"), result("2", "call_b")], True),
        ([result("2", "call_b"), result("1", "call_a")], True),
        ([result("1", "call_b"), result("2", "call_a")], False),
        ([result("2", "call_a"), result("1", "call_b")], False),
        ([result("1", "call_a")], False),
    ],
)
def test_results_of_parallel_calls_match_by_the_call(results: list[Message], fits: bool) -> None:
    found = match([FIRST, assistant("", A, B), *results, TWO, NEW], trail_of(PARALLEL), "")
    assert found.parent_step_id == ("two" if fits else "one")


@pytest.mark.parametrize("at", [2, 3])
def test_an_edited_result_is_named_where_the_client_put_it(at: int) -> None:
    sent = [FIRST, assistant("", A, B), result("2", "call_b"), result("1", "call_a"), TWO, NEW]
    sent[at] = replace(sent[at], content="other")
    assert match(sent, trail_of(PARALLEL), "").break_message == at


def test_calls_without_ids_are_answered_in_their_order() -> None:
    nameless = assistant("", replace(A, tool_call_id=""), replace(B, tool_call_id=""))
    chain = trail_of(PARALLEL)
    assert match([FIRST, nameless, result("1", ""), result("2", ""), TWO, NEW], chain, "").break_reason is None
    swapped = match([FIRST, nameless, result("2", ""), result("1", ""), TWO, NEW], chain, "")
    assert (swapped.parent_step_id, swapped.break_message) == ("one", 2)


@pytest.mark.parametrize(
    ("messages", "long"),
    [
        ([user("x" * 400_000)], False),
        ([user("x" * 600_000)], True),
        ([assistant("", reasoning="x" * 600_000), user("?")], True),
        ([assistant("", ToolCall("", "t", f'{{"x": "{"y" * 600_000}"}}'))], True),
        ([user("?")] * 500, False),
        ([user("?")] * 2000, True),
        ([assistant("", *[CALL] * 2000)], True),
    ],
)
def test_many_short_messages_take_as_long_as_a_long_text(messages: list[Message], long: bool) -> None:
    assert takes_long(messages) is long
