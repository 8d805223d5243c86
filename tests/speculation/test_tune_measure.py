"""Replaying steps on an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import cast

import pytest

from paceline.engines.base import Engine, GenerateRequest, GenerationEnd, TokenChunk
from paceline.errors import EngineLost, EngineRefused
from paceline.speculation.tune.drafts import OFF, Setting
from paceline.speculation.tune.forecast import Forecast
from paceline.speculation.tune.lookup import Lookup
from paceline.speculation.tune.measure import Bench
from paceline.speculation.tune.sample import ReplayStep

Checks = tuple[tuple[int, int], ...] | None


class Scripted:
    """An engine that says what it is told to."""

    def __init__(self, chunks: Sequence[list[int]], finish_reason: str, checks: Checks) -> None:
        self._chunks = chunks
        self._end = GenerationEnd(finish_reason, 4, 4, 0, checks=checks)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk | GenerationEnd, None]:
        for chunk in self._chunks:
            yield TokenChunk(chunk)
        yield self._end


def bench(setting: Setting, chunks: Sequence[list[int]], finish_reason: str, checks: Checks) -> Bench:
    step = ReplayStep("one", b"[1, 2, 3, 1, 2]", 5, 8, "code edit")
    engine = cast("Engine", Scripted(chunks, finish_reason, checks))
    return Bench(engine, setting, [step], (), Lookup(2, 5) if setting.k else None)


async def test_what_is_told_of_a_step() -> None:
    one = bench(Setting("ngram", 2), [[3], [1, 2], [9]], "length", ((2, 2), (2, 0)))
    cell = await one.measure(1, 0, "0.32.0")
    (run,) = cell.runs
    assert (run.tokens, run.accepted, run.plain, run.checks) == (3, 1, 0, ((1, 1), (2, 0)))
    assert run.forecasts == (Forecast(2, 1, 0), Forecast(1, 2, 0))
    assert cell.seconds >= run.seconds > 0


@pytest.mark.parametrize("setting", [OFF, Setting("ngram", 2)])
async def test_a_step_that_was_broken_off_is_no_measurement(setting: Setting) -> None:
    with pytest.raises(EngineLost, match="broke a step off"):
        await bench(setting, [[3]], "abort", None).measure(1, 0, "0.32.0")


async def test_a_server_that_does_not_report_each_check() -> None:
    with pytest.raises(EngineRefused, match="--per-request-spec-decode-metrics detailed"):
        await bench(Setting("ngram", 2), [[3], [1]], "length", None).measure(1, 0, "0.32.0")
