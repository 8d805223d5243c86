"""The Neuron plugin's scheduler, step by step: segments, stalled decoding, buckets, admission, K and time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.emulator.test_engine import read, request

from paceline.emulator.engine import Request
from paceline.emulator.neuron import Limits, NeuronSettings, bucket_of, neuron_settings, worst_case_streams
from paceline.emulator.neuron_engine import NeuronEngine
from paceline.emulator.neuron_start import Started
from paceline.emulator.neuron_times import table, times_of
from paceline.emulator.settings import VERSIONS, Settings, Timing

MakeEngine = Callable[..., NeuronEngine]
GREEDY: dict[str, Any] = {"on_device_sampling_config": {"all_greedy": True}}
LIMITS = Limits(max_model_len=128, max_num_seqs=4, max_num_batched_tokens=16, prefix_caching=True)


def neuron(limits: Limits = LIMITS, **given: Any) -> NeuronSettings:
    """What a `neuron_config` makes of the limits."""
    return neuron_settings(
        {"neuron_config": GREEDY | given},
        limits,
        tensor_parallel_size=8,
        drafter="",
        cache=None,
        times="llama-3.1-8b",
    )


@pytest.fixture
async def make_engine() -> AsyncIterator[MakeEngine]:
    """Engines without waiting; at the end nobody was preempted and no block is lost."""
    engines: list[NeuronEngine] = []

    def make(given: dict[str, Any] | None = None, **settings: Any) -> NeuronEngine:
        defaults: dict[str, Any] = {
            "model_name": "m",
            "features": VERSIONS["0.29"],
            "timing": Timing(scale=0),
            "block_size": 4,
            "num_blocks": 128,
            "max_model_len": LIMITS.max_model_len,
            "max_num_seqs": LIMITS.max_num_seqs,
            "max_num_batched_tokens": LIMITS.max_num_batched_tokens,
        }
        rules = neuron(**(given or {}))
        engine = NeuronEngine(Settings(**(defaults | settings), neuron=rules), rules, lambda _: None, Started())
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        await engine.close()
        engine.cache.check([])
        assert engine.totals.preemptions == 0


def steps_of(engine: NeuronEngine, count: int) -> list[list[tuple[str, int]]]:
    """Names and tokens of the next steps, which are advanced by hand: the engine's own task sleeps."""
    log = []
    for _ in range(count):
        step = engine._next_step()
        log.append([(one.request_id, tokens) for one, tokens in step])
        for one, tokens in step:
            engine._advance(one, tokens)
    return log


async def test_a_prompt_is_computed_in_segments_and_stalls_every_answer(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.waiting += [request("a", prompt=8, output=9), request("b", prompt=8, output=9)]
    assert steps_of(engine, 3) == [[("a", 8)], [("b", 8)], [("a", 1), ("b", 1)]]
    engine.waiting += [request("c", prompt=40, output=9), request("d", prompt=10, output=9)]
    assert steps_of(engine, 5) == [
        [("c", 16)],
        [("c", 16)],
        [("c", 8)],
        [("d", 10)],
        [("a", 1), ("b", 1), ("c", 1), ("d", 1)],
    ]


async def test_a_hit_saves_whole_segments_only(make_engine: MakeEngine) -> None:
    engine = make_engine()
    first, again = request("a", prompt=40, output=1), request("a", prompt=40, output=1)
    longer = request("a", prompt=90, output=1)
    seconds = []
    for one in (first, again, longer):
        engine.waiting += [one]
        spent = 0.0
        while step := engine._next_step():
            spent += engine._seconds(step)
            for member, tokens in step:
                engine._advance(member, tokens)
        seconds.append(spent)
    token = times_of("llama-3.1-8b").prefill_token_seconds
    assert (first.cached_tokens, again.cached_tokens, longer.cached_tokens) == (0, 36, 40)
    assert seconds == pytest.approx([3 * 16 * token, 16 * token, 4 * 16 * token])


async def test_a_decode_step_takes_the_time_of_its_bucket(make_engine: MakeEngine) -> None:
    engine = make_engine({"num_seqs_buckets": [1, 4]})
    times = times_of("llama-3.1-8b")
    engine.waiting += [request("a"), request("b")]
    steps_of(engine, 1)
    steps_of(engine, 1)
    two = engine._next_step()
    assert engine._seconds(two) == pytest.approx(times.step_seconds + 3 * times.step_per_request_seconds)
    assert engine._seconds(two[:1]) == pytest.approx(times.step_seconds)


async def test_each_admitted_request_counts_with_the_longest_context(make_engine: MakeEngine) -> None:
    """128 blocks of 4 tokens hold four times 128 tokens; with 100 blocks three requests run, however short."""
    engine = make_engine(num_blocks=100)
    requests = [request(str(number)) for number in range(6)]
    for one in requests:
        engine.submit(one)
    most = 0
    for one in requests:
        while await one.chunks.get():
            most = max(most, len(engine.running))
    assert most == 3
    assert engine.totals.finished["length"] == 6


async def test_nobody_is_preempted_where_all_grow_to_the_end(make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=126, num_blocks=127)
    requests = [request(str(number), prompt=6, output=120) for number in range(5)]
    for one in requests:
        engine.submit(one)
    for one in requests:
        assert await read(one) == list(range(120))


def test_a_part_of_a_block_counts_as_one() -> None:
    assert worst_case_streams(13, 32, 100) == 3
    assert worst_case_streams(16, 32, 100) == 4


async def drafted(engine: NeuronEngine, one: Request) -> tuple[int, int, int]:
    """Steps, drafted and accepted tokens of a request that ran to its end."""
    engine.submit(one)
    await read(one)
    assert one.drafts is not None
    return one.drafts.steps, one.drafts.drafted, one.drafts.accepted


async def test_k_is_fixed_whatever_a_script_says(make_engine: MakeEngine) -> None:
    engine = make_engine(spec_method="eagle3", spec_tokens=3)
    one = request("a", output=9)
    one.plan = replace(one.plan, acceptance=(1.0,))
    assert await drafted(engine, one) == (4, 12, 4)


async def test_nothing_is_drafted_at_the_end_of_the_context(make_engine: MakeEngine) -> None:
    """From 128 - 3 tokens on: the third of five output tokens is the last that follows a draft."""
    engine = make_engine(spec_method="eagle3", spec_tokens=3, acceptance=(0.0, 0.0, 0.0))
    assert await drafted(engine, request("a", prompt=122, output=6)) == (2, 6, 0)


async def test_drafting_takes_the_published_time(make_engine: MakeEngine) -> None:
    """6.41 ms per token at 3.22 tokens per step, and a prefill that takes 64 instead of 51 ms."""
    engine = make_engine(spec_method="eagle3", spec_tokens=3)
    engine.waiting += [request("a")]
    prefill = engine._next_step()
    assert engine._seconds(prefill) == pytest.approx(16 * 0.064 / 512, rel=1e-3)
    engine._advance(*prefill[0])
    decode = engine._next_step()
    assert engine._seconds(decode) / 3.22 == pytest.approx(0.00641, rel=1e-3)
    assert engine.drafter is not None
    assert 1 + sum(times_of("llama-3.1-8b").acceptance) == pytest.approx(3.22, abs=0.01)


async def test_without_prefix_caching_nothing_is_reused(make_engine: MakeEngine) -> None:
    engine = make_engine(prefix_caching=False)
    one, again = request("a", prompt=40), request("a", prompt=40)
    for each in (one, again):
        engine.submit(each)
        await read(each)
    assert (one.cached_tokens, again.cached_tokens) == (0, 0)


def test_graphs_are_counted_by_buckets_and_families() -> None:
    rules = neuron(num_seqs_buckets=[2, 4], decode_context_length_buckets=[64])
    assert rules.graphs(drafting=False) == [
        "prefill_s16",
        *("decode_b2_c64", "decode_b2_c128", "decode_b4_c64", "decode_b4_c128"),
    ]
    assert len(rules.graphs(drafting=True)) == 1 + 4 * 3
    assert [rules.decode_graph(batch, longest) for batch, longest in ((1, 64), (3, 65))] == [
        "decode_b2_c64",
        "decode_b4_c128",
    ]


def test_buckets_default_to_powers_of_two() -> None:
    whole = neuron(Limits(1000, 6, 1024, prefix_caching=False))
    assert (whole.prefill_buckets, whole.batch_buckets) == ((128, 256, 512, 1000), (1, 2, 4, 6))
    assert [bucket_of(whole.prefill_buckets, size) for size in (1, 128, 129, 900)] == [128, 128, 256, 1000]
    assert neuron().prefill_buckets == (16,)


@pytest.mark.parametrize("given", [{"kv_segment_size_buckets": [32]}, {"fast": True}])
def test_what_is_not_imitated_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"kv_segment_size_buckets|fast"):
        neuron(**given)


def test_rates_beyond_the_published_ones_go_on_falling() -> None:
    rates = times_of("llama-3.1-8b").acceptance_of(5)
    assert rates[:3] == (0.865, 0.725, 0.635)
    assert 0 < rates[4] < rates[3] < rates[2]
    assert times_of("llama-3.1-8b").acceptance_of(1) == (0.865,)


def test_each_time_has_its_formula_and_source() -> None:
    known = table()["sources"].keys()
    figures = [figure for row in table()["models"].values() for figure in row.values()]
    assert len(figures) == 18
    assert all(figure["how"] and set(figure["source"]) <= known and figure["source"] for figure in figures)
