"""Text that ends the output, and text that might become a marker."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


def held_back(text: str, markers: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that is a proper start of a marker."""
    longest = 0
    for marker in markers:
        start = text.find(marker[0], max(0, len(text) - len(marker) + 1))
        while start >= 0 and not marker.startswith(text[start:]):
            start = text.find(marker[0], start + 1)
        if start >= 0:
            longest = max(longest, len(text) - start)
    return longest


class StopFilter:
    """Lets text through up to the first stop text, and knows in which token that begins.

    The stop text that is complete first counts; of those complete in the same piece, the one that begins first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._pieces: deque[tuple[str, int]] = deque()
        """(text, ids before it) of each piece that reaches into the held text; the first may be partly gone."""
        self.kept_ids: int | None = None
        """How many ids come before the token in which the stop begins; None until one is found."""
        self.rest = ""
        """What that token decodes to before the stop."""

    def feed(self, text: str, ids_before: int) -> str:
        """Take the text that the ids after the first `ids_before` decoded to; returns what is certainly none."""
        self._pieces.append((text, ids_before))
        buffer = self._held + text
        if (start := self._find(buffer)) is not None:
            self._cut(len(buffer) - start)
            self._held = ""
            return buffer[:start]
        keep = held_back(buffer, self._stops)
        self._held = buffer[len(buffer) - keep :]
        self._forget(keep)
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """Return the held text at the end of the output."""
        text, self._held = self._held, ""
        return text

    def _find(self, buffer: str) -> int | None:
        return min((start for stop in self._stops if (start := buffer.find(stop)) >= 0), default=None)

    def _cut(self, from_end: int) -> None:
        """Note the piece in which the character lies that is `from_end` characters from the end."""
        self._forget(from_end)
        text, self.kept_ids = self._pieces[0]
        self.rest = text[: sum(len(piece) for piece, _ in self._pieces) - from_end]

    def _forget(self, keep: int) -> None:
        """Drop the pieces that end before the last `keep` characters."""
        total = sum(len(piece) for piece, _ in self._pieces)
        while self._pieces and total - len(self._pieces[0][0]) >= keep:
            total -= len(self._pieces.popleft()[0])
