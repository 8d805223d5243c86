"""Where a resent conversation continues."""

from __future__ import annotations

import pytest
from tests.transcript.conversations import assistant, call, result, user

from paceline.errors import InvalidMessage
from paceline.transcript.matching import match, same
from paceline.workflow.model import Message, ReuseBreak, Role, Step, StepState, ToolCall


def step(step_id: str, output: Message, *inputs: Message) -> Step:
    """A finished step."""
    return Step(step_id, "workflow", "tenant", "request", "hash", StepState.FINISHED, inputs, output=output)


CALL = ToolCall("call_a", "read_file", '{"path": "a.py", "lines": [1, 2.0]}')
FIRST, SECOND, THIRD = user("Fix it."), result("x = 1\n", "call_a"), user("And the tests?")
ONE, TWO, THREE = assistant("Reading.\n", CALL, reasoning="First read."), assistant("Fixed."), assistant("Pass.")
CHAIN = [step("one", ONE, FIRST), step("two", TWO, SECOND), step("three", THREE, THIRD)]
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
    assert found.break_reason is ReuseBreak.EDITED_HISTORY


@pytest.mark.parametrize("edited", [result("  x = 1\n", "call_a"), result("x = 1", "call_a"), user("x = 1\n")])
def test_every_character_of_an_input_counts(edited: Message) -> None:
    conversation = [FIRST, ONE, edited, TWO, THIRD, THREE, NEW]
    found = match(conversation, CHAIN, "")
    assert (found.parent_step_id, found.break_reason) == ("one", ReuseBreak.EDITED_HISTORY)
    assert found.new_messages == tuple(conversation[2:])


def test_a_shorter_conversation_continues_where_it_ends() -> None:
    found = match([FIRST, ONE, SECOND], CHAIN, "")
    assert (found.parent_step_id, found.new_messages) == ("one", (SECOND,))
    assert found.break_reason is ReuseBreak.EDITED_HISTORY
    again = match([FIRST], CHAIN, "")
    assert (again.parent_step_id, again.new_messages) == (None, (FIRST,))


@pytest.mark.parametrize("conversation", [HISTORY, HISTORY[:2]])
def test_a_conversation_that_ends_with_a_stored_answer_asks_for_nothing(conversation: list[Message]) -> None:
    with pytest.raises(InvalidMessage, match="nothing follows the last answer") as caught:
        match(conversation, CHAIN, "")
    assert caught.value.field == "conversation.messages"


def test_a_first_conversation_is_all_new() -> None:
    system = Message(Role.SYSTEM, "Be brief.")
    found = match([system, FIRST], [], "")
    assert (found.parent_step_id, found.new_messages, found.system) == (None, (FIRST,), "Be brief.")
    assert found.break_reason is None


def test_the_system_prompt_is_compared() -> None:
    system = Message(Role.SYSTEM, "Be brief.")
    assert match([system, *HISTORY, NEW], CHAIN, "Be brief.").parent_step_id == "three"
    assert match([*HISTORY, NEW], CHAIN, "Be brief.").system == "Be brief."
    changed = match([system, *HISTORY, NEW], CHAIN, "Be long.")
    assert (changed.parent_step_id, changed.system) == (None, "Be brief.")
    assert changed.new_messages == (*HISTORY, NEW)
    assert changed.break_reason is ReuseBreak.SYSTEM_CHANGED


def test_arguments_that_are_no_json_are_compared_as_text() -> None:
    deep = "[" * 100_000
    broken, other = ToolCall("1", "x", deep), ToolCall("1", "x", deep + " ")
    assert same(assistant("", broken), assistant("", broken))
    assert not same(assistant("", broken), assistant("", other))
    assert same(assistant("", ToolCall("1", "x", "")), assistant("", ToolCall("2", "x", "{}")))
    assert not same(assistant("", call("a")), assistant("", call("b")))
