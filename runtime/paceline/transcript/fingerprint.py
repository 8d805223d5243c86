"""Hashes of messages by meaning: conversations are compared without keeping, reading or tokenizing their texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.workflow.model import CallRef, Message, Role, Step, ToolCall

_SIZE = 16
_ROLES = {Role.SYSTEM: b"s", Role.USER: b"u", Role.ASSISTANT: b"a", Role.TOOL: b"t"}
_REASONING = 1 + _SIZE
"""Where the hash of the reasoning begins in a key: after the role and the hash of everything else."""
_NO_REASONING = bytes(_SIZE)
KEY_SIZE = _REASONING + _SIZE
"""Bytes of a key."""
_AT_ONCE, _PER_MESSAGE = 500_000, 500
"""Characters that are hashed in a few milliseconds, and how many a message or call of no words counts as."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """The keys of messages. Results of parallel calls are in the order of their calls, whatever theirs was."""

    keys: tuple[bytes, ...]
    order: tuple[int, ...]
    """The index of the message of each key."""
    calls: tuple[CallRef, ...]
    """The calls that the next messages can answer."""


@dataclass(frozen=True, slots=True)
class Link:
    """One finished step of a chain: the keys of its new messages and of its answer."""

    step_id: str
    keys: tuple[bytes, ...]


Trail = tuple[Link, ...]
"""A chain of finished steps, root first."""


def keys_of(messages: Sequence[Message], calls: tuple[CallRef, ...] = ()) -> Keyed:
    """Hash messages, of which the first may answer `calls`. Work for their bytes."""
    keys: list[bytes] = []
    order: list[int] = []
    left = calls
    for at, answered, left in _placed(messages, calls):  # noqa: B007 - those after the last message
        keys.append(_key(messages[at], "" if answered is None else str(answered)))
        order.append(at)
    return Keyed(tuple(keys), tuple(order), left)


def takes_long(messages: Sequence[Message]) -> bool:
    """Whether hashing messages belongs in a thread: it would hold up everybody else."""
    calls = [call for message in messages for call in message.tool_calls]
    said = sum(len(message.content) + len(message.reasoning) for message in messages)
    arguments = sum(len(call.arguments_json) for call in calls)
    return said + arguments + _PER_MESSAGE * (len(messages) + len(calls)) > _AT_ONCE


def named(messages: Sequence[Message], calls: tuple[CallRef, ...] = ()) -> tuple[Message, ...]:
    """The messages, of which the first may answer `calls`, each result with the name of the tool whose call it
    answers: few clients say it again."""
    result = list(messages)
    for at, answered, answerable in _placed(messages, calls):
        message = messages[at]
        if answered is not None and answered < len(answerable) and not message.tool_name:
            result[at] = replace(message, tool_name=answerable[answered].tool_name)
    return tuple(result)


def calls_of(message: Message) -> tuple[CallRef, ...]:
    """The calls of a message as their results name them."""
    return tuple(CallRef(call.tool_call_id, call.tool_name) for call in message.tool_calls)


def trail_of(chain: Sequence[Step]) -> Trail:
    """The trail of finished steps, root first."""
    trail: list[Link] = []
    calls: tuple[CallRef, ...] = ()
    for step in chain:
        said = step.input if step.output is None else (*step.input, step.output)
        keyed = keys_of(said, calls)
        trail.append(Link(step.step_id, keyed.keys))
        calls = keyed.calls
    return tuple(trail)


def agrees(sent: bytes, stored: bytes) -> bool:
    """Whether a message that was sent means the stored one: its reasoning may be left out."""
    if sent == stored:
        return True
    return sent[:_REASONING] == stored[:_REASONING] and sent[_REASONING:] == _NO_REASONING


def without_reasoning(key: bytes) -> bytes:
    """What a key says of everything but the reasoning."""
    return key[:_REASONING]


def is_answer(key: bytes) -> bool:
    """Whether the key is of an assistant's message."""
    return key[:1] == _ROLES[Role.ASSISTANT]


def same_role(one: bytes, other: bytes) -> bool:
    """Whether two keys are of messages of one role."""
    return one[:1] == other[:1]


def _placed(
    messages: Sequence[Message], calls: tuple[CallRef, ...]
) -> Iterator[tuple[int, int | None, tuple[CallRef, ...]]]:
    """The index of each message, which call it answers if it is a result, and the calls that can be answered then;
    results of parallel calls in the order of these."""
    index = 0
    while index < len(messages):
        message = messages[index]
        if message.role is Role.TOOL:
            run = _results(messages, index, calls)
            yield from ((at, answered, calls) for answered, at in run)
            index += len(run)
            continue
        if message.role is Role.ASSISTANT:
            calls = calls_of(message)
        yield index, None, calls
        index += 1


def _results(messages: Sequence[Message], start: int, calls: tuple[CallRef, ...]) -> list[tuple[int, int]]:
    """The run of tool results from `start`: which call each answers, and its index, by call. A result that names
    no known call answers the first that none of the others names."""
    end = start
    while end < len(messages) and messages[end].role is Role.TOOL:
        end += 1
    place = {call.tool_call_id: at for at, call in reversed(list(enumerate(calls))) if call.tool_call_id}
    run = [(place.get(messages[at].tool_call_id), at) for at in range(start, end)]
    named = {answered for answered, _ in run}
    unnamed = iter([at for at in range(len(calls) + len(run)) if at not in named])
    return sorted((next(unnamed) if answered is None else answered, at) for answered, at in run)


def _key(message: Message, answered: str = "") -> bytes:
    if message.role is not Role.ASSISTANT:
        return _ROLES[message.role] + _hash([answered, message.content]) + _NO_REASONING
    calls = [part for call in message.tool_calls for part in (call.tool_name, _meaning(call))]
    reasoning = message.reasoning.strip()
    return b"".join(
        [
            _ROLES[message.role],
            _hash([message.content.strip(), *calls]),
            _hash([reasoning]) if reasoning else _NO_REASONING,
        ]
    )


def _hash(parts: Sequence[str]) -> bytes:
    """Hash texts, each after its length, so that none can imitate two."""
    digest = hashlib.blake2b(digest_size=_SIZE)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


def _meaning(call: ToolCall) -> str:
    """The arguments without the layout of their JSON; text that is none is compared as it is."""
    try:
        value = json.loads(call.arguments_json or "{}", parse_float=_number)
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (ValueError, RecursionError):
        return call.arguments_json


def _number(text: str) -> float | int:
    """1.0 and 1 are one number in JSON."""
    value = float(text)
    return int(value) if value.is_integer() else value
