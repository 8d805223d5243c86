"""The scheduler: order, batch size, preemption and what its counters say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from paceline.emulator.engine import EmulatedEngine, Request
from paceline.emulator.output import Plan
from paceline.emulator.settings import VERSIONS, Settings, Timing

MakeEngine = Callable[..., EmulatedEngine]


def request(name: str, prompt: int = 8, output: int = 5, **more: Any) -> Request:
    """A request whose prompt shares nothing with another one's."""
    ids = list(range(output))
    ids_of_prompt = [int.from_bytes(name.encode(), "little"), *range(prompt - 1)]
    return Request(
        request_id=name,
        prompt=b"".join(token.to_bytes(4, "little") for token in ids_of_prompt),
        plan=Plan(ids=ids, upcoming=ids, texts=[""] * output, finish_reason="length"),
        **more,
    )


async def read(one: Request) -> list[int]:
    """All ids of a request, to its end."""
    got: list[int] = []
    while chunk := await one.chunks.get():
        got += one.plan.ids[chunk[0] : chunk[1]]
    return got


@pytest.fixture
async def make_engine() -> AsyncIterator[MakeEngine]:
    """Engines without waiting, with an audit of their cache at the end."""
    engines: list[tuple[EmulatedEngine, list[Request]]] = []

    def make(ended: list[Request] | None = None, **settings: Any) -> EmulatedEngine:
        log: list[Request] = [] if ended is None else ended
        defaults: dict[str, Any] = {
            "model_name": "m",
            "features": VERSIONS["0.32"],
            "timing": Timing(scale=0),
            "block_size": 4,
        }
        engine = EmulatedEngine(Settings(**({"max_model_len": 64} | defaults | settings)), log.append)
        engines.append((engine, log))
        return engine

    yield make
    for engine, _ in engines:
        await engine.close()
        engine.cache.check([])
        assert engine.cache.usage == 0.0


async def test_no_more_requests_run_than_allowed(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2)
    requests = [request(str(number)) for number in range(5)]
    for one in requests:
        engine.submit(one)
    most = 0
    for one in requests:
        while await one.chunks.get():
            most = max(most, len(engine.running))
    assert most == 2
    assert engine.totals.finished == {"stop": 0, "length": 5}


@pytest.mark.parametrize(("policy", "order"), [(False, ["a", "b", "c"]), (True, ["b", "c", "a"])])
async def test_the_waiting_start_in_order(make_engine: MakeEngine, policy: bool, order: list[str]) -> None:
    ended: list[Request] = []
    engine = make_engine(ended, max_num_seqs=1, priority_scheduling=policy)
    requests = [request("a", priority=1), request("b", priority=-1), request("c", priority=-1)]
    for one in requests:
        engine.submit(one)
    await asyncio.gather(*(read(one) for one in requests))
    assert [one.request_id for one in ended] == order


async def test_a_preempted_request_loses_nothing(make_engine: MakeEngine) -> None:
    """Two requests that together need more blocks than there are; the third may not pass the preempted one."""
    ended: list[Request] = []
    engine = make_engine(ended, num_blocks=16, max_num_seqs=2)
    first, second = request("a", prompt=20, output=40), request("b", prompt=20, output=40)
    third = request("c", prompt=1, output=1)
    for one in (first, second, third):
        engine.submit(one)
    assert list(await asyncio.gather(read(first), read(second))) == [list(range(40)), list(range(40))]
    assert await read(third) == [0]
    assert ended[0] is first
    assert engine.totals.preemptions > 0
    assert engine.totals.generation_tokens == 81
    assert engine.totals.prompt_tokens == 41
    assert engine.totals.cache_queries == 41


async def test_with_priorities_the_least_urgent_is_preempted(make_engine: MakeEngine) -> None:
    ended: list[Request] = []
    engine = make_engine(ended, num_blocks=16, max_num_seqs=2, priority_scheduling=True)
    first, second = request("a", 20, 40, priority=1), request("b", 20, 40, priority=0)
    engine.submit(first)
    await first.chunks.get()
    engine.submit(second)
    await asyncio.gather(read(first), read(second))
    assert engine.totals.preemptions > 0
    assert [one.request_id for one in ended] == ["b", "a"]


async def test_a_long_prompt_takes_several_steps(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=8)
    one = request("a", prompt=30)
    engine.submit(one)
    computed = set()
    while one.chunks.empty():
        await asyncio.sleep(0)
        computed.add(one.sequence.computed if one.sequence else 0)
    assert {8, 16, 24, 30} <= computed
    assert await read(one) == list(range(5))


async def test_time_follows_the_stated_model(make_engine: MakeEngine) -> None:
    """Seconds of steps: a prefill of 8 uncached tokens with one start, then decode steps of one and of two."""
    engine = make_engine(timing=Timing(0.5, 0.25, 2.0, 0.125, scale=0))
    first, second = request("a"), request("b")
    engine.waiting += [first]
    assert engine._seconds(engine._next_step()) == 8 * 0.5 + 0.25
    engine._advance(first, 8)
    assert engine._seconds(engine._next_step()) == 2.0
    engine.waiting += [second]
    assert engine._seconds(engine._next_step()) == 8 * 0.5 + 0.25 + 2.0
    engine._advance(second, 8)
    assert engine._seconds(engine._next_step()) == 2.0 + 0.125


async def test_an_aborted_request_leaves_and_its_blocks_stay_cached(make_engine: MakeEngine) -> None:
    ended: list[Request] = []
    engine = make_engine(ended, max_num_seqs=1)
    held, waiting = request("a", prompt=12, hold_after=2), request("b")
    engine.submit(held)
    engine.submit(waiting)
    assert [await held.chunks.get(), await held.chunks.get()] == [(0, 1), (1, 2)]
    assert engine.waiting == [waiting]
    engine.abort(held)
    assert await held.chunks.get() is None
    assert await read(waiting) == list(range(5))
    assert [one.finish_reason for one in ended] == ["abort", "length"]
    assert (engine.totals.aborts, engine.totals.finished["length"]) == (1, 1)
    again = request("a", prompt=12)
    engine.submit(again)
    await read(again)
    assert again.cached_tokens == 8


async def test_drafts_are_counted_once_per_step(make_engine: MakeEngine) -> None:
    engine = make_engine(spec_method="draft_model", spec_tokens=3, acceptance=(1.0, 1.0, 0.0))
    one = request("a", output=10)
    engine.submit(one)
    assert await read(one) == list(range(10))
    assert one.drafts is not None
    assert (one.drafts.steps, one.drafts.drafted, one.drafts.accepted) == (3, 9, 6)
    assert one.draft_steps == [(2, 3)] * 3
    assert engine.totals.drafts.accepted == 6


async def test_drafts_take_the_time_that_is_set_for_them(make_engine: MakeEngine) -> None:
    """Three drafted tokens of each of two requests; a longer curve is cut to what is drafted."""
    timing = Timing(0.0, 0.0, 2.0, 0.125, step_per_draft=0.5, scale=0)
    curve = (1.0, 1.0, 0.5, 0.5, 0.5)
    engine = make_engine(timing=timing, spec_method="draft_model", spec_tokens=3, acceptance=curve)
    engine.waiting += [request("a"), request("b")]
    for one, tokens in engine._next_step():
        engine._advance(one, tokens)
    assert engine._seconds(engine._next_step()) == 2.0 + 0.125 + 2 * 3 * 0.5


async def test_drafts_are_drawn_by_seed_and_prompt(make_engine: MakeEngine) -> None:
    async def draws(name: str, seed: int) -> list[tuple[int, int]]:
        one = request(name, output=60, seed=seed)
        engine.submit(one)
        await read(one)
        return one.draft_steps

    engine = make_engine(max_model_len=128, spec_method="draft_model", spec_tokens=4)
    assert await draws("a", 1) == await draws("a", 1)
    assert await draws("a", 1) != await draws("b", 1)
    assert await draws("a", 1) != await draws("a", 2)
