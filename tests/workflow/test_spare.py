"""Places that no step uses, lent until one does."""

import asyncio
from typing import cast

import pytest

from paceline.engines.base import Engine
from paceline.routing.admission import Waiter
from paceline.routing.placement import ReplicaLoad, ReplicaPhase
from paceline.workflow.replicas import NoSparePlace, Replica, Replicas


def pool_of(*capacities: int, max_queued: int = 8) -> Replicas:
    """Replicas a, b, ... of one model."""
    pool = Replicas(max_queued)
    for name, capacity in zip("ab", capacities, strict=False):
        pool.add(Replica(ReplicaLoad(name, "m", capacity, ReplicaPhase.READY), cast("Engine", None)))
    return pool


class Task:
    """Holds a place in a task of its own: as a step, or as a guest in a spare one."""

    def __init__(self, pool: Replicas, *, bound: str | None = None, spare: str = "") -> None:
        self.place = ""
        self._done = asyncio.Event()
        self.task = asyncio.create_task(self._lend(pool, spare) if spare else self._step(pool, bound))

    async def _step(self, pool: Replicas, bound: str | None) -> None:
        async with pool.place(Waiter("t", "m", bound), nothing, lambda _waiting: None) as replica:
            self.place = replica.name
            await self._done.wait()

    async def _lend(self, pool: Replicas, name: str) -> None:
        async with pool.spare([name]) as replica:
            self.place = replica.name
            await self._done.wait()

    async def end(self) -> None:
        """Let it go, as it wants or by an error."""
        self._done.set()
        await self.task


async def nothing() -> None:
    return None


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def lent(pool: Replicas, name: str) -> bool:
    """Whether there is a spare place now."""
    try:
        async with pool.spare([name]):
            return True
    except NoSparePlace:
        return False


async def test_a_spare_place_is_free_now_or_not_given() -> None:
    pool = pool_of(2)
    steps = [Task(pool)]
    await settle()
    guest = Task(pool, spare="a")
    await settle()
    assert (guest.place, await lent(pool, "a")) == ("a", False)
    await guest.end()
    assert await lent(pool, "a")
    steps.append(Task(pool))
    await settle()
    assert not await lent(pool, "a")
    for step in steps:
        await step.end()
    assert await lent(pool, "a")


async def test_a_guest_is_no_load() -> None:
    pool = pool_of(1, 2)
    guest = Task(pool, spare="b")
    await settle()
    steps = [Task(pool), Task(pool)]
    await settle()
    assert ([step.place for step in steps], guest.task.done()) == (["a", "b"], False)
    for one in (*steps, guest):
        await one.end()
    assert [replica.load.running for replica in pool.all()] == [0, 0]


async def test_a_step_takes_a_spare_place_without_waiting() -> None:
    pool = pool_of(1, max_queued=0)
    guest = Task(pool, spare="a")
    await settle()
    step = Task(pool)
    await settle()
    assert (step.place, pool.queued(), pool.all()[0].load.running) == ("a", 0, 1)
    with pytest.raises(NoSparePlace, match="took"):
        await guest.end()
    await step.end()
    assert await lent(pool, "a")


async def test_a_guest_that_is_cancelled_leaves_no_trace() -> None:
    pool = pool_of(1)
    guest = Task(pool, spare="a")
    await settle()
    guest.task.cancel()
    await asyncio.wait([guest.task])
    assert guest.task.cancelled()
    assert await lent(pool, "a")


async def test_no_place_is_spare_while_a_step_waits_for_its_own_replica() -> None:
    pool = pool_of(1, 1)
    steps = [Task(pool, bound="a"), Task(pool, bound="a")]
    await settle()
    assert (pool.queued(), await lent(pool, "b")) == (1, False)
    for step in steps:
        await step.end()
    assert await lent(pool, "b")


async def test_an_engine_that_is_down_has_no_spare_place() -> None:
    pool = pool_of(1)
    pool.set_phase("a", ReplicaPhase.DOWN)
    assert not await lent(pool, "a")
