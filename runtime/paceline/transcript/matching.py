"""Finds where a client that resends the whole conversation continues the stored transcript."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidMessage
from paceline.workflow.model import Message, ReuseBreak, Role, Step, ToolCall


@dataclass(frozen=True, slots=True)
class Match:
    """Where a conversation continues: after `parent_step_id`, with `new_messages`; None renders it in full."""

    parent_step_id: str | None
    new_messages: tuple[Message, ...]
    system: str
    """The system prompt in force: the conversation's own, else the one that was."""
    break_reason: ReuseBreak | None = None
    """Why the conversation does not continue the last step of the chain."""


def match(conversation: Sequence[Message], chain: Sequence[Step], system: str) -> Match:
    """Compare a conversation with a stored chain, root first, message by message.

    It continues the deepest step whose whole input and answer it begins with. An answer is the same if it means
    the same (see `same`), so that it keeps its generated ids. A leading system message is the system prompt:
    another one than `system`, the one in force, renders everything again. Raises `InvalidMessage` when nothing
    follows the matched answers: a conversation that ends with one asks for nothing.
    """
    messages = tuple(conversation)
    if messages and messages[0].role is Role.SYSTEM:
        given, messages = messages[0].content, messages[1:]
        if chain and given != system:
            return Match(None, _some(messages), given, ReuseBreak.SYSTEM_CHANGED)
        system = given
    parent, matched = _deepest(messages, chain)
    edited = bool(chain) and parent != chain[-1].step_id
    reason = ReuseBreak.EDITED_HISTORY if edited else None
    return Match(parent, _some(messages[matched:]), system, reason)


def same(sent: Message, stored: Message) -> bool:
    """Whether a sent message means what is stored.

    Of an answer, outer whitespace, call ids and the layout of the arguments' JSON do not matter, and the reasoning
    may be left out. Any other message is the same only if every character of its content is.
    """
    if sent.role is not stored.role:
        return False
    if sent.role is not Role.ASSISTANT:
        return sent.content == stored.content
    return (
        sent.content.strip() == stored.content.strip()
        and sent.reasoning.strip() in {"", stored.reasoning.strip()}
        and [_meaning(call) for call in sent.tool_calls] == [_meaning(call) for call in stored.tool_calls]
    )


def _deepest(messages: Sequence[Message], chain: Sequence[Step]) -> tuple[str | None, int]:
    parent, matched = None, 0
    for step in chain:
        stored = step.input if step.output is None else (*step.input, step.output)
        sent = messages[matched : matched + len(stored)]
        if len(sent) < len(stored) or not all(map(same, sent, stored)):
            break
        parent, matched = step.step_id, matched + len(stored)
    return parent, matched


def _some(new_messages: tuple[Message, ...]) -> tuple[Message, ...]:
    if not new_messages:
        raise InvalidMessage(
            "conversation.messages: nothing follows the last answer; add a user or tool message, "
            "or repeat the request_id to get the stored answer again",
            field="conversation.messages",
        )
    return new_messages


def _meaning(call: ToolCall) -> tuple[str, str]:
    try:
        value = json.loads(call.arguments_json or "{}", parse_float=_number)
    except (ValueError, RecursionError):
        return call.tool_name, call.arguments_json
    return call.tool_name, json.dumps(value, sort_keys=True)


def _number(text: str) -> float | int:
    """1.0 and 1 are one number in JSON."""
    value = float(text)
    return int(value) if value.is_integer() else value
