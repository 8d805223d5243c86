"""Places on replicas, with callers that wait, give up and come too many."""

import asyncio
from typing import Any, cast

import pytest

from paceline.engines.base import Engine
from paceline.errors import EngineUnavailable, QueueFull
from paceline.routing.admission import Waiter
from paceline.routing.placement import ReplicaLoad, ReplicaPhase
from paceline.workflow.events import Phase
from paceline.workflow.replicas import Replica, Replicas, Waiting


def replicas(phase: ReplicaPhase = ReplicaPhase.READY, max_queued: int = 8) -> Replicas:
    made = Replicas(max_queued)
    made.add(Replica(ReplicaLoad("a", "m", 1, phase), cast("Engine", None)))
    return made


async def nothing() -> None:
    return None


async def hold(pool: Replicas, seen: list[Waiting], until: asyncio.Event, queued: Any = nothing) -> str:
    async with pool.place(Waiter("t", "m"), queued, seen.append) as replica:
        await until.wait()
        return replica.name


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_waiting_is_visible_and_in_order() -> None:
    pool, seen = replicas(), list[Waiting]()
    ends = [asyncio.Event() for _ in range(3)]
    tasks = []
    for end in ends:
        tasks.append(asyncio.create_task(hold(pool, seen if end is ends[2] else [], end)))
        await settle()
    for end in ends:
        end.set()
        await settle()
    assert seen == [Waiting(Phase.QUEUED, 1), Waiting(Phase.QUEUED, 0)]
    assert await asyncio.gather(*tasks) == ["a", "a", "a"]
    assert pool.queued() == 0


async def test_who_gives_up_leaves_no_trace() -> None:
    pool, done = replicas(), asyncio.Event()
    holder = asyncio.create_task(hold(pool, [], done))
    await settle()
    waiter = asyncio.create_task(hold(pool, [], done))
    await settle()
    waiter.cancel()
    await asyncio.wait([waiter])
    done.set()
    await holder
    assert (pool.queued(), pool.all()[0].load.running) == (0, 0)


async def test_a_step_cancelled_just_when_its_place_came_gives_it_back() -> None:
    pool, done = replicas(), asyncio.Event()
    holder = asyncio.create_task(hold(pool, [], done))
    await settle()
    waiter = asyncio.create_task(hold(pool, [], asyncio.Event()))
    await settle()
    done.set()
    await holder  # the place is granted to the waiter, which has not run yet
    waiter.cancel()
    await asyncio.wait([waiter])
    assert pool.all()[0].load.running == 0


async def test_a_starting_engine_is_waited_for_and_a_dead_one_is_not() -> None:
    pool, done, seen = replicas(ReplicaPhase.STARTING), asyncio.Event(), list[Waiting]()
    done.set()
    waiter = asyncio.create_task(hold(pool, seen, done))
    await settle()
    assert seen == [Waiting(Phase.ENGINE_STARTING, 0)]
    pool.set_phase("a", ReplicaPhase.DOWN, "out of memory")
    with pytest.raises(EngineUnavailable, match="out of memory"):
        await waiter
    with pytest.raises(EngineUnavailable):
        await hold(pool, [], done)
    assert pool.queued() == 0


async def test_the_queue_has_an_end() -> None:
    pool, done = replicas(max_queued=0), asyncio.Event()
    holder = asyncio.create_task(hold(pool, [], done))
    await settle()
    with pytest.raises(QueueFull):
        await hold(pool, [], done)
    done.set()
    await holder
