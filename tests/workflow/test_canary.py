"""Which steps the canary picks, and what replays take of a replica's time."""

import asyncio
import random
from array import array
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from paceline.engines.base import Engine, EngineInfo, GenerateRequest, GenerationEnd, TokenChunk
from paceline.routing.placement import ReplicaLoad, ReplicaPhase
from paceline.transcript.context import pack
from paceline.workflow.canary import QUEUED, Canary, CanaryReport, Watch
from paceline.workflow.model import Cost, Sampling, Segments, Speculation, StepState, Timings, Usage
from paceline.workflow.ports import AttemptEnd, StepReport
from paceline.workflow.replay import Replay, Sample, Verdict
from paceline.workflow.replicas import AcceleratorShare, Replica, Replicas

INFO = EngineInfo("0", "m", 100, 16, True, False)
ANSWER = [5, 6, 7]


class Plain:
    """An engine that says what it is told to, and takes its time."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = list(ids)
        self.asked: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk | GenerationEnd, None]:
        self.asked.append(request)
        for token in self.ids[: request.max_tokens]:
            await asyncio.sleep(0.002)
            yield TokenChunk([token])
        yield GenerationEnd("length", request.prompt_tokens, None, 2)


def replica_of(engine: Plain, info: EngineInfo = INFO) -> Replica:
    replica = Replica(ReplicaLoad("plain", "m", 1, ReplicaPhase.READY), cast("Engine", engine))
    replica.info = info
    return replica


def request(**sampling: Any) -> GenerateRequest:
    return GenerateRequest("r", b"[1,2,3]", 3, 50, Sampling(**{"temperature": 0.0} | sampling), (9,), "salt", "wf")


def report(
    *,
    model: str = "m",
    profile: str = "n",
    state: StepState = StepState.FINISHED,
    ids: list[int] = ANSWER,
    asked: GenerateRequest | None = None,
) -> StepReport:
    end = AttemptEnd(
        attempt_id="at",
        step_id="st",
        workflow_id="wf",
        state=state,
        usage=Usage(),
        speculation=Speculation(profile),
        timings=Timings(0, 0, 0, 0),
        cost=Cost(),
        replica="fast",
        ended_at=datetime.now(UTC),
        segments=Segments(0, pack([1, 2, 3]), pack(ids), "t", "t"),
    )
    return StepReport(
        tenant="default",
        model=model,
        workflow_id="wf",
        step_id="st",
        request_id="rq",
        attempt_id="at",
        attempt=1,
        prompt_tokens=3,
        draft_limit=4,
        input=(),
        end=end,
        request=asked or request(),
    )


class Trial:
    """A canary in front of one plain replica, and what it reported."""

    def __init__(self, plain: Replica, share: float = 1.0) -> None:
        self.reports: list[CanaryReport] = []
        self.all_done = asyncio.Event()
        replicas = Replicas(8)
        replicas.add(plain)
        watch = Watch(share, 64, 0.25, frozenset({"plain"}))
        self.canary = Canary({"m": watch}, frozenset({"n"}), replicas, self._ended, random.Random(7))
        self._expected = 1

    def _ended(self, report: CanaryReport) -> None:
        self.reports.append(report)
        if len(self.reports) >= self._expected:
            self.all_done.set()

    async def run(self, expected: int) -> list[Verdict]:
        """Let it replay until so many samples have ended."""
        self._expected = expected
        task = asyncio.create_task(self.canary.run())
        try:
            await self.all_done.wait()
        finally:
            task.cancel()
            await asyncio.wait([task])
        return [report.verdict for report in self.reports]


@pytest.mark.parametrize(
    "other",
    [
        report(model="other"),
        report(profile=""),
        report(profile="off"),
        report(state=StepState.CANCELLED),
        report(ids=[]),
        report(asked=request(temperature=0.7)),
        report(asked=request(temperature=None)),
    ],
)
async def test_only_greedy_finished_steps_of_drafting_engines_are_samples(other: StepReport) -> None:
    engine = Plain(ANSWER)
    trial = Trial(replica_of(engine))
    trial.canary.step_ended(other)
    trial.canary.step_ended(report())
    assert await trial.run(1) == [Verdict.SAME]
    assert len(engine.asked) == 1


async def test_the_share_is_that_of_all_steps() -> None:
    trial = Trial(replica_of(Plain(ANSWER)), share=0.25)
    for _ in range(400):
        trial.canary.step_ended(report())
    picked = QUEUED + len(trial.reports)  # the queue is full; the others were skipped
    assert 70 < picked < 130
    assert {one.verdict for one in trial.reports} == {Verdict.SKIPPED}


async def test_a_replay_asks_what_the_step_asked_without_its_stop_texts() -> None:
    engine = Plain(ANSWER)
    trial = Trial(replica_of(engine))
    trial.canary.step_ended(report(asked=request(stop=("x",), top_p=0.5)))
    await trial.run(1)
    (asked,) = engine.asked
    assert (asked.prompt_json, asked.stop_token_ids, asked.cache_salt) == (b"[1,2,3]", (9,), "salt")
    assert asked.sampling == Sampling(temperature=0.0, top_p=0.5)
    assert (asked.max_tokens, asked.session_id) == (len(ANSWER), "")


@pytest.mark.parametrize(
    "info",
    [EngineInfo("0", "m", 100, 16, True, True), EngineInfo("0", "m", 3, 16, True, False)],
    ids=["drafts after all", "no room for the prompt"],
)
async def test_a_replica_that_cannot_be_compared_with_is_not_used(info: EngineInfo) -> None:
    engine = Plain(ANSWER)
    trial = Trial(replica_of(engine, info))
    trial.canary.step_ended(report())
    assert await trial.run(1) == [Verdict.SKIPPED]
    assert engine.asked == []


ENFORCED = replace(request(), structured_outputs={"json_object": True})


async def test_an_enforced_form_is_enforced_again_but_not_from_its_middle() -> None:
    engine = Plain([*ANSWER[:1], 99, 98])
    trial = Trial(replica_of(engine, replace(INFO, structured_outputs=True)))
    trial.canary.step_ended(report(asked=ENFORCED))
    await trial.run(1)
    assert [asked.structured_outputs for asked in engine.asked] == [{"json_object": True}, None]


async def test_a_replica_without_structured_outputs_replays_no_enforced_form() -> None:
    engine = Plain(ANSWER)
    trial = Trial(replica_of(engine))
    trial.canary.step_ended(report(asked=ENFORCED))
    assert await trial.run(1) == [Verdict.SKIPPED]
    assert engine.asked == []


async def test_ids_that_were_tokenized_again_are_not_compared() -> None:
    engine = Plain(ANSWER)
    trial = Trial(replica_of(engine))
    trial.canary.step_ended(replace(report(ids=[*ANSWER, 77, 78]), kept_tokens=len(ANSWER)))
    assert await trial.run(1) == [Verdict.SAME]


async def test_a_short_context_cuts_the_replay() -> None:
    engine = Plain(ANSWER)
    trial = Trial(replica_of(engine, EngineInfo("0", "m", 5, 16, True, False)))
    trial.canary.step_ended(report())
    assert await trial.run(1) == [Verdict.SAME]
    assert engine.asked[0].max_tokens == 2


async def test_a_defect_ends_neither_the_worker_nor_the_place() -> None:
    class Broken(Plain):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk | GenerationEnd, None]:
            if not self.asked:
                self.asked.append(request)
                raise KeyError("a bug")
            async for item in super().generate(request):
                yield item

    replica = replica_of(Broken(ANSWER))
    trial = Trial(replica)
    trial.canary.step_ended(report())
    trial.canary.step_ended(report())
    assert await trial.run(2) == [Verdict.FAILED, Verdict.SAME]
    assert replica.load.running == 0


async def test_a_replay_and_a_step_beside_it_share_the_time() -> None:
    replica = replica_of(Plain(range(20)))
    sample = Sample("m", "n", "fast", "wf", "st", request(), array("I", range(20)))
    replay = Replay(sample, replica, max_tokens=64, near_tie=0.0)
    step = AcceleratorShare(replica.time)
    found = await replay.run()
    step.stop()
    assert (found.verdict, found.equal) == (Verdict.SAME, 20)
    assert replay.use.accelerator_seconds + step.seconds == pytest.approx(replica.time.busy)
    assert replay.use.accelerator_seconds == pytest.approx(replica.time.busy / 2, rel=0.05)
    assert (replay.use.uncached_prompt, replay.use.cached_prompt, replay.use.output) == (1, 2, 20)
