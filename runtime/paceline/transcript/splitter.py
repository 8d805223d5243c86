"""Splits the text of an answer into reasoning, text and tool calls, as soon as each is certain.

Rules where the right reading is debatable; each loses no text and runs nothing that was not meant:

- Reasoning comes first or not at all; a later `<think>` is text.
- A call is run only if its JSON is complete. At the end of the output a complete one needs no end marker.
- What is no call (broken JSON, no name, arguments that are no object) stays text with its markers, and is counted.
- Whitespace beside a marker is a separator. It is text only between two pieces of text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.transcript.families import Family
from paceline.transcript.hermes import CallBody, decode_call
from paceline.transcript.schemas import checked
from paceline.transcript.stops import held_back
from paceline.workflow.events import ReasoningDelta, TextDelta, ToolCallEvent
from paceline.workflow.model import Tool, ToolCall

OutputEvent = ReasoningDelta | TextDelta | ToolCallEvent
_TextKind = type[TextDelta] | type[ReasoningDelta]
_WHITESPACE = " \t\r\n"


class _Run:
    """All text of one kind. Whitespace waits until it is known whether a marker follows."""

    def __init__(self, after_marker: bool) -> None:
        self.parts: list[str] = []
        self._space: list[str] = []
        self._after_marker = after_marker

    def add(self, text: str) -> str:
        """Take more text, return what is certain."""
        body = text.rstrip(_WHITESPACE)
        if not body:
            self._space.append(text)
            return ""
        certain = "".join((*self._space, body))
        if self._after_marker and not self.parts:
            certain = certain.lstrip(_WHITESPACE)
        self._space, self._after_marker = [text[len(body) :]], False
        self.parts.append(certain)
        return certain

    def meet_marker(self) -> None:
        """Drop the whitespace before a marker."""
        self._space, self._after_marker = [], True

    def end(self) -> str:
        """Return the whitespace at the end, if it is text."""
        if self._after_marker:
            return ""
        self.parts += self._space
        return "".join(self._space)


class Splitter:
    """A state machine over the text; `feed` and `finish` append to the events that `take_events` hands out."""

    def __init__(self, family: Family, tools: Sequence[Tool], reasoning_open: bool) -> None:
        self._call_markers = family.tool_markers if tools else None
        self._reasoning_markers = family.reasoning_markers or ("", "")
        self._tools = tools
        self._held = ""
        self._reasoning = _Run(after_marker=True)
        self._text = _Run(after_marker=False)
        self._body = CallBody("")
        self._fresh: list[ToolCallEvent | tuple[_TextKind, list[str]]] = []
        self._state: Callable[[str], str] = self._in_text
        if family.reasoning_markers:
            self._state = self._in_reasoning if reasoning_open else self._at_start
        self.tool_calls: list[ToolCall] = []
        self.malformed = 0

    @property
    def reasoning_now(self) -> bool:
        """Whether the text read last is inside the reasoning."""
        return self._state == self._in_reasoning

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text.parts)

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(self._reasoning.parts)

    def feed(self, text: str) -> None:
        """Take more text."""
        rest = self._held + text
        self._held = ""
        while rest:
            rest = self._state(rest)

    def finish(self) -> None:
        """Decide about everything that was held back."""
        held, self._held = self._held, ""
        if self._state == self._in_reasoning:
            self._add_reasoning(held)
        elif self._state == self._in_call:
            self._finish_call()
        elif self._state == self._at_call:
            self._not_a_call("", held)
        else:
            self._add_text(held)
        self._emit(ReasoningDelta, self._reasoning.end())
        self._emit(TextDelta, self._text.end())

    def take_events(self) -> list[OutputEvent]:
        """Return the events since the last call, neighbours of one kind merged."""
        fresh, self._fresh = self._fresh, []
        return [item if isinstance(item, ToolCallEvent) else item[0]("".join(item[1])) for item in fresh]

    # Each state takes the text, and returns what the next state has to read.

    def _at_start(self, buffer: str) -> str:
        opening = self._reasoning_markers[0]
        stripped = buffer.lstrip(_WHITESPACE)
        self._text.add(buffer[: len(buffer) - len(stripped)])
        if stripped.startswith(opening):
            self._state = self._in_reasoning
            return stripped[len(opening) :]
        if opening.startswith(stripped):
            self._held = stripped
            return ""
        self._state = self._in_text
        return stripped

    def _in_reasoning(self, buffer: str) -> str:
        before, closing, after = buffer.partition(self._reasoning_markers[1])
        if not closing:
            self._add_reasoning(self._hold_back(buffer, self._reasoning_markers[1]))
            return ""
        self._add_reasoning(before)
        self._reasoning.meet_marker()
        self._text.meet_marker()
        self._state = self._in_text
        return after

    def _in_text(self, buffer: str) -> str:
        if self._call_markers is None:
            self._add_text(buffer)
            return ""
        before, opening, after = buffer.partition(self._call_markers[0])
        if not opening:
            self._add_text(self._hold_back(buffer, self._call_markers[0]))
            return ""
        self._add_text(before)
        self._state = self._at_call
        return after

    def _at_call(self, buffer: str) -> str:
        """After the marker: only an object can be a call, anything else is text at once."""
        first = buffer.lstrip(_WHITESPACE)[:1]
        if not first:
            self._held = buffer
            return ""
        if first != "{":
            self._not_a_call("", "")
            self._state = self._in_text
            return buffer
        self._body = CallBody(self._markers[1])
        self._state = self._in_call
        return buffer

    def _in_call(self, buffer: str) -> str:
        after = self._body.feed(buffer)
        if after is None:
            return ""
        self._end_call(self._body.text(), self._markers[1])
        self._state = self._in_text
        return after

    @property
    def _markers(self) -> tuple[str, str]:
        return self._call_markers or ("", "")

    def _hold_back(self, buffer: str, marker: str) -> str:
        certain = len(buffer) - held_back(buffer, (marker,))
        self._held = buffer[certain:]
        return buffer[:certain]

    def _finish_call(self) -> None:
        text = self._body.text()
        whole = len(text) - held_back(text, (self._markers[1],))
        self._end_call(text[:whole], text[whole:])

    def _end_call(self, body: str, end: str) -> None:
        call = decode_call(body)
        if call is None:
            self._not_a_call(body, end)
            return
        call = checked(call, self._tools)
        self._text.meet_marker()
        self.tool_calls.append(call)
        self._fresh.append(ToolCallEvent(call))

    def _not_a_call(self, body: str, end: str) -> None:
        self.malformed += 1
        self._add_text(self._markers[0] + body + end)

    def _add_text(self, text: str) -> None:
        self._emit(TextDelta, self._text.add(text))

    def _add_reasoning(self, text: str) -> None:
        self._emit(ReasoningDelta, self._reasoning.add(text))

    def _emit(self, kind: _TextKind, text: str) -> None:
        if not text:
            return
        last = self._fresh[-1] if self._fresh else None
        if isinstance(last, tuple) and last[0] is kind:
            last[1].append(text)
        else:
            self._fresh.append((kind, [text]))
