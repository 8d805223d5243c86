"""Qwen3-Coder's tool calls: `<function=NAME>` with one `<parameter=NAME>` per argument, between two markers.

A value is whatever stands between its tags, one newline at each end left out. Rules where the right reading is
debatable:

- `</parameter>` ends a value only where the next parameter or `</function>` follows; elsewhere it is data, as is
  every other tag inside a value.
- Values are text. One becomes JSON only if the tool's schema asks for another type than a string; what is not JSON
  then stays text, and the check against the schema reports it.
- A call with anything between its tags, or with a parameter twice, is no call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.transcript.hermes import new_call_id
from paceline.transcript.pieces import WHITESPACE
from paceline.transcript.splitter import CallSyntax
from paceline.transcript.stops import held_back
from paceline.workflow.model import Tool, ToolCall

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_VALUE, _VALUE_END = "<parameter=", "</parameter>"
_MAX_SPACE = 64
"""Most whitespace after the end tag of a value; more makes the tag data."""
_CALL = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(
    rf"\s*<parameter=([^>\n]+)>(.*?)</parameter>(?=\s{{0,{_MAX_SPACE}}}(?:<parameter=|\Z))", re.DOTALL
)
_PYTHON = {"True": True, "False": False, "None": None}
"""How models spell JSON's words now and then."""


class XmlBody:
    """Collects the text of one call until its end marker outside every value."""

    def __init__(self, end_marker: str) -> None:
        self._end = end_marker
        self._in_value = False
        self._parts: list[str] = []
        self._unread = ""

    def feed(self, text: str) -> str | None:
        """Take more text. Returns what follows the end marker, None as long as there is none."""
        buffer, position = self._unread + text, 0
        while True:
            step = self._value_step(buffer, position) if self._in_value else self._step(buffer, position)
            if isinstance(step, str):
                return step
            if step is None:
                return None
            position = step

    def text(self) -> str:
        """Return everything collected, without the markers."""
        return "".join(self._parts) + self._unread

    def _step(self, buffer: str, position: int) -> int | str | None:
        """Outside a value: go to the next one, or to the end."""
        end, value = buffer.find(self._end, position), buffer.find(_VALUE, position)
        if end >= 0 and not 0 <= value < end:
            self._keep(buffer, end, rest="")
            return buffer[end + len(self._end) :]
        if value >= 0:
            self._in_value = True
            return value + len(_VALUE)
        self._keep(buffer, len(buffer) - held_back(buffer[position:], (self._end, _VALUE)))
        return None

    def _value_step(self, buffer: str, position: int) -> int | None:
        """Inside a value: go to its end."""
        tag = buffer.find(_VALUE_END, position)
        if tag < 0:
            self._keep(buffer, len(buffer) - held_back(buffer[position:], (_VALUE_END,)))
            return None
        behind = tag + len(_VALUE_END)
        following = buffer[behind : behind + _MAX_SPACE + len(_FUNCTION_END)].lstrip(WHITESPACE)
        space = len(buffer) - behind if not following else buffer.find(following[0], behind) - behind
        if space <= _MAX_SPACE:
            if following.startswith((_VALUE, _FUNCTION_END)):
                self._in_value = False
            elif _VALUE.startswith(following) or _FUNCTION_END.startswith(following):
                self._keep(buffer, tag)
                return None
        return behind

    def _keep(self, buffer: str, end: int, rest: str | None = None) -> None:
        self._parts.append(buffer[:end])
        self._unread = buffer[end:] if rest is None else rest


def decode_call(body: str, tools: Sequence[Tool]) -> ToolCall | None:
    """Return the call that a body spells, None if it spells none."""
    found = _CALL.fullmatch(body)
    if found is None:
        return None
    name, inner = found[1].strip(), found[2]
    values = list(_parameters(inner))
    arguments = dict(value for value in values if value is not None)
    if not name or len(arguments) != len(values):
        return None
    types = _types(next((tool for tool in tools if tool.tool_name == name), None))
    try:
        typed = {key: _value(text, types.get(key, frozenset())) for key, text in arguments.items()}
        arguments_json = json.dumps(typed, ensure_ascii=False, allow_nan=False)
        arguments_json.encode()
    except (ValueError, RecursionError):
        return None
    return ToolCall(new_call_id(), name, arguments_json)


XML_CALLS = CallSyntax("<tool_call>", "</tool_call>", _FUNCTION, XmlBody, decode_call)


def _parameters(inner: str) -> Iterator[tuple[str, str] | None]:
    """Names and values; None for what is no parameter."""
    position = 0
    while found := _PARAMETER.match(inner, position):
        yield found[1].strip(), found[2].removeprefix("\n").removesuffix("\n")
        position = found.end()
    if inner[position:].strip(WHITESPACE):
        yield None


def _types(tool: Tool | None) -> dict[str, frozenset[str]]:
    """The JSON types that a tool's schema allows for each parameter, as far as it says."""
    try:
        schema = json.loads(tool.parameters_json) if tool and tool.parameters_json else {}
        properties = schema.get("properties", {})
        return {name: frozenset(_types_of(value)) for name, value in properties.items()}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _types_of(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    given = schema.get("type", ())
    yield from [given] if isinstance(given, str) else (name for name in given if isinstance(name, str))
    for word in ("anyOf", "oneOf"):
        for branch in schema.get(word, ()):
            yield from _types_of(branch)


def _value(text: str, types: frozenset[str]) -> Any:
    if not types or ("string" in types and not (text == "null" and "null" in types)):
        return text
    if text.strip() in _PYTHON:
        return _PYTHON[text.strip()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
