"""The canary: speculation must not change greedy answers, so a share of them is generated again without it.

It uses only what steps leave over: a free place while nobody waits, given back as soon as somebody would. What it
finds goes to the log and the metrics, never to a client, and nothing that it takes is billed to a workflow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from paceline.engines.base import EngineInfo
from paceline.errors import PacelineError
from paceline.transcript.context import unpack
from paceline.workflow.model import StepState
from paceline.workflow.ports import StepReport
from paceline.workflow.replay import Comparison, Replay, Sample, Use, Verdict
from paceline.workflow.replicas import NoSparePlace, Replica, Replicas

QUEUED = 8
"""Samples that may wait for their replay. Each holds a prompt."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Watch:
    """What to check of one model."""

    share: float
    """Chance of each greedy step, 0 to 1."""
    max_output_tokens: int
    near_tie: float
    """Nats."""
    plain: frozenset[str]
    """Names of the replicas to replay on."""


@dataclass(slots=True)
class CanaryReport:
    """What became of one sample."""

    model: str
    profile: str
    verdict: Verdict = Verdict.SKIPPED
    replica: str = ""
    """Where it was replayed; empty if nowhere."""
    use: Use = field(default_factory=Use)


class Canary:
    """Picks samples as an `Observer` of steps, and replays them one at a time while `run` runs."""

    def __init__(
        self,
        watches: Mapping[str, Watch],
        profiles: frozenset[str],
        replicas: Replicas,
        ended: Callable[[CanaryReport], None],
        rng: random.Random,
    ) -> None:
        """`watches` by model; `profiles` are those that draft; `ended` must not block or raise."""
        self._watches = watches
        self._profiles = profiles
        self._replicas = replicas
        self._ended = ended
        self._rng = rng
        self._samples: asyncio.Queue[Sample] = asyncio.Queue(QUEUED)

    def step_ended(self, report: StepReport) -> None:
        """Take the step as a sample if it is one and its turn comes."""
        watch = self._watches.get(report.model)
        if watch is None or (sample := self._sample(report)) is None or self._rng.random() >= watch.share:
            return
        try:
            self._samples.put_nowait(sample)
        except asyncio.QueueFull:
            self._ended(CanaryReport(sample.model, sample.profile))

    async def run(self) -> None:
        """Replay samples until cancelled."""
        while True:
            await self._replay(await self._samples.get())

    async def _replay(self, sample: Sample) -> None:
        report = CanaryReport(sample.model, sample.profile)
        try:
            await self._compare(sample, self._watches[sample.model], report)
        except NoSparePlace as error:
            log.debug("canary_skipped", step_id=sample.step_id, reason=str(error))
        except PacelineError as error:
            report.verdict = Verdict.FAILED
            log.warning("canary_failed", step_id=sample.step_id, replica=report.replica, error=error.message)
        except Exception:  # a defect of the canary; neither steps nor later samples suffer from it
            report.verdict = Verdict.FAILED
            log.exception("canary_crashed", step_id=sample.step_id)
        finally:
            self._ended(report)

    async def _compare(self, sample: Sample, watch: Watch, report: CanaryReport) -> None:
        async with self._replicas.spare(self._plain(sample, watch)) as replica:
            replay = Replay(sample, replica, max_tokens=watch.max_output_tokens, near_tie=watch.near_tie)
            report.replica, report.use = replica.name, replay.use
            found = await replay.run()
        report.verdict = found.verdict
        _tell(sample, replica, found)

    def _plain(self, sample: Sample, watch: Watch) -> list[str]:
        """The replicas that have room for the sample, without those that say themselves that they draft."""
        return [
            replica.name
            for replica in self._replicas.all()
            if replica.name in watch.plain and replica.info and _takes(replica.info, sample)
        ]

    def _sample(self, report: StepReport) -> Sample | None:
        end, request = report.end, report.request
        if end.state is not StepState.FINISHED or request is None or end.segments is None:
            return None
        if end.speculation.profile not in self._profiles or request.sampling.temperature != 0:
            return None
        generated = unpack(end.segments.generated)[: report.kept_tokens]
        if not generated:
            return None
        return Sample(
            model=report.model,
            profile=end.speculation.profile,
            replica=end.replica,
            workflow_id=report.workflow_id,
            step_id=report.step_id,
            request=request,
            generated=generated,
        )


def _takes(info: EngineInfo, sample: Sample) -> bool:
    enforces = info.structured_outputs or sample.request.structured_outputs is None
    return not info.reports_speculation and info.max_model_len > sample.request.prompt_tokens and enforces


def _tell(sample: Sample, replica: Replica, found: Comparison) -> None:
    if found.verdict is Verdict.SAME:
        return
    write = log.warning if found.verdict is Verdict.DIFFERENT else log.info
    write(
        f"canary_{found.verdict}",
        model=sample.model,
        profile=sample.profile,
        replica=sample.replica,
        plain_replica=replica.name,
        workflow_id=sample.workflow_id,
        step_id=sample.step_id,
        equal_tokens=found.equal,
        step_tokens=len(sample.generated),
        replayed_tokens=found.replayed,
        logprob_gap=found.gap,
    )
