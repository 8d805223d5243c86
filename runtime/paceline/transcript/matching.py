"""Finds where a client that resends the whole conversation continues the stored transcript."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidMessage
from paceline.transcript.fingerprint import Trail, agrees, is_answer, keys_of, same_role
from paceline.workflow.model import Message, ReuseBreak, Role


@dataclass(frozen=True, slots=True)
class Match:
    """Where a conversation continues: after `parent_step_id`, with `new_messages`; None renders it in full."""

    parent_step_id: str | None
    new_messages: tuple[Message, ...]
    system: str
    """The system prompt in force from here on."""
    break_reason: ReuseBreak | None = None
    """Why the conversation does not continue the last step of the chain."""
    break_message: int | None = None
    """Index in the conversation of the first message that is not the stored one; the conversation's length when it
    only ends earlier."""


def match(conversation: Sequence[Message], chain: Trail, system: str, own: str | None = None) -> Match:
    """Compare a conversation with a stored chain, message by message. Work for the bytes that were sent.

    It continues the deepest step whose whole input and answer it begins with. Of an answer, outer whitespace, call
    ids and the layout of the arguments' JSON do not matter, and the reasoning may be left out: it keeps its
    generated ids. Results of parallel calls may come in any order. Anything else is the same only if every
    character of its content is. A leading system message is the system prompt, without one it is `own` (None: the
    one in force): another one than `system`, the one in force, is a break at the first message.

    Raises `InvalidMessage` when nothing follows the matched answers: a conversation that ends with one asks for
    nothing.
    """
    messages, leading = tuple(conversation), 0
    given = system if own is None else own
    if messages and messages[0].role is Role.SYSTEM:
        given, messages, leading = messages[0].content, messages[1:], 1
    sent = keys_of(messages)
    stored = [key for link in chain for key in link.keys]
    pairs = enumerate(zip(sent.keys, stored, strict=False))
    shorter = min(len(sent.keys), len(stored))
    at = next((index for index, (one, other) in pairs if not agrees(one, other)), shorter)
    parent, matched = _deepest(chain, at)
    new = _some(messages[matched:])
    if chain and given != system:
        return Match(parent, new, given, ReuseBreak.SYSTEM_CHANGED, 0)
    if at == len(stored):
        return Match(parent, new, given)
    differs = sent.order[at] if at < len(messages) else at
    return Match(parent, new, given, _reason(sent.keys[at:], stored[at:], at), leading + differs)


def _deepest(chain: Trail, same: int) -> tuple[str | None, int]:
    """The last step whose messages are all among the first `same`, and how many they are up to it."""
    parent, matched = None, 0
    for link in chain:
        if matched + len(link.keys) > same:
            break
        parent, matched = link.step_id, matched + len(link.keys)
    return parent, matched


def _reason(sent: Sequence[bytes], stored: Sequence[bytes], at: int) -> ReuseBreak:
    """Why a conversation leaves the stored one at its message `at`; both are given from there on.

    It was compacted when fewer messages stand for at least two answers, and either the last answer is still there,
    or the first of them is the first message of all, or of another role than the stored one. Otherwise it was
    edited: a client that goes back and asks differently replaces a message by one of the same role.
    """
    fewer = 0 < len(sent) < len(stored) and sum(map(is_answer, stored)) > 1
    if not fewer:
        return ReuseBreak.EDITED_HISTORY
    keeps_end = any(agrees(key, stored[-1]) for key in sent)
    summary = at == 0 or not same_role(sent[0], stored[0])
    return ReuseBreak.COMPACTED if keeps_end or summary else ReuseBreak.EDITED_HISTORY


def _some(new_messages: tuple[Message, ...]) -> tuple[Message, ...]:
    if not new_messages:
        raise InvalidMessage(
            "conversation.messages: nothing follows the last answer; add a user or tool message, "
            "or repeat the request_id to get the stored answer again",
            field="conversation.messages",
        )
    return new_messages
