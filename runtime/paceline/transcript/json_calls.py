"""Llama's tool calls: the whole answer is one JSON object, or several with `;` or whitespace between them.

Nothing marks a call but an optional `<|python_tag|>` before it, so that only the end of the answer tells. Rules
where the right reading is debatable:

- An answer is calls only if nothing else is in it, and without the tag only if every name is that of a tool.
- A call with both `parameters` and `arguments` is none, nor is one with a key twice: nobody can tell which are
  meant. Other keys than these, `name`, `id` and `type` make it none, because what they ask for would be left out.
- An answer that begins with `{` and cannot become a call is text as soon as that is certain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

from paceline.transcript.hermes import is_object, new_call_id
from paceline.transcript.pieces import WHITESPACE, Pieces
from paceline.workflow.model import Tool, ToolCall

TAG = "<|python_tag|>"
_FIRST_KEYS = tuple(f'"{key}"' for key in ("name", "type", "parameters", "arguments"))
_BETWEEN = re.compile(r"[\s;]*")


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    id: msgspec.Raw = msgspec.Raw()
    type: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()
    arguments: msgspec.Raw = msgspec.Raw()


class JsonAnswerSplitter:
    """Holds an answer back as long as it may be calls."""

    def __init__(self, tools: Sequence[Tool], _reasoning_open: bool) -> None:
        self.pieces = Pieces(tools)
        self._names = {tool.tool_name for tool in tools}
        self._start: list[str] = []
        """The beginning, until it is certain whether it begins a call."""
        self._held: list[str] = []
        self._open = not tools
        """Whether everything is text."""

    @property
    def reasoning_now(self) -> bool:
        """The family has no reasoning."""
        return False

    def feed(self, text: str) -> None:
        """Take more text."""
        if self._open:
            self.pieces.add_text(text)
        elif self._held:
            self._held.append(text)
        else:
            before = self._start[-1] if self._start else "?"
            self._start.append(text)
            if (before + text).strip(WHITESPACE):  # whitespace after whitespace decides nothing
                self._decide("".join(self._start))

    def finish(self, _cut: bool = False, /) -> None:
        """Decide about everything that was held back."""
        whole = "".join(self._held or self._start)
        self._start, self._held = [], []
        if not self._open:
            self._finish(whole)
        self.pieces.end()

    def _decide(self, whole: str) -> None:
        start = whole.lstrip(WHITESPACE)
        if TAG.startswith(start):
            if start == TAG:
                self._held.append(whole)
            return
        if start.startswith(TAG):
            self._held.append(whole)
            return
        key = start[1:].lstrip(WHITESPACE)
        if start[0] == "{" and any(first.startswith(key) or key.startswith(first) for first in _FIRST_KEYS):
            if key.startswith(_FIRST_KEYS):
                self._held.append(whole)
            return
        self._open = True
        self.pieces.add_text(whole)
        self._start = []

    def _finish(self, whole: str) -> None:
        tagged = whole.lstrip(WHITESPACE).startswith(TAG)
        body = whole.replace(TAG, "", 1) if tagged else whole
        calls = decode_calls(body)
        meant = tagged or any(call.tool_name in self._names for call in calls or ())
        if calls and (tagged or all(call.tool_name in self._names for call in calls)):
            for call in calls:
                self.pieces.add_call(call)
        elif meant or (calls is None and self._names_a_tool(body)):
            self.pieces.add_malformed(whole)
        else:
            self.pieces.add_text(whole)

    def _names_a_tool(self, body: str) -> bool:
        found = re.search(r'"name"\s*:\s*"([^"\\]*)"', body)
        return found is not None and found[1] in self._names


def decode_calls(text: str) -> list[ToolCall] | None:
    """Return the calls that a text consists of, None if it holds anything else."""
    calls: list[ToolCall] = []
    position = 0
    while (position := _skip(text, position)) < len(text):
        try:
            _, end = json.JSONDecoder().raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        call = _decode(text[position:end])
        if call is None:
            return None
        calls.append(call)
        position = end
    return calls


def _skip(text: str, position: int) -> int:
    found = _BETWEEN.match(text, position)
    return found.end() if found else position


def _decode(text: str) -> ToolCall | None:
    try:
        call = msgspec.json.decode(text.encode(), type=_Call)
        if bytes(call.arguments) and bytes(call.parameters):
            return None
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    arguments_json = (bytes(call.arguments) or bytes(call.parameters)).decode()
    if not call.name or not is_object(text) or not arguments_json.startswith("{"):
        return None
    return ToolCall(new_call_id(), call.name, arguments_json)
