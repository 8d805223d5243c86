"""Cells: one setting of speculation, one repeat, all sample steps on one engine. Times in seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec

from paceline.engines.base import Engine, GenerateRequest, GenerationEnd
from paceline.speculation.tune.counters import Counters, read_counters
from paceline.speculation.tune.sample import ReplayStep
from paceline.workflow.model import Sampling, StepClass

WARM_TOKENS = 8
"""Generated from each prompt before the clock starts: its prefix is cached then, as in mid-workflow, and every
kind of computation has run once."""


class MeteredEngine(Engine, Protocol):
    """An engine whose counters can be read."""

    async def metrics(self) -> str:
        """The text of /metrics. Raises `EngineLost`, `EngineUnavailable` or `EngineRefused`."""
        ...


class StepRun(msgspec.Struct, frozen=True):
    """One replayed step. Drafts are None where the engine does not report them."""

    step_id: str
    kind: StepClass
    prompt_tokens: int
    tokens: int
    """Generated after the first chunk."""
    seconds: float
    """From the first chunk to the last."""
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None


class Cell(msgspec.Struct, frozen=True, tag="cell"):
    """One measured cell."""

    k: int
    """Tokens drafted per verification; 0: no speculation."""
    repeat: int
    """From 0."""
    runs: tuple[StepRun, ...]
    counters: Counters
    """Of the engine, for these steps together."""

    @property
    def tokens_per_second(self) -> float:
        """Of one step while it generates; 0 where nothing came after the first chunks."""
        seconds = sum(run.seconds for run in self.runs)
        return sum(run.tokens for run in self.runs) / seconds if seconds else 0.0


def schedule(ks: Sequence[int], repeats: int) -> list[tuple[int, int]]:
    """(K, repeat) of every cell in the order of measuring.

    Rounds over all settings, every other one backwards, so that a drift of the machine meets all alike. The first
    begins with what every prediction needs: off (0), the largest K and the smallest.
    """
    rest = sorted(set(ks) - {0})
    first = list(dict.fromkeys([0, rest[-1], rest[0], *rest])) if rest else [0]
    return [(k, repeat) for repeat in range(repeats) for k in (first[::-1] if repeat % 2 else first)]


async def measure(
    engine: MeteredEngine,
    k: int,
    repeat: int,
    steps: Sequence[ReplayStep],
    *,
    concurrency: int,
    stop_token_ids: tuple[int, ...],
) -> Cell:
    """Replay all steps, `concurrency` at once, greedily. Raises what the engine raises."""
    await _replay_all(engine, steps, concurrency, stop_token_ids, most=WARM_TOKENS)
    before = read_counters(await engine.metrics())
    runs = await _replay_all(engine, steps, concurrency, stop_token_ids)
    return Cell(k, repeat, tuple(runs), read_counters(await engine.metrics()) - before)


async def _replay_all(
    engine: Engine,
    steps: Sequence[ReplayStep],
    concurrency: int,
    stop_token_ids: tuple[int, ...],
    most: int | None = None,
) -> list[StepRun]:
    room = asyncio.Semaphore(concurrency)

    async def one(step: ReplayStep) -> StepRun:
        async with room:
            return await _replay(engine, step, min(step.max_tokens, most or step.max_tokens), stop_token_ids)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(step)) for step in steps]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None  # the others were cancelled for it
    return [task.result() for task in tasks]


async def _replay(engine: Engine, step: ReplayStep, limit: int, stop_token_ids: tuple[int, ...]) -> StepRun:
    request = GenerateRequest(
        request_id=f"tune-{step.step_id}",
        prompt_json=step.prompt_json,
        prompt_tokens=step.prompt_tokens,
        max_tokens=limit,
        sampling=Sampling(temperature=0.0),
        stop_token_ids=stop_token_ids,
        cache_salt="",
        session_id="",
    )
    first = last = 0.0
    tokens = 0
    async with aclosing(engine.generate(request)) as stream:
        async for item in stream:
            if isinstance(item, GenerationEnd):
                drafts = (item.draft_steps, item.drafted, item.accepted)
                return StepRun(step.step_id, step.kind, step.prompt_tokens, tokens, last - first, *drafts)
            last = time.monotonic()
            tokens += len(item.token_ids) if first else 0
            first = first or last
    raise AssertionError("generate ended without GenerationEnd")
