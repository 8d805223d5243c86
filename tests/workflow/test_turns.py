"""One step of a workflow at a time, and writes that end whatever happens."""

import asyncio

import pytest

from paceline.errors import LedgerUnavailable
from paceline.workflow.closing import Closer, to_the_end
from paceline.workflow.turns import Turns


async def test_turns_are_taken_in_order_and_forgotten() -> None:
    turns, order = Turns(), list[int]()

    async def step(number: int) -> None:
        async with turns.take("flow"):
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(step(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert not turns.busy("flow")


async def test_a_cancelled_waiter_leaves_the_turn_to_the_next() -> None:
    turns = Turns()
    async with turns.take("flow"):
        waiting = asyncio.create_task(_hold(turns))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert turns.busy("flow")
    assert not turns.busy("flow")


async def _hold(turns: Turns) -> None:
    async with turns.take("flow"):
        pass


async def test_a_cancelled_write_still_ends() -> None:
    gate, written = asyncio.Event(), list[str]()

    async def write() -> None:
        await gate.wait()
        written.append("row")

    task = asyncio.create_task(to_the_end(write()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written == ["row"]


async def test_a_refused_close_is_kept_and_retried_in_order() -> None:
    closer, up, written = Closer(), False, list[int]()

    def write(number: int):  # type: ignore[no-untyped-def] # a factory of coroutines, typed by its use
        async def run() -> None:
            if not up:
                raise LedgerUnavailable
            written.append(number)

        return run

    for number in (1, 2):
        with pytest.raises(LedgerUnavailable):
            await closer.close(write(number))
    await closer.retry()
    assert closer.kept() == 2
    up = True
    await closer.retry()
    assert (written, closer.kept()) == ([1, 2], 0)


async def test_a_kept_close_that_crashes_does_not_keep_the_others() -> None:
    closer, written = Closer(), list[str]()

    async def crash() -> None:
        raise ZeroDivisionError

    async def write() -> None:
        written.append("row")

    closer.keep(crash)
    closer.keep(write)
    await closer.retry()
    assert (written, closer.kept()) == (["row"], 0)
