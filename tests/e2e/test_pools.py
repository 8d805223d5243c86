"""Two emulated engines of one model, one of which drafts: which one a step runs on, and what is kept about it.

A pass of the drafting engine takes twice as long as one of the plain engine. A text with the word "edit" is
drafted perfectly, five tokens a pass; all else not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.e2e.conftest import Emulator, Paceline

from paceline.errors import EngineUnavailable
from paceline.routing.placement import ReplicaPhase
from paceline.routing.pools import TRIES

PACED = ("--step-seconds=0.004", "--prefill-token-seconds=0.00001", "--prefill-fixed-seconds=0.002")
DRAFTS = '--speculative-config={"method":"ngram","num_speculative_tokens":4}'
PLAIN = "--per-request-spec-decode-metrics=off"
ANSWER = "the rider holds a steady line "


@dataclass
class Pools:
    """A runtime with the replicas `plain` and `drafting` of one model."""

    paceline: Paceline
    plain: Emulator

    async def learn(self) -> None:
        """Let both pools be measured by first steps of workflows that draft well."""
        for _ in range(2 * TRIES):
            await (await self.paceline.client.create_workflow()).step("edit it", temperature=0.0)

    def choice(self, step_id: str) -> dict[str, Any]:
        """What the ledger has about the pool of a step."""
        (row,) = self.paceline.sql(
            "select replica, pool_choice, pool_saving_us, pool_prefill_us, cached_prompt_tokens as cached"
            " from attempts where step_id = :id",
            id=step_id,
        )
        return row


@pytest.fixture
async def pools(emulator: Callable[..., Emulator], run: Callable[..., Any]) -> AsyncIterator[Pools]:
    plain = emulator(*PACED, PLAIN, '--speculative-config={"method":"none"}')
    drafting = emulator(*PACED, DRAFTS, "--step-per-draft-seconds=0.001")
    rules = [
        {"contains": "edit", "reply": ANSWER * 3, "acceptance": [1, 1, 1, 1]},
        {"reply": ANSWER * 3, "acceptance": [0, 0, 0, 0]},
    ]
    for engine in (plain, drafting):
        await engine.script(*rules)
    engines = {
        "plain": {"model": "m", "url": plain.url, "max_concurrent_steps": 4},
        "drafting": {"model": "m", "url": drafting.url, "max_concurrent_steps": 4, "speculation": "n"},
    }
    async with run(engines=engines, accelerators={}) as paceline:
        replicas = paceline.runtime.replicas.all()
        await until(lambda: all(replica.load.phase is ReplicaPhase.READY for replica in replicas))
        yield Pools(paceline, plain)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


async def test_both_pools_are_measured_and_the_faster_one_is_taken(pools: Pools) -> None:
    await pools.learn()
    rows = pools.paceline.sql("select replica, count(*) as n from attempts group by replica order by replica")
    assert rows == [{"replica": "drafting", "n": TRIES}, {"replica": "plain", "n": TRIES}]
    workflow = await pools.paceline.client.create_workflow()
    first = await workflow.step("edit it")
    choice = pools.choice(first.step_id)
    assert (choice["replica"], choice["pool_choice"]) == ("drafting", "first_step")
    assert choice["pool_saving_us"] < 0  # the plain pool would have been slower
    again = await workflow.step("edit it once more")
    assert pools.choice(again.step_id)["pool_choice"] == "stayed"
    assert again.usage.cached_prompt


async def test_a_workflow_that_drafts_badly_moves_once_and_both_terms_are_kept(pools: Pools) -> None:
    await pools.learn()
    workflow = await pools.paceline.client.create_workflow()
    with capture_logs() as logs:
        answers = [await workflow.step(f"talk {turn}") for turn in range(3)]
    choices = [pools.choice(answer.step_id) for answer in answers]
    assert [one["replica"] for one in choices] == ["drafting", "plain", "plain"]
    assert [one["pool_choice"] for one in choices] == ["first_step", "switched", "stayed"]
    assert choices[1]["pool_saving_us"] > choices[1]["pool_prefill_us"] > 0
    assert answers[1].reuse.break_reason == "moved"
    assert choices[2]["cached"] > 0
    shown = (await pools.paceline.client.get_step(step_id=answers[1].step_id)).pool_choice
    assert shown
    assert shown.reason == "switched"
    assert shown.decode_saving is not None
    assert shown.prefill is not None
    assert round(shown.decode_saving * 1e6) == choices[1]["pool_saving_us"]
    assert round(shown.prefill * 1e6) == choices[1]["pool_prefill_us"]
    (line,) = [one for one in logs if one["event"] == "step" and one["step_id"] == answers[1].step_id]
    assert line["pool_choice"] == "switched"
    assert line["pool_saving_ms"] > line["pool_prefill_ms"] > 0


async def test_a_fork_knows_what_its_origin_showed_and_where_its_prefix_is(pools: Pools) -> None:
    await pools.learn()
    workflow = await pools.paceline.client.create_workflow()
    for turn in range(2):
        await workflow.step(f"talk {turn}")
    branch = await (await workflow.fork()).step("talk of something else")
    choice = pools.choice(branch.step_id)
    assert (choice["replica"], choice["pool_choice"]) == ("plain", "fork")
    assert choice["pool_saving_us"] < choice["pool_prefill_us"]
    assert choice["cached"] > 0


async def test_a_conversation_edited_from_its_start_chooses_anew(pools: Pools) -> None:
    await pools.learn()
    workflow = await pools.paceline.client.create_workflow()
    for turn in range(2):
        await workflow.step(f"talk {turn}")
    compacted = await workflow.step("edit it, in short", whole_conversation=True)
    assert compacted.reuse.break_reason == "compacted"
    assert pools.choice(compacted.step_id)["pool_choice"] == "compacted"


async def test_when_the_preferred_pool_is_down_the_other_is_taken(pools: Pools) -> None:
    await pools.learn()
    workflow = await pools.paceline.client.create_workflow()
    for turn in range(2):
        await workflow.step(f"talk {turn}")
    pools.plain.kill()
    plain = pools.paceline.runtime.replicas.all()[0]
    plain.suspect()
    await until(lambda: plain.load.phase is not ReplicaPhase.READY)
    elsewhere = await workflow.step("talk on")
    choice = pools.choice(elsewhere.step_id)
    assert (choice["replica"], choice["pool_choice"]) == ("drafting", "no_place")
    assert choice["cached"] > 0  # of its first step, which ran there


async def test_a_sampled_step_goes_to_the_pool_that_may_sample(pools: Pools) -> None:
    await pools.learn()
    plain, drafting = pools.paceline.runtime.replicas.all()
    drafting.greedy_only = "this engine samples wrongly"
    workflow = await pools.paceline.client.create_workflow()
    greedy = await workflow.step("edit it", temperature=0.0)
    sampled = await workflow.step("edit it again", temperature=0.7)
    assert pools.choice(greedy.step_id)["replica"] == "drafting"
    choice = pools.choice(sampled.step_id)
    assert (choice["replica"], choice["pool_choice"], choice["pool_saving_us"]) == ("plain", "only_pool", None)
    pools.plain.kill()
    plain.suspect()
    await until(lambda: plain.load.phase is not ReplicaPhase.READY)
    with pytest.raises(EngineUnavailable, match="plain"):
        await workflow.step("edit it a third time", temperature=0.7)


async def test_an_enforced_form_goes_to_a_replica_with_structured_outputs(pools: Pools) -> None:
    await pools.learn()
    plain, _ = pools.paceline.runtime.replicas.all()
    assert plain.info
    plain.info = replace(plain.info, structured_outputs=True)
    workflow = await pools.paceline.client.create_workflow()
    free = await workflow.step("edit it", temperature=0.0)
    formed = await workflow.step("edit it again", temperature=0.0, response_format="")
    assert pools.choice(free.step_id)["replica"] == "drafting"
    assert pools.choice(formed.step_id)["replica"] == "plain"
