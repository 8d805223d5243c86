"""Remember what was worked out for a byte string, and find it again for a longer one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class PrefixMemo(Generic[V]):
    """The most recent `capacity` strings with their values. A longer one replaces the prefix it was built on."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[bytes, V] = OrderedDict()

    def longest(self, text: bytes) -> tuple[bytes, V] | None:
        """The longest remembered prefix of `text` with its value."""
        found = max((known for known in self._entries if text.startswith(known)), key=len, default=None)
        if found is None:
            return None
        self._entries.move_to_end(found)
        return found, self._entries[found]

    def put(self, text: bytes, value: V, *, instead: bytes | None = None) -> None:
        """Remember `text`, in place of the prefix `instead`."""
        if instead is not None:
            self._entries.pop(instead, None)
        self._entries[text] = value
        self._entries.move_to_end(text)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
