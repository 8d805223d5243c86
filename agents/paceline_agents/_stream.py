"""The events of a step over one or several calls: what was delivered before a break is not delivered again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from paceline.errors import InternalError
from paceline.v1 import step_service_pb2
from paceline_agents import _convert
from paceline_agents import types as t

_Output = t.ReasoningDelta | t.TextDelta | t.ToolCallReady


@dataclass
class _Heard:
    """What a step has said so far."""

    reasoning: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    calls: list[t.ToolCall] = field(default_factory=list)
    size: int = 0
    """Characters and calls."""

    def add(self, event: _Output) -> None:
        match event:
            case t.ReasoningDelta(piece):
                self.reasoning.append(piece)
                self.size += len(piece)
            case t.TextDelta(piece):
                self.text.append(piece)
                self.size += len(piece)
            case t.ToolCallReady(call):
                self.calls.append(call)
                self.size += 1

    def texts(self) -> tuple[str, str]:
        return "".join(self.reasoning), "".join(self.text)

    def covers(self, other: _Heard) -> bool:
        """Everything that `other` has is the beginning of this."""
        pairs = zip(self.texts(), other.texts(), strict=True)
        return all(mine.startswith(theirs) for mine, theirs in pairs) and _begins_with(self.calls, other.calls)

    def contradicts(self, other: _Heard) -> bool:
        """Neither is the beginning of the other in some respect."""
        pairs = zip(self.texts(), other.texts(), strict=True)
        same_texts = all(mine.startswith(theirs) or theirs.startswith(mine) for mine, theirs in pairs)
        return not (
            same_texts and (_begins_with(self.calls, other.calls) or _begins_with(other.calls, self.calls))
        )

    def beyond(self, other: _Heard) -> Iterator[_Output]:
        """What this has more than `other`, which it covers."""
        (reasoning, text), (old_reasoning, old_text) = self.texts(), other.texts()
        if len(reasoning) > len(old_reasoning):
            yield t.ReasoningDelta(reasoning[len(old_reasoning) :])
        if len(text) > len(old_text):
            yield t.TextDelta(text[len(old_text) :])
        for call in self.calls[len(other.calls) :]:
            yield t.ToolCallReady(call)


def _begins_with(calls: list[t.ToolCall], others: list[t.ToolCall]) -> bool:
    """By name and arguments: a new attempt gives its calls new ids."""
    heads = [(call.tool_name, call.arguments_json) for call in calls[: len(others)]]
    return heads == [(call.tool_name, call.arguments_json) for call in others]


class EventReader:
    """Turns responses into events. After `rewind` it skips what it delivered before."""

    def __init__(self) -> None:
        self.started: t.Started | None = None
        """The last start, the one of a resumed call included."""
        self.answer: t.Answer | None = None
        self._delivered = _Heard()
        self._replay: _Heard | None = None

    @property
    def position(self) -> int:
        """How much of an answer was delivered, in characters and calls."""
        return self._delivered.size

    def rewind(self) -> None:
        """Another call for the same request begins and tells everything from the start."""
        if self.started is not None:
            self._replay = _Heard()

    def read(self, response: step_service_pb2.RunStepResponse) -> Iterator[t.Event]:
        """The events that a response means to the consumer."""
        event = _convert.event(response, self.started.step_id if self.started else "")
        match event:
            case t.Started():
                if self.started is None:
                    yield event
                self.started = event
            case t.ReasoningDelta() | t.TextDelta() | t.ToolCallReady():
                yield from self._output(event)
            case t.Finished(answer):
                yield from self._catch_up(last=True)
                self.answer = answer
                yield event
            case t.Progress():
                yield event

    def result(self) -> t.Answer:
        """The answer. Raises InternalError when the stream ended without one."""
        if self.answer is None:
            raise InternalError("the step's stream ended without an answer; run the step again by its request_id")
        return self.answer

    def _output(self, event: _Output) -> Iterator[t.Event]:
        if self._replay is None:
            self._delivered.add(event)
            yield event
        else:
            self._replay.add(event)
            yield from self._catch_up(last=False)

    def _catch_up(self, *, last: bool) -> Iterator[t.Event]:
        """Leave the replay as soon as it has told everything that was delivered, or something else."""
        replay, delivered = self._replay, self._delivered
        if replay is None:
            return
        if replay.covers(delivered):
            yield from replay.beyond(delivered)
        elif last or replay.contradicts(delivered):
            yield t.Restarted()
            yield from replay.beyond(_Heard())
        else:
            return
        self._delivered, self._replay = replay, None
