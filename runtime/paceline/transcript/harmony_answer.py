"""Splits gpt-oss's answers: messages with a header that names the channel and, for a tool call, the recipient.

Channel `analysis` is reasoning, `final` and `commentary` without recipient are text, and a message to
`functions.NAME` is a tool call. Rules where the right reading is debatable:

- Two messages of one kind have a newline between them.
- A call is run only if its body is a JSON object; at the end of the output it needs no end marker.
- A message to anybody else, or with a header that is none of these, is text with its header, and is counted.
- A message that starts before the last one has ended is part of the last one, and is flagged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from paceline.transcript.hermes import is_object, new_call_id
from paceline.transcript.pieces import Pieces
from paceline.transcript.stops import held_back
from paceline.workflow.model import OutputFlag, Tool, ToolCall

START, CHANNEL, BODY, END, CALL = "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"
_HEADER = re.compile(
    r"(?:<\|start\|>)?\s*+(?:assistant)?\s*+(?:to=(?P<before>[^\s<]+))?\s*+(?:<\|channel\|>\s*+(?P<channel>\w+))?"
    r"\s*+(?:to=(?P<after>[^\s<]+))?\s*+(?:<\|constrain\|>\s*+[^\s<]+|json|code)?\s*+"
)
"""Whitespace is never given back: tried in every split, a long run of it would take forever."""
_FUNCTIONS = "functions."
_MAX_HEADER = 1024
"""Longest text that is looked at as a header; longer is text."""


class HarmonySplitter:
    """A state machine over the text after `<|start|>assistant`."""

    def __init__(self, tools: Sequence[Tool], _reasoning_open: bool) -> None:
        self.pieces = Pieces(tools)
        self._tools = tools
        self._held = ""
        self._header = ""
        self._call: list[str] = []
        self._tool_name = ""
        self._state: Callable[[str], str] = self._in_header

    @property
    def reasoning_now(self) -> bool:
        """Whether the text read last is inside the reasoning."""
        return self._state == self._in_reasoning

    def feed(self, text: str) -> None:
        """Take more text."""
        rest = self._held + text
        self._held = ""
        while rest:
            rest = self._state(rest)

    def finish(self, _cut: bool = False, /) -> None:
        """Decide about everything that was held back."""
        held, self._held = self._held, ""
        if self._state == self._in_header:
            self._end_header(held)
        elif self._state == self._in_call:
            self._call.append(held)
            self._end_call("")
        elif self._state == self._in_reasoning:
            self.pieces.add_reasoning(held)
        else:
            self.pieces.add_text(held)
        self.pieces.end()

    # Each state takes the text, and returns what the next state has to read.

    def _in_header(self, buffer: str) -> str:
        header, body, after = buffer.partition(BODY)
        if not body:
            if len(buffer) > _MAX_HEADER:
                self._state = self._in_text
                self.pieces.add_malformed(buffer)
            else:
                self._held = buffer
            return ""
        self._header = header
        found = _HEADER.fullmatch(header)
        recipient = (found["before"] or found["after"] or "") if found else ""
        channel = (found["channel"] or "") if found else ""
        name = recipient.removeprefix(_FUNCTIONS)
        if name not in {"", recipient} and self._tools:
            self._tool_name, self._call = name, []
            self._state = self._in_call
        elif channel == "analysis" and not recipient:
            self._state = self._in_reasoning
            self._separate(self.pieces.reasoning, self.pieces.add_reasoning)
        else:
            self._state = self._in_text
            self._separate(self.pieces.text, self.pieces.add_text)
            if recipient or channel not in {"final", "commentary"}:
                self.pieces.add_malformed(header + BODY)
        return after

    def _in_reasoning(self, buffer: str) -> str:
        return self._pass_on(buffer, self.pieces.add_reasoning)

    def _in_text(self, buffer: str) -> str:
        return self._pass_on(buffer, self.pieces.add_text)

    def _in_call(self, buffer: str) -> str:
        end = min((at for marker in (END, CALL) if (at := buffer.find(marker)) >= 0), default=-1)
        if end < 0:
            certain = len(buffer) - held_back(buffer, (END, CALL))
            self._call.append(buffer[:certain])
            self._held = buffer[certain:]
            return ""
        marker = END if buffer.startswith(END, end) else CALL
        self._call.append(buffer[:end])
        self._end_call(marker)
        self._state = self._in_header
        return buffer[end + len(marker) :]

    def _pass_on(self, buffer: str, add: Callable[[str], None]) -> str:
        before, end, after = buffer.partition(END)
        if not end:
            certain = len(buffer) - held_back(buffer, (END, START))
            before, self._held = buffer[:certain], buffer[certain:]
        if START in before:
            self.pieces.flags.add(OutputFlag.STRAY_MARKER)
        add(before)
        if end:
            self._state = self._in_header
        return after

    @staticmethod
    def _separate(so_far: str, add: Callable[[str], None]) -> None:
        if so_far:
            add("\n")

    def _end_header(self, header: str) -> None:
        """A header without a message: nothing, if only its start was written."""
        if header.strip() and not (START + "assistant").startswith(header.strip()):
            self.pieces.add_malformed(header)

    def _end_call(self, end: str) -> None:
        body = "".join(self._call)
        if is_object(body):
            self.pieces.add_call(ToolCall(new_call_id(), self._tool_name, body.strip()))
        else:
            self.pieces.add_malformed(self._header + BODY + body + end)
