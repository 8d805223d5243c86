"""Splits answers in which markers stand around the reasoning and around each tool call.

Rules where the right reading is debatable; each loses no text and runs nothing that was not meant:

- Reasoning comes first or not at all; a later `<think>` or `</think>` is text, and is flagged.
- Reasoning ends at the first `</think>`, wherever that stands. Calls before it are reasoning: they are not run.
- If it never ends although the model ended its answer itself, and has a complete call of a known tool in it, then
  the answer goes on from the first complete call as if the reasoning had ended there, and is flagged.
- A call is run only if it is complete. At the end of the output a complete one needs no end marker.
- What is no call stays text with its markers, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.transcript.pieces import WHITESPACE, Pieces
from paceline.transcript.stops import held_back
from paceline.workflow.events import TextDelta
from paceline.workflow.model import OutputFlag, Tool, ToolCall


class CallBody(Protocol):
    """Collects the text of one call until its end marker. Each character is looked at once."""

    def feed(self, text: str) -> str | None:
        """Take more text. Returns what follows the end marker, None as long as there is none."""

    def text(self) -> str:
        """Return everything collected, without the markers."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a call is written between its markers."""

    begin: str
    end: str
    opening: str
    """What a call begins with after its marker and whitespace; anything else is text at once."""
    body: Callable[[str], CallBody]
    """Makes a body that ends at the given marker."""
    decode: Callable[[str, Sequence[Tool]], ToolCall | None]
    """The call that a body spells; None if it spells none."""


class MarkerSplitter:
    """A state machine over the text."""

    def __init__(
        self,
        tools: Sequence[Tool],
        reasoning_open: bool,
        *,
        calls: CallSyntax | None = None,
        reasoning: tuple[str, str] | None = None,
    ) -> None:
        self.pieces = Pieces(tools)
        self._tools = tools
        self._calls = calls if tools else None
        self._reasoning_markers = reasoning or ("", "")
        self._held = ""
        self._space: list[str] = []
        """Whitespace after the marker of a call."""
        self._body: CallBody | None = None
        self._doubt: tuple[MarkerSplitter, list[str]] | None = None
        """What the reasoning is from its first call on if it never ends, and the text of that."""
        self._state: Callable[[str], str] = self._in_text
        if reasoning:
            self._state = self._in_reasoning if reasoning_open else self._at_start

    @property
    def reasoning_now(self) -> bool:
        """Whether the text read last is inside the reasoning."""
        return self._state in {self._in_reasoning, self._in_doubt}

    def feed(self, text: str) -> None:
        """Take more text."""
        rest = self._held + text
        self._held = ""
        while rest:
            rest = self._state(rest)

    def finish(self, cut: bool = False, /) -> None:
        """Decide about everything that was held back."""
        held, self._held = self._held, ""
        if self._state == self._in_reasoning:
            self.pieces.add_reasoning(held)
        elif self._doubt:
            self._end_doubt(*self._doubt, held, cut)
        elif self._body and self._calls:
            self._finish_call(self._calls, self._body)
        elif self._calls and self._state == self._at_call:
            self.pieces.add_malformed(self._calls.begin + self._take_space() + held)
        else:
            self.pieces.add_text(held)
        self.pieces.end()
        if any(marker and marker in self.pieces.text for marker in self._reasoning_markers):
            self.pieces.flags.add(OutputFlag.STRAY_MARKER)

    # Each state takes the text, and returns what the next state has to read.

    def _at_start(self, buffer: str) -> str:
        opening = self._reasoning_markers[0]
        stripped = buffer.lstrip(WHITESPACE)
        self.pieces.add_space(buffer[: len(buffer) - len(stripped)])
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
        call = before.find(self._calls.begin) if self._calls else -1
        if call >= 0:
            self.pieces.add_reasoning(before[:call])
            self._doubt = MarkerSplitter(self._tools, False, calls=self._calls), []
            self._state, self.pieces.doubtful = self._in_doubt, True
            return buffer[call:]
        if not closing:
            markers = (self._reasoning_markers[1], *([self._calls.begin] if self._calls else []))
            self.pieces.add_reasoning(self._hold_back(buffer, *markers))
            return ""
        self._end_reasoning(before)
        return after

    def _in_doubt(self, buffer: str) -> str:
        assert self._doubt is not None  # noqa: S101 - for the type checker: the state is entered with it
        before, closing, after = buffer.partition(self._reasoning_markers[1])
        if not closing:
            before = self._hold_back(buffer, self._reasoning_markers[1])
        answer, parts = self._doubt
        parts.append(before)
        if not closing:
            answer.feed(before)
            return ""
        self._doubt, self.pieces.doubtful = None, False
        self._end_reasoning("".join(parts))
        return after

    def _end_reasoning(self, rest: str) -> None:
        self.pieces.add_reasoning(rest)
        self.pieces.end_reasoning()
        self._state = self._in_text

    def _end_doubt(self, answer: MarkerSplitter, parts: list[str], held: str, cut: bool) -> None:
        """The reasoning never ended."""
        answer.feed(held)
        known = {tool.tool_name for tool in self._tools}
        if cut or not any(call.tool_name in known for call in answer.pieces.tool_calls):
            self.pieces.add_reasoning("".join((*parts, held)))
            return
        self.pieces.flags.add(OutputFlag.CALL_IN_OPEN_REASONING)
        answer.finish()
        events = answer.pieces.take_events()
        if isinstance(first := events[0], TextDelta):
            self.pieces.add_reasoning(first.text)
            del events[0]
        self.pieces.end_reasoning()
        self.pieces.take_over(answer.pieces, events)

    def _in_text(self, buffer: str) -> str:
        if self._calls is None:
            self.pieces.add_text(buffer)
            return ""
        before, opening, after = buffer.partition(self._calls.begin)
        if not opening:
            self.pieces.add_text(self._hold_back(buffer, self._calls.begin))
            return ""
        self.pieces.add_text(before)
        self._state = self._at_call
        return after

    def _at_call(self, buffer: str) -> str:
        """After the marker: only the syntax's opening can be a call, anything else is text at once."""
        assert self._calls is not None  # noqa: S101 - for the type checker: the state is entered with calls only
        start = buffer.lstrip(WHITESPACE)
        self._space.append(buffer[: len(buffer) - len(start)])
        first = start[: len(self._calls.opening)]
        if self._calls.opening.startswith(first) and first != self._calls.opening:
            self._held = start
            return ""
        rest = self._take_space() + start
        if first != self._calls.opening:
            self.pieces.add_malformed(self._calls.begin)
            self._state = self._in_text
            return rest
        self._body = self._calls.body(self._calls.end)
        self._state = self._in_call
        return rest

    def _take_space(self) -> str:
        space, self._space = "".join(self._space), []
        return space

    def _in_call(self, buffer: str) -> str:
        assert self._calls is not None and self._body is not None  # noqa: S101, PT018 - for the type checker
        after = self._body.feed(buffer)
        if after is None:
            return ""
        self._end_call(self._calls, self._body.text(), self._calls.end)
        self._body = None
        self._state = self._in_text
        return after

    def _hold_back(self, buffer: str, *markers: str) -> str:
        certain = len(buffer) - held_back(buffer, markers)
        self._held = buffer[certain:]
        return buffer[:certain]

    def _finish_call(self, calls: CallSyntax, body: CallBody) -> None:
        text = body.text()
        whole = len(text) - held_back(text, (calls.end,))
        self._end_call(calls, text[:whole], text[whole:])

    def _end_call(self, calls: CallSyntax, body: str, end: str) -> None:
        call = calls.decode(body, self._tools)
        if call is None:
            self.pieces.add_malformed(calls.begin + body + end)
        else:
            self.pieces.add_call(call)
