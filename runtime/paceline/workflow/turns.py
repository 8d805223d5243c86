"""One step of a workflow at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


def turn_of(tenant: str, workflow_id: str) -> str:
    """The name of a workflow's turn."""
    return f"{tenant}/{workflow_id}"


class Turns:
    """A fair lock per workflow, kept only while somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def busy(self, workflow_id: str) -> bool:
        """Whether a step of the workflow is running here."""
        return workflow_id in self._locks

    @asynccontextmanager
    async def take(self, workflow_id: str) -> AsyncIterator[None]:
        """Hold the workflow's turn while the block runs."""
        lock, users = self._locks.get(workflow_id, (asyncio.Lock(), 0))
        self._locks[workflow_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[workflow_id]
            if users == 1:
                del self._locks[workflow_id]
            else:
                self._locks[workflow_id] = (lock, users - 1)
