"""One step of a drafting replica, generated once more without drafts, and where the two answers part."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum

from paceline.engines.base import GenerateRequest, GenerationEnd
from paceline.errors import EngineLost, PacelineError
from paceline.transcript.context import Context
from paceline.workflow.replicas import AcceleratorShare, Replica

CANDIDATES = 5
"""Two tokens of which one is not among so many of the likeliest are no near tie."""


class Verdict(StrEnum):
    """What came of one sample."""

    SAME = "same"
    NEAR_TIE = "near_tie"
    DIFFERENT = "different"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Sample:
    """A greedy step of a drafting replica."""

    model: str
    profile: str
    replica: str
    workflow_id: str
    step_id: str
    request: GenerateRequest
    """As it was sent."""
    generated: array[int]
    """The ids that it kept."""


@dataclass(slots=True)
class Use:
    """What replaying took of a replica."""

    uncached_prompt: int = 0
    cached_prompt: int = 0
    output: int = 0
    accelerator_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """`equal` tokens are the same; then, unless the verdict is `same`, the answers part."""

    verdict: Verdict
    equal: int
    replayed: int
    """Tokens of the replay."""
    gap: float | None = None
    """By how much the plain replica holds its own next token for likelier than the step's, in nats; None where it
    does not say, or has the step's token not among the likeliest."""


class Replay:
    """Replays one sample on a plain replica whose context has room for it; `use` is what that took, also after an
    error."""

    def __init__(self, sample: Sample, replica: Replica, *, max_tokens: int, near_tie: float) -> None:
        self._sample = sample
        self._replica = replica
        self._wanted = sample.generated[: _room(sample, replica, max_tokens)]
        self._near_tie = near_tie
        self.use = Use()

    async def run(self) -> Comparison:
        """Generate and compare. Raises what the engine raises."""
        share = AcceleratorShare(self._replica.time)
        try:
            return await self._compare()
        except EngineLost:
            self._replica.suspect()
            raise
        finally:
            share.stop()
            self.use.accelerator_seconds = share.seconds

    async def _compare(self) -> Comparison:
        sample = self._sample
        request = replace(
            sample.request,
            request_id=f"canary-{sample.step_id}",
            max_tokens=len(self._wanted),
            sampling=replace(sample.request.sampling, stop=()),
            session_id="",
        )
        ids, _ = await self._generate(request)
        equal = _equal(ids, self._wanted)
        if equal == len(self._wanted):
            return Comparison(Verdict.SAME, equal, len(ids))
        gap = await self._gap(request, equal, ids[equal]) if equal < len(ids) else None
        near = gap is not None and abs(gap) <= self._near_tie
        return Comparison(Verdict.NEAR_TIE if near else Verdict.DIFFERENT, equal, len(ids), gap)

    async def _gap(self, request: GenerateRequest, equal: int, own: int) -> float | None:
        """Ask for the likeliest tokens where the answers part. A refusal leaves a difference a difference.

        No form of the answer is enforced: it would begin anew here, and the gap between two tokens is the same
        without it.
        """
        before = Context(request.prompt_json[1:-1], request.prompt_tokens).extend(self._wanted[:equal])
        ask = replace(
            request,
            request_id=f"{request.request_id}-tie",
            prompt_json=before.prompt_json(),
            prompt_tokens=before.tokens,
            max_tokens=1,
            candidates=CANDIDATES,
            structured_outputs=None,
        )
        try:
            _, end = await self._generate(ask)
        except PacelineError:
            return None
        first, second = end.candidates.get(own), end.candidates.get(self._wanted[equal])
        return first - second if first is not None and second is not None else None

    async def _generate(self, request: GenerateRequest) -> tuple[list[int], GenerationEnd]:
        ids: list[int] = []
        end = None
        async with aclosing(self._replica.engine.generate(request)) as items:
            async for item in items:
                if isinstance(item, GenerationEnd):
                    end = item
                else:
                    ids += item.token_ids
                    self.use.output += len(item.token_ids)
        if end is None or end.finish_reason == "abort":
            raise EngineLost(f"replica {self._replica.name} aborted the request", replica=self._replica.name)
        self.use.cached_prompt += end.cached_tokens or 0
        self.use.uncached_prompt += request.prompt_tokens - (end.cached_tokens or 0)
        return ids, end


def _room(sample: Sample, replica: Replica, max_tokens: int) -> int:
    limit = replica.info.max_model_len if replica.info else None
    return min(max_tokens, limit - sample.request.prompt_tokens) if limit is not None else max_tokens


def _equal(ids: Sequence[int], wanted: Sequence[int]) -> int:
    pairs = zip(ids, wanted, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(ids), len(wanted)))
