"""Greedy steps of a drafting engine are compared with an engine that does not draft, and nobody notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from tests.e2e.conftest import Emulator, Paceline

from paceline.routing.admission import Waiter
from paceline_agents import types as t

MakeEmulator = Callable[..., Emulator]
Run = Callable[..., Any]
FAST = ("--time-scale=0", "--reply-tokens=40")
PLAIN = (*FAST, "--speculative-config={}", "--per-request-spec-decode-metrics=off")
SAID, OTHERWISE = "one two three", "one two four"
EQUAL = len("one two ")
"""The built-in tokenizer has a token for each byte."""
F, T = ord("f"), ord("t")


class Pair:
    """A drafting and a plain engine of one model."""

    def __init__(self, emulator: MakeEmulator, run: Run) -> None:
        self.drafting, self.plain = emulator(*FAST), emulator(*PLAIN)
        self._run = run

    def serve(self, **canary: Any) -> Any:
        """A runtime in front of both. Steps are greedy, and each is a sample."""
        return self._run(
            self.drafting.url,
            models={"m": {"path": "emulated", "sampling_temperature": 0}},
            engines={
                "plain": {
                    "model": "m",
                    "url": self.plain.url,
                    "max_concurrent_steps": 1,
                    "instance_type": "box",
                }
            },
            canary={"m": {"share": 1, **canary}},
        )

    async def step(self, paceline: Paceline) -> t.Answer:
        """One step on the drafting engine: the plain one has no place until the step is there."""
        replicas = paceline.runtime.replicas
        async with replicas.place(Waiter("default", "m", "plain"), no_wait, print):
            step = asyncio.create_task(ask(paceline))
            while not replicas.all()[0].load.running:
                await asyncio.sleep(0.001)
        answer = await step
        assert answer.replica == "e0"
        return answer


async def ask(paceline: Paceline) -> t.Answer:
    """A step of a workflow of its own."""
    workflow = await paceline.client.create_workflow()
    return await workflow.step("Count. " * 20)


async def no_wait() -> None:
    raise AssertionError("it had to wait")


@pytest.fixture
def pair(emulator: MakeEmulator, run: Run) -> Pair:
    """Two emulated engines."""
    return Pair(emulator, run)


def counted(paceline: Paceline) -> dict[str, float]:
    """The canary's metrics: results by name, the rest by kind."""
    with urlopen(f"http://127.0.0.1:{paceline.runtime.metrics_port}/metrics", timeout=10) as page:
        text = page.read().decode()
    families = text_string_to_metric_families(text)
    samples = [one for family in families for one in family.samples if one.name.startswith("paceline_canary")]
    totals = [one for one in samples if one.name.endswith("_total")]
    return {one.labels.get("result") or one.labels.get("kind") or "seconds": one.value for one in totals}


async def results(paceline: Paceline, steps: int = 1) -> dict[str, float]:
    """The metrics once so many samples have ended."""
    kinds = {"same", "near_tie", "different", "skipped", "failed"}
    while sum(value for name, value in counted(paceline).items() if name in kinds) < steps:
        await asyncio.sleep(0.02)
    return counted(paceline)


async def both_ready(paceline: Paceline) -> None:
    """Wait until both engines take steps."""
    while not all(replica.load.free for replica in paceline.runtime.replicas.all()):
        await asyncio.sleep(0.01)


async def blocks(engine: Emulator) -> set[str]:
    """The hashes of the blocks that its cache has seen; a tenant's salt is in them."""
    async with aiohttp.ClientSession() as http, http.get(f"{engine.url}/emulator/kv_events") as reply:
        return {one for event in (await reply.json())["events"] for one in event["hashes"]}


async def test_the_same_answer_is_the_same_and_costs_the_workflow_nothing(pair: Pair) -> None:
    async with pair.serve() as paceline:
        await both_ready(paceline)
        answer = await pair.step(paceline)
        found = await results(paceline)
        (asked,) = await pair.plain.counts()
        (attempt,) = paceline.sql("select replica, output_tokens from attempts")
        (workflow,) = paceline.sql("select spent_tokens from workflows")
        shared = await blocks(pair.drafting) & await blocks(pair.plain)
    tokens = answer.usage.output
    assert (found["same"], found["output"]) == (1, tokens)
    assert found["uncached_prompt"] == answer.reuse.prompt_tokens
    assert found["seconds"] > 0
    assert attempt == {"replica": "e0", "output_tokens": tokens}
    assert workflow["spent_tokens"] == answer.reuse.prompt_tokens + (tokens or 0)
    assert asked["request_id"].startswith("canary-st_")
    assert (asked["session_id"], asked["prompt_tokens"]) == (None, answer.reuse.prompt_tokens)
    assert len(shared) >= answer.reuse.prompt_tokens // 32  # the same ids under the salt of the same tenant


async def test_another_answer_is_found_and_told_without_its_content(pair: Pair) -> None:
    with capture_logs() as lines:
        async with pair.serve() as paceline:
            await both_ready(paceline)
            await pair.drafting.script({"reply": SAID})
            await pair.plain.script({"reply": OTHERWISE})
            await pair.step(paceline)
            found = await results(paceline)
            (step,) = paceline.sql("select step_id, workflow_id from steps")
    assert found["different"] == 1
    (line,) = [line for line in lines if line["event"] == "canary_different"]
    assert line == {
        "event": "canary_different",
        "log_level": "warning",
        "model": "m",
        "profile": "n",
        "replica": "e0",
        "plain_replica": "plain",
        **step,
        "equal_tokens": EQUAL,
        "step_tokens": len(SAID) + 1,
        "replayed_tokens": len(OTHERWISE) + 1,
        "logprob_gap": None,
    }


@pytest.mark.parametrize(("gap", "result"), [(0.125, "near_tie"), (-0.125, "near_tie"), (2.5, "different")])
async def test_the_plain_engine_says_how_close_it_was(pair: Pair, gap: float, result: str) -> None:
    close = {"reply": "f", "logprobs": {F: -1.0, T: -1.0 - gap, ord("x"): -9.0}}
    with capture_logs() as lines:
        async with pair.serve() as paceline:
            await both_ready(paceline)
            await pair.drafting.script({"reply": SAID})
            await pair.plain.script({"contains": "one two ", **close}, {"reply": OTHERWISE})
            await pair.step(paceline)
            found = await results(paceline)
            first, second = await pair.plain.counts()
    assert found[result] == 1
    (line,) = [line for line in lines if line["event"] == f"canary_{result}"]
    assert (line["equal_tokens"], line["logprob_gap"]) == (EQUAL, pytest.approx(gap))
    assert (second["prompt_tokens"], second["output_tokens"]) == (first["prompt_tokens"] + EQUAL, 1)
    assert second["cached_tokens"] >= first["prompt_tokens"] // 32 * 32


async def test_an_answer_that_only_ends_earlier_is_different(pair: Pair) -> None:
    async with pair.serve() as paceline:
        await both_ready(paceline)
        await pair.drafting.script({"reply": SAID})
        await pair.plain.script({"reply": SAID[:EQUAL]})
        await pair.step(paceline)
        assert (await results(paceline))["different"] == 1


async def test_a_replay_goes_no_further_than_it_may(pair: Pair) -> None:
    async with pair.serve(max_output_tokens=EQUAL) as paceline:
        await both_ready(paceline)
        await pair.drafting.script({"reply": SAID})
        await pair.plain.script({"reply": OTHERWISE})
        await pair.step(paceline)
        found = await results(paceline)
    assert (found["same"], found["output"]) == (1, EQUAL)


async def test_a_share_of_nothing_replays_nothing(pair: Pair) -> None:
    async with pair.serve(share=0) as paceline:
        await both_ready(paceline)
        for _ in range(3):
            await pair.step(paceline)
        assert counted(paceline) == {}
    assert await pair.plain.counts() == []


async def test_a_busy_plain_engine_is_left_alone(pair: Pair) -> None:
    async with pair.serve() as paceline:
        await both_ready(paceline)
        async with paceline.runtime.replicas.place(Waiter("default", "m", "plain"), no_wait, print):
            assert (await ask(paceline)).replica == "e0"
            assert (await results(paceline))["skipped"] == 1
        await pair.step(paceline)
        assert (await results(paceline, 2))["same"] == 1


async def replaying(engine: Emulator) -> None:
    """Wait until it has begun to answer; the fault holds it there."""
    async with aiohttp.ClientSession() as http:
        while "vllm:num_requests_running" not in (text := await _metrics(http, engine)) or _running(text) < 1:
            await asyncio.sleep(0.02)


async def _metrics(http: aiohttp.ClientSession, engine: Emulator) -> str:
    async with http.get(f"{engine.url}/metrics") as reply:
        return await reply.text()


def _running(text: str) -> float:
    families = text_string_to_metric_families(text)
    return sum(
        one.value for family in families for one in family.samples if one.name == "vllm:num_requests_running"
    )


async def test_a_step_gets_the_place_of_a_replay_at_once(pair: Pair) -> None:
    async with pair.serve() as paceline:
        await both_ready(paceline)
        await pair.plain.fault(kind="stall", after_tokens=3)
        await pair.step(paceline)
        await replaying(pair.plain)
        async with paceline.runtime.replicas.place(Waiter("default", "m", "plain"), no_wait, print) as replica:
            assert (replica.name, replica.load.running) == ("plain", 1)
            found = await results(paceline)
        assert (found["skipped"], found["output"]) == (1, 3)
        await pair.step(paceline)
        assert (await results(paceline, 2))["same"] == 1
        assert [row["finish_reason"] for row in await pair.plain.counts()] == ["abort", "stop"]


async def test_an_engine_that_breaks_is_a_failure_of_the_canary_only(pair: Pair) -> None:
    async with pair.serve() as paceline:
        await both_ready(paceline)
        await pair.plain.fault(kind="abort", after_tokens=3)
        await pair.step(paceline)
        assert (await results(paceline))["failed"] == 1
        await both_ready(paceline)  # the lost stream made somebody look at the plain one
        await pair.step(paceline)
        found = await results(paceline, 2)
        states = paceline.sql("select distinct state from steps")
    assert (found["failed"], found["same"]) == (1, 1)
    assert states == [{"state": "finished"}]


async def test_a_replay_ends_with_the_runtime(pair: Pair) -> None:
    async with pair.serve() as paceline:
        await both_ready(paceline)
        await pair.plain.fault(kind="stall", after_tokens=3)
        await pair.step(paceline)
        await replaying(pair.plain)
    while not (rows := await pair.plain.counts()):
        await asyncio.sleep(0.02)
    assert [(row["finish_reason"], row["output_tokens"]) for row in rows] == [("abort", 3)]
