"""Conversations that a careless client sends again, as they were and edited."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from tests.transcript.conversations import assistant, result, user

from paceline.transcript.fingerprint import trail_of
from paceline.transcript.matching import match
from paceline.workflow.model import Message, ReuseBreak, Role, Step, StepState, ToolCall

NEW = user("Good.")
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SAID = TEXT.map(str.strip)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.lists(st.dictionaries(TEXT, VALUE, max_size=3), max_size=3)


@dataclass(frozen=True, slots=True)
class Resend:
    """Stored steps, and the conversation that is sent after them."""

    steps: list[Step]
    conversation: list[Message]
    edited: int | None = None
    """Which message is not the stored one."""


@st.composite
def stored_steps(draw: st.DrawFn) -> list[Step]:
    """A conversation of one to five steps, with parallel calls and their results."""
    steps: list[Step] = []
    calls: list[ToolCall] = []
    for number in range(draw(st.integers(1, 5))):
        said = [result(draw(TEXT), one.tool_call_id) for one in draw(st.permutations(calls))]
        if not said or draw(st.booleans()):
            said.append(user(draw(TEXT) + "?"))
        made = [json.dumps(arguments) for arguments in draw(ARGUMENTS)]
        calls = [ToolCall(f"call_{number}_{at}", "tool", text) for at, text in enumerate(made)]
        answer = assistant(draw(SAID), *calls, reasoning=draw(SAID))
        steps.append(
            Step(
                f"step {number}",
                "workflow",
                "tenant",
                "request",
                "hash",
                StepState.FINISHED,
                tuple(said),
                output=answer,
            )
        )
    return steps


def resent(draw: Any, steps: list[Step]) -> list[Message]:
    """The conversation of steps as a careless client sends it again."""
    messages: list[Message] = []
    calls: tuple[ToolCall, ...] = ()
    ids: dict[str, str] = {}
    for one in steps:
        results = [message for message in one.input if message.role is Role.TOOL]
        if not all(ids.values()):  # without ids, the order tells which call each answers
            order = [each.tool_call_id for each in calls]
            results.sort(key=lambda message: order.index(message.tool_call_id))
        elif draw(st.booleans()):
            results = draw(st.permutations(results))
        messages += [replace(message, tool_call_id=ids[message.tool_call_id]) for message in results]
        messages += [message for message in one.input if message.role is Role.USER]
        assert one.output
        calls = one.output.tool_calls
        prefix = draw(st.sampled_from(["call_", "toolu_", "x", None]))
        ids = {each.tool_call_id: f"{prefix}{at}" if prefix else "" for at, each in enumerate(calls)}
        messages.append(said_again(draw, one.output, ids))
    return messages


def said_again(draw: Any, answer: Message, ids: dict[str, str]) -> Message:
    """An answer as a client sends it back, with other ids of its calls."""
    space = draw(st.sampled_from(["", " ", "\n\n"]))
    calls = answer.tool_calls
    return replace(
        answer,
        content=space + answer.content + space,
        reasoning=answer.reasoning if draw(st.booleans()) else "",
        tool_calls=tuple(
            ToolCall(ids[each.tool_call_id], each.tool_name, redumped(draw, each.arguments_json)) for each in calls
        ),
    )


def redumped(draw: Any, text: str) -> str:
    """The same JSON in another layout."""
    value = json.loads(text)
    keys = draw(st.permutations(list(value)))
    indent = draw(st.sampled_from([None, 1, 4]))
    return json.dumps({key: value[key] for key in keys}, indent=indent, ensure_ascii=draw(st.booleans()))


@st.composite
def resends(draw: st.DrawFn) -> Resend:
    """A conversation that is sent again, with one new message."""
    steps = draw(stored_steps())
    return Resend(steps, [*resent(draw, steps), NEW])


@st.composite
def edits(draw: st.DrawFn) -> Resend:
    """The same with one message edited."""
    steps = draw(stored_steps())
    conversation = [*resent(draw, steps), NEW]
    at = draw(st.integers(0, len(conversation) - 2))
    conversation[at] = edited(draw, conversation[at])
    return Resend(steps, conversation, at)


def edited(draw: Any, message: Message) -> Message:
    """A message that means something else."""
    if message.role is not Role.ASSISTANT:
        added = draw(st.sampled_from([" ", "\n", "x", "\0"]))
        return replace(message, content=draw(st.sampled_from([message.content + added, added + message.content])))
    way = draw(st.sampled_from(["content", "reasoning", "call", "name", "arguments"]))
    if way == "content":
        return replace(message, content=message.content + ".")
    if way == "reasoning":
        return replace(message, reasoning=message.reasoning + ".")
    if way == "call" or not message.tool_calls:
        return replace(message, tool_calls=(*message.tool_calls, ToolCall("more", "tool", "{}")))
    *others, last = message.tool_calls
    if way == "name":
        return replace(message, tool_calls=(*others, replace(last, tool_name="other")))
    value = json.loads(last.arguments_json)
    value[draw(st.sampled_from(["new", *value]))] = "other value"
    return replace(message, tool_calls=(*others, replace(last, arguments_json=json.dumps(value))))


def check_resend(case: Resend) -> None:
    """It continues the last step."""
    found = match(case.conversation, trail_of(case.steps), "")
    assert (found.break_reason, found.break_message) == (None, None)
    assert (found.parent_step_id, found.new_messages) == (case.steps[-1].step_id, (NEW,))


def check_edit(case: Resend) -> None:
    """It breaks at the edited message, and continues the last step before it."""
    assert case.edited is not None
    found = match(case.conversation, trail_of(case.steps), "")
    lengths = [len(one.input) + 1 for one in case.steps]
    whole = [number for number in range(len(case.steps)) if sum(lengths[: number + 1]) <= case.edited]
    assert (found.break_reason, found.break_message) == (ReuseBreak.EDITED_HISTORY, case.edited)
    assert found.parent_step_id == (case.steps[whole[-1]].step_id if whole else None)
    assert found.new_messages == tuple(case.conversation[sum(lengths[: len(whole)]) :])
