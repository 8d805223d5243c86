"""The events of one running step, for any number of readers at any pace.

The writer never waits. Text is kept once, in pieces; a reader that falls behind gets the missed pieces joined, so
memory is bounded by the answer, whatever the readers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from paceline.workflow.events import Event, Progress, ReasoningDelta, TextDelta


@dataclass(slots=True)
class _Text:
    kind: type[TextDelta] | type[ReasoningDelta]
    pieces: list[str] = field(default_factory=list)


class EventLog:
    """Append-only; `close` ends it, with an error to raise in the readers or without."""

    def __init__(self) -> None:
        self._items: list[_Text | Event] = []
        self._progress: Progress | None = None
        self._closed = False
        self._error: BaseException | None = None
        self._readers: set[asyncio.Event] = set()

    def add(self, event: Event) -> None:
        """Append an event. Only the latest progress is kept, and none once there is text or a call."""
        match event:
            case Progress():
                self._progress = event
            case TextDelta(text=text) | ReasoningDelta(text=text):
                last = self._items[-1] if self._items else None
                if not isinstance(last, _Text) or last.kind is not type(event):
                    last = _Text(type(event))
                    self._items.append(last)
                last.pieces.append(text)
                self._progress = None
            case _:
                self._items.append(event)
                self._progress = None
        self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """End the log."""
        self._closed, self._error = True, error
        self._wake()

    async def read(self) -> AsyncGenerator[Event, None]:
        """Yield everything from the first event on; raise the log's error after the last."""
        wake = asyncio.Event()
        self._readers.add(wake)
        try:
            index = piece = 0
            seen: Progress | None = None
            while True:
                wake.clear()
                while index < len(self._items):
                    item = self._items[index]
                    if not isinstance(item, _Text):
                        index, piece = index + 1, 0
                        yield item
                    elif piece < len(item.pieces):
                        text = "".join(item.pieces[piece:])
                        piece = len(item.pieces)
                        yield item.kind(text)
                    elif index + 1 < len(self._items):
                        index, piece = index + 1, 0
                    else:
                        break
                if self._closed:
                    break
                if self._progress is not seen and self._progress is not None:
                    seen = self._progress
                    yield seen
                else:
                    await wake.wait()
            if self._error:
                raise self._error
        finally:
            self._readers.discard(wake)

    def _wake(self) -> None:
        for reader in self._readers:
            reader.set()
