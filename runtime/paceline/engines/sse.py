"""Server-sent events on raw bytes: the per-token hot path of the engine adapter."""

from __future__ import annotations

DONE = b"[DONE]"
_ECHO = b'"prompt_token_ids":['
_ECHO_MIN_BYTES = 1024
"""Below this size cutting the echo out costs more than skipping it in the JSON decoder."""


class EventSplitter:
    """Cuts a byte stream into the payloads of its `data:` lines.

    An event is one line, as vLLM writes it. Other lines (comments, blank ones) are dropped. An unfinished line
    is kept in pieces and joined once, so that a long one in many pieces costs linear time.
    """

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that `data` completes."""
        lines = data.split(b"\n")
        pieces = self._pieces
        rest = lines.pop()
        if lines and pieces:
            pieces.append(lines[0])
            lines[0] = b"".join(pieces)
            pieces.clear()
        if rest:
            pieces.append(rest)
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def without_echo(payload: bytes) -> bytes:
    """Return a JSON payload with the echoed prompt ids replaced by an empty list.

    The key cannot be inside a JSON string: a quote there is escaped, and here a bare one follows the name.
    """
    if len(payload) < _ECHO_MIN_BYTES:
        return payload
    key = payload.find(_ECHO)
    if key < 0:
        return payload
    start = key + len(_ECHO)
    return payload[:start] + payload[payload.index(b"]", start) :]
