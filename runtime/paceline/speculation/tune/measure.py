"""Cells: one setting of speculation, one number of steps at once, one repeat, all steps. Times in seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from paceline.engines.base import Engine, GenerateRequest, GenerationEnd
from paceline.errors import EngineLost, EngineRefused
from paceline.speculation.tune.drafts import Setting
from paceline.speculation.tune.forecast import Forecast
from paceline.speculation.tune.lookup import Lookup
from paceline.speculation.tune.sample import ReplayStep
from paceline.workflow.model import Sampling, StepClass

WARM_TOKENS = 8
"""Generated from each prompt before the clock starts: its prefix is cached then, as in mid-workflow, and every
kind of computation has run once."""
DETAILED = ("--per-request-spec-decode-metrics", "detailed")
"""What a server that drafts must be told."""


class StepRun(msgspec.Struct, frozen=True):
    """One replayed step, without its first token: that comes with the prompt."""

    step_id: str
    kind: StepClass
    prompt_tokens: int
    tokens: int
    """After the first chunk."""
    seconds: float
    """From the first chunk to the last."""
    checks: tuple[tuple[int, int], ...] = ()
    """(drafted, accepted) of each verification; at the end of the answer only what is in it."""
    forecasts: tuple[Forecast, ...] = ()
    """What a lookup with K = 1, 2, ... does in this text, up to the measured K. Empty for other drafters."""

    @property
    def accepted(self) -> int:
        """Tokens that came from drafts."""
        return sum(accepted for _, accepted in self.checks)

    @property
    def plain(self) -> int:
        """Steps of the engine without a draft."""
        return max(0, self.tokens - self.accepted - len(self.checks))


class Cell(msgspec.Struct, frozen=True, tag="cell"):
    """One measured cell."""

    setting: Setting
    concurrency: int
    """Steps at once."""
    repeat: int
    """From 0."""
    runs: tuple[StepRun, ...]
    seconds: float
    """From the first request to the last answer."""
    engine: str = ""
    """Version of the server."""

    @property
    def place(self) -> tuple[Setting, int, int]:
        """What tells it from others."""
        return self.setting, self.concurrency, self.repeat


@dataclass(frozen=True, slots=True)
class Bench:
    """Replays steps greedily. Every method raises what the engine raises."""

    engine: Engine
    setting: Setting
    steps: Sequence[ReplayStep]
    stop_token_ids: tuple[int, ...]
    lookup: Lookup | None = None
    """Set where drafts are lookups in the text."""

    async def warm(self) -> None:
        """Have the prompts cached."""
        await self._replay_all(1, WARM_TOKENS)

    async def measure(self, concurrency: int, repeat: int, version: str) -> Cell:
        """All steps, so many at once."""
        begin = time.monotonic()
        answers = await self._replay_all(concurrency)
        seconds = time.monotonic() - begin
        runs = tuple(self._run(step, answer) for step, answer in zip(self.steps, answers, strict=True))
        return Cell(self.setting, concurrency, repeat, runs, seconds, version)

    async def _replay_all(self, concurrency: int, most: int | None = None) -> list[_Answer]:
        room = asyncio.Semaphore(concurrency)

        async def one(step: ReplayStep) -> _Answer:
            async with room:
                return await self._replay(step, min(step.max_tokens, most or step.max_tokens))

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(step)) for step in self.steps]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the others were cancelled for it
        return [task.result() for task in tasks]

    async def _replay(self, step: ReplayStep, limit: int) -> _Answer:
        request = GenerateRequest(
            request_id=f"tune-{step.step_id}",
            prompt_json=step.prompt_json,
            prompt_tokens=step.prompt_tokens,
            max_tokens=limit,
            sampling=Sampling(temperature=0.0),
            stop_token_ids=self.stop_token_ids,
            cache_salt="",
            session_id="",
        )
        answer = _Answer()
        async with aclosing(self.engine.generate(request)) as stream:
            async for item in stream:
                if isinstance(item, GenerationEnd):
                    answer.checks = self._checks(item)
                    return answer
                answer.take(item.token_ids)
        raise AssertionError("generate ended without GenerationEnd")

    def _checks(self, end: GenerationEnd) -> tuple[tuple[int, int], ...]:
        if end.finish_reason == "abort":
            raise EngineLost("The engine broke a step off.")
        if self.setting.k and end.checks is None:
            raise EngineRefused(
                f"The server does not report each verification; it must know {' '.join(DETAILED)}."
            )
        return end.checks or ()

    def _run(self, step: ReplayStep, answer: _Answer) -> StepRun:
        return StepRun(
            step.step_id,
            step.kind,
            step.prompt_tokens,
            answer.tokens,
            answer.seconds,
            within(answer.checks, answer.sizes[1:]),
            self._forecasts(step, answer),
        )

    def _forecasts(self, step: ReplayStep, answer: _Answer) -> tuple[Forecast, ...]:
        if self.lookup is None:
            return ()
        prompt = msgspec.json.decode(step.prompt_json, type=list[int])
        return tuple(self.lookup.play(prompt, answer.ids, k) for k in range(1, self.setting.k + 1))


@dataclass(slots=True)
class _Answer:
    ids: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Of its chunks."""
    checks: tuple[tuple[int, int], ...] = ()
    first: float = 0.0
    last: float = 0.0

    def take(self, ids: Sequence[int]) -> None:
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.ids += ids
        self.sizes.append(len(ids))

    @property
    def tokens(self) -> int:
        return sum(self.sizes[1:])

    @property
    def seconds(self) -> float:
        return self.last - self.first


def within(checks: Sequence[tuple[int, int]], sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Checks without what was accepted beyond the end of the answer, which came in chunks of `sizes` tokens.

    A step of the engine makes one chunk, of more than one token where a draft held. Only the last one can have
    been cut; what it drafted beyond the end is left out as well. Chunks that were joined on their way stay as
    they are.
    """
    held = [place for place, (_, accepted) in enumerate(checks) if accepted]
    excess = sum(checks[place][1] + 1 for place in held) - sum(size for size in sizes if size > 1)
    if not held or excess <= 0:
        return tuple(checks)
    last = held[-1]
    kept = max(0, checks[last][1] - excess)
    return (*checks[:last], (kept, kept), *checks[last + 1 :])
