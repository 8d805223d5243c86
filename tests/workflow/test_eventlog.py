"""Readers of a step's events, fast and slow."""

import asyncio

import pytest

from paceline.errors import EngineLost
from paceline.workflow.eventlog import EventLog
from paceline.workflow.events import Event, Phase, Progress, ReasoningDelta, Started, TextDelta

STARTED = Started("step0001", "flow0001", "request1")


async def read_all(log: EventLog) -> list[Event]:
    return [event async for event in log.read()]


async def test_a_late_reader_gets_text_joined_and_no_stale_progress() -> None:
    log = EventLog()
    log.add(STARTED)
    log.add(Progress(Phase.PREFILL))
    for piece in ("a", "b", "c"):
        log.add(TextDelta(piece))
    log.add(ReasoningDelta("d"))
    log.close()
    assert await read_all(log) == [STARTED, TextDelta("abc"), ReasoningDelta("d")]


async def test_a_keen_reader_sees_progress_and_each_piece() -> None:
    log = EventLog()
    seen: list[Event] = []

    async def read() -> None:
        async for event in log.read():
            seen.append(event)

    task = asyncio.create_task(read())
    for event in (STARTED, Progress(Phase.PREFILL), TextDelta("a"), TextDelta("b")):
        log.add(event)
        before = len(seen)
        while len(seen) == before:
            await asyncio.sleep(0)
    log.close()
    await task
    assert seen == [STARTED, Progress(Phase.PREFILL), TextDelta("a"), TextDelta("b")]


async def test_every_reader_gets_the_error_after_the_events() -> None:
    log = EventLog()
    log.add(TextDelta("a"))
    log.close(EngineLost())
    for _ in range(2):
        seen: list[Event] = []
        with pytest.raises(EngineLost):
            async for event in log.read():
                seen.append(event)
        assert seen == [TextDelta("a")]
