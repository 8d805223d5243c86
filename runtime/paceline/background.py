"""Background tasks of a process: named, stopped with the stack that owns them, never failing in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import structlog

log = structlog.get_logger()


def start(stack: AsyncExitStack, name: str, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until the stack closes, which cancels it and waits for its end."""

    async def stop() -> None:
        task.cancel()
        await asyncio.wait([task])

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_check)
    stack.push_async_callback(stop)


def _check(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("background_task_failed", task=task.get_name(), exc_info=error)
