"""Writes that must happen whatever else does: shielded from cancellation, kept until the database takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from paceline.errors import LedgerUnavailable

log = structlog.get_logger()


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end even when cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.result()
        raise


class Closer:
    """Closes attempts and steps. A close that the database refuses is kept and tried again by `retry`."""

    def __init__(self) -> None:
        self._kept: deque[Callable[[], Awaitable[None]]] = deque()

    def kept(self) -> int:
        """How many closes wait for the database."""
        return len(self._kept)

    async def close(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write now. A cancellation that arrives meanwhile is dropped: the work is over anyway.

        Raises `LedgerUnavailable` when the write had to be kept for later.
        """
        task = asyncio.ensure_future(write())
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                continue
            except LedgerUnavailable:
                break
        try:
            task.result()
        except LedgerUnavailable:
            self._kept.append(write)
            log.warning("close_kept", waiting=len(self._kept))
            raise

    async def retry(self) -> None:
        """Try the kept writes again, oldest first; stops quietly at the first that fails."""
        while self._kept:
            try:
                await self._kept[0]()
            except LedgerUnavailable:
                return
            self._kept.popleft()
