"""What an answer consists of so far: reasoning, text, tool calls, and the events that nobody has taken yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.transcript.schemas import checked
from paceline.workflow.events import ReasoningDelta, TextDelta, ToolCallEvent
from paceline.workflow.model import OutputFlag, Tool, ToolCall

OutputEvent = ReasoningDelta | TextDelta | ToolCallEvent
_TextKind = type[TextDelta] | type[ReasoningDelta]
WHITESPACE = " \t\r\n"


class _Run:
    """All text of one kind. Whitespace waits until it is known whether a marker follows."""

    def __init__(self, after_marker: bool) -> None:
        self.parts: list[str] = []
        self._space: list[str] = []
        self._after_marker = after_marker

    def add(self, text: str) -> str:
        """Take more text, return what is certain."""
        body = text.rstrip(WHITESPACE)
        if not body:
            self._space.append(text)
            return ""
        certain = "".join((*self._space, body))
        if self._after_marker and not self.parts:
            certain = certain.lstrip(WHITESPACE)
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


class Pieces:
    """Collects the parts of one answer. Whitespace beside a marker is text only between two pieces of text."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self._reasoning = _Run(after_marker=True)
        self._text = _Run(after_marker=False)
        self._fresh: list[ToolCallEvent | tuple[_TextKind, list[str]]] = []
        self.tool_calls: list[ToolCall] = []
        self.malformed = 0
        self.flags: set[OutputFlag] = set()
        self.doubtful = False
        """Whether what came last is reasoning only if the reasoning ends."""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text.parts)

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(self._reasoning.parts)

    def add_text(self, text: str) -> None:
        """Take text."""
        self._emit(TextDelta, self._text.add(text))

    def add_reasoning(self, text: str) -> None:
        """Take reasoning."""
        self._emit(ReasoningDelta, self._reasoning.add(text))

    def add_space(self, text: str) -> None:
        """Take whitespace that is text only if text follows."""
        self._text.add(text)

    def end_reasoning(self) -> None:
        """Note a marker after the reasoning."""
        self._reasoning.meet_marker()
        self._text.meet_marker()

    def add_call(self, call: ToolCall) -> None:
        """Take a tool call and check its arguments."""
        self._append(ToolCallEvent(checked(call, self._tools)))

    def add_malformed(self, text: str) -> None:
        """Take what looked like a tool call and is none: it is text."""
        self.malformed += 1
        self.flags.add(OutputFlag.MALFORMED_CALL)
        self.add_text(text)

    def take_over(self, other: Pieces, events: Sequence[OutputEvent]) -> None:
        """Take the events of an answer that was collected apart, and what was counted of it."""
        for event in events:
            if isinstance(event, ToolCallEvent):
                self._append(event)
            else:
                self.add_text(event.text)
        self.malformed += other.malformed
        self.flags |= other.flags

    def end(self) -> None:
        """Decide about the whitespace at the end."""
        self._emit(ReasoningDelta, self._reasoning.end())
        self._emit(TextDelta, self._text.end())

    def take_events(self) -> list[OutputEvent]:
        """Return the events since the last call, neighbours of one kind merged."""
        fresh, self._fresh = self._fresh, []
        return [item if isinstance(item, ToolCallEvent) else item[0]("".join(item[1])) for item in fresh]

    def _append(self, event: ToolCallEvent) -> None:
        self._text.meet_marker()
        self.tool_calls.append(event.tool_call)
        self._fresh.append(event)

    def _emit(self, kind: _TextKind, text: str) -> None:
        if not text:
            return
        last = self._fresh[-1] if self._fresh else None
        if isinstance(last, tuple) and last[0] is kind:
            last[1].append(text)
        else:
            self._fresh.append((kind, [text]))


class Splitter(Protocol):
    """Splits the text of one answer into `pieces`, as soon as each is certain."""

    pieces: Pieces

    @property
    def reasoning_now(self) -> bool:
        """Whether the text read last is inside the reasoning."""

    def feed(self, text: str) -> None:
        """Take more text."""

    def finish(self, cut: bool = False, /) -> None:
        """Decide about everything that was held back. `cut`: the model did not end its answer itself."""
