"""Writes that must happen whatever else does: shielded from cancellation, kept until the database takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from paceline.errors import LedgerUnavailable, PacelineError

log = structlog.get_logger()


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end even when cancelled meanwhile; the cancellation is raised afterwards."""
    if await _settle(asyncio.ensure_future(work)):
        raise asyncio.CancelledError


async def _settle(task: asyncio.Future[None]) -> bool:
    """Wait for the task, whatever it takes, and raise its error. True when cancelled meanwhile."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    return cancelled


class Closer:
    """Closes attempts and steps. A close that the database refuses is kept and tried again by `retry`."""

    def __init__(self) -> None:
        self._kept: deque[Callable[[], Awaitable[None]]] = deque()

    def kept(self) -> int:
        """How many closes wait for the database."""
        return len(self._kept)

    async def close(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Write now. A cancellation that arrives meanwhile is dropped: the work is over anyway.

        Raises `LedgerUnavailable` when the write had to be kept for later.
        """
        try:
            await _settle(asyncio.ensure_future(write()))
        except LedgerUnavailable:
            self.keep(write)
            raise

    def keep(self, write: Callable[[], Awaitable[None]]) -> None:
        """Leave a write to `retry`."""
        self._kept.append(write)
        log.warning("close_kept", waiting=len(self._kept))

    async def retry(self) -> None:
        """Try the kept writes again, oldest first; stops quietly at the first that the database does not take."""
        while self._kept:
            write = self._kept[0]
            try:
                await write()
            except LedgerUnavailable:
                return
            except PacelineError as error:  # such as RuntimeLost: the ledger says that it is settled otherwise
                log.warning("close_dropped", reason=error.reason, error=error.message)
            except Exception:  # a defect in one close must not keep all later ones
                log.exception("close_crashed")
            self._kept.popleft()
