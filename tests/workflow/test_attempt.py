"""What one attempt says of the replica's time that it took."""

import asyncio
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from paceline.engines.base import Engine, GenerateRequest, GenerationEnd, TokenChunk
from paceline.ledger.prices import PriceBook
from paceline.routing.placement import ReplicaLoad
from paceline.transcript import chat
from paceline.workflow.attempt import Attempt
from paceline.workflow.ports import NewAttempt, Reservation
from paceline.workflow.replicas import Replica


class Scripted:
    """An engine that says two bytes and takes its time."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk | GenerationEnd, None]:
        for byte in b"ok":
            await asyncio.sleep(0.005)
            yield TokenChunk([byte])
        yield GenerationEnd("length", 1, 2, 0)


async def attempt_on(replica: Replica) -> Attempt:
    moment = datetime.now(UTC)
    new = NewAttempt("at-1", "st-1", "wf-1", 1, replica.name, "rt-1", 1, "", moment, Reservation())
    parser = (await chat.load("emulated")).parser(())
    return Attempt(new, "m", replica, parser=parser, prices=PriceBook({}, {}), arrived=time.monotonic())


async def test_attempts_in_turn_take_all_of_the_time_that_the_replica_was_busy() -> None:
    replica = Replica(ReplicaLoad("a", "m", 1), cast("Engine", Scripted()))
    seconds = 0.0
    for _ in range(3):
        attempt = await attempt_on(replica)
        await attempt.stream(cast("Any", None), lambda _events: None)
        seconds += attempt.accelerator_seconds()
    assert seconds == pytest.approx(replica.time.busy)
    assert seconds > 3 * 2 * 0.004


async def test_an_attempt_that_was_never_dispatched_takes_nothing() -> None:
    replica = Replica(ReplicaLoad("a", "m", 1), cast("Engine", Scripted()))
    attempt = await attempt_on(replica)
    later = time.monotonic() + 60
    replica.time.leave(later, replica.time.enter(later))
    assert (attempt.accelerator_seconds(), replica.time.busy) == (0.0, 0.0)
