"""Hermes tool calls: a JSON object between two markers. A marker inside a JSON string is data.

Rules where the right reading is debatable: a call with other keys than `name`, `arguments`, `id` and `type` is
none, because what they ask for would be left out; nor is one with a key twice in any object.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.transcript.splitter import CallSyntax
from paceline.transcript.stops import held_back
from paceline.workflow.model import Tool, ToolCall

_INSIDE_STRING = re.compile(r'"|\\|[\x00-\x1f]')


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw
    id: msgspec.Raw = msgspec.Raw()
    type: msgspec.Raw = msgspec.Raw()


class JsonBody:
    """Collects the text of one call until its end marker. Each character is looked at once."""

    def __init__(self, end_marker: str) -> None:
        self._end = end_marker
        self._outside_string = re.compile(f'"|{re.escape(end_marker)}')
        self._only_end = re.compile(re.escape(end_marker))
        self._looking_for = self._outside_string
        self._parts: list[str] = []
        self._unread = ""

    def feed(self, text: str) -> str | None:
        """Take more text. Returns what follows the end marker, None as long as there is none."""
        buffer, position = self._unread + text, 0
        while found := self._looking_for.search(buffer, position):
            if found.group() == self._end:
                self._parts.append(buffer[: found.start()])
                self._unread = ""
                return buffer[found.end() :]
            if found.group() == "\\":
                if found.end() == len(buffer):
                    break
                position = found.end() + 1
                continue
            self._cross(found.group())
            position = found.end()
        self._keep(buffer, self._readable(buffer, position))
        return None

    def text(self) -> str:
        """Return everything collected, without the markers."""
        return "".join(self._parts) + self._unread

    def _keep(self, buffer: str, end: int) -> None:
        self._parts.append(buffer[:end])
        self._unread = buffer[end:]

    def _readable(self, buffer: str, position: int) -> int:
        """Where to go on reading when there is more: before what may be half a marker or half an escape."""
        if self._looking_for is _INSIDE_STRING:
            escaped = buffer.find("\\", position)
            return len(buffer) if escaped < 0 else escaped
        return len(buffer) - held_back(buffer[position:], (self._end,))

    def _cross(self, character: str) -> None:
        """Enter or leave a string. A control character inside one proves that the JSON is broken: from there on
        quotes mean nothing and the next end marker ends the call."""
        if self._looking_for is self._outside_string:
            self._looking_for = _INSIDE_STRING
        elif character == '"':
            self._looking_for = self._outside_string
        else:
            self._looking_for = self._only_end


def decode_call(body: str, _tools: Sequence[Tool] = ()) -> ToolCall | None:
    """Return the call that a body spells; None if it is not an object with a `name` and an object `arguments`, no
    other key but `id` and `type`, and no key twice."""
    try:
        call = msgspec.json.decode(body.encode(), type=_Call)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if not call.name or not is_object(body):
        return None
    arguments_json = bytes(call.arguments).decode()
    return ToolCall(new_call_id(), call.name, arguments_json) if arguments_json[0] == "{" else None


def is_object(text: str) -> bool:
    """Whether a text is a JSON object with one meaning for everybody: without NaN and halves of characters, which
    Python allows, and without a key twice in one object."""
    try:
        msgspec.json.decode(text.encode(), type=msgspec.Raw)
        return isinstance(json.loads(text, object_pairs_hook=_unambiguous), dict)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def new_call_id() -> str:
    """Return a new id for a tool call."""
    return f"call_{secrets.token_urlsafe(18)}"


HERMES = CallSyntax("<tool_call>", "</tool_call>", "{", JsonBody, decode_call)
