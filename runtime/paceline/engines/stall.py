"""Notices an engine that hangs with its connection open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from types import TracebackType


class StallGuard:
    """Calls `on_stall` once when the reader has waited `seconds` for ids.

    One timer per stream, moved only when it fires: a read timeout would cost two timers per chunk, half as much
    as everything else that a chunk costs.
    """

    __slots__ = ("_on_stall", "_seconds", "_since", "_timer")

    def __init__(self, seconds: float, on_stall: Callable[[], object]) -> None:
        self._seconds = seconds
        self._on_stall = on_stall
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> StallGuard:
        self.resume()
        self._arm(self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def pause(self) -> None:
        """Ids came, and their consumer has them: its time does not count."""
        self._since = None

    def resume(self) -> None:
        """Wait for ids from now on."""
        self._since = monotonic()

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        left = self._seconds if self._since is None else self._since + self._seconds - monotonic()
        if left > 0:
            self._arm(left)
        else:
            self._on_stall()
