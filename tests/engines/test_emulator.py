"""The adapter in front of the emulator process, as each version that Paceline supports."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from tests.engines.conftest import collect, request_for

from paceline.engines.base import EngineInfo, TokenChunk
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.errors import EngineLost

NGRAM = ("--speculative-config", '{"method":"ngram","num_speculative_tokens":4}')
SPECULATION = (*NGRAM, "--per-request-spec-decode-metrics", "summary")
DETAILS = "--enable-prompt-tokens-details"
Emulator = tuple[VllmHttpEngine, asyncio.subprocess.Process]
StartEmulator = Callable[..., Coroutine[Any, Any, Emulator]]


@asynccontextmanager
async def running(*options: str) -> AsyncIterator[Emulator]:
    """An emulator without delays, and the adapter in front of it."""
    command = (sys.executable, "-m", "paceline.emulator", "--time-scale", "0", *options)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    engine = VllmHttpEngine(json.loads(await process.stdout.readline())["url"])
    try:
        yield engine, process
    finally:
        await engine.close()
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.fixture
async def start() -> AsyncIterator[StartEmulator]:
    """Starts emulators that end with the test."""
    async with AsyncExitStack() as stack:

        async def start(*options: str) -> Emulator:
            return await stack.enter_async_context(running(*options))

        yield start


@pytest.mark.parametrize(
    ("version", "options", "speculation"),
    [("0.24", NGRAM, False), ("0.29", SPECULATION, True), ("0.32", SPECULATION, True)],
)
async def test_two_turns(start: StartEmulator, version: str, options: tuple[str, ...], speculation: bool) -> None:
    engine, _ = await start("--emulate-version", version, DETAILS, *options)
    info = await engine.probe()
    assert info == EngineInfo(info.version, info.model, 32_768, 32, True, speculation, emulated=True)
    assert info.version.startswith(version)
    prompt = list(range(100, 200))
    ids, end = await collect(engine, request_for(orjson.dumps(prompt), max_tokens=40))
    assert (end.finish_reason, end.prompt_tokens, end.output_tokens) == ("length", 100, 40)
    assert len(ids) == 40
    assert end.cached_tokens == 0
    assert (end.drafted is not None, end.accepted is not None) == (speculation, speculation)
    longer = orjson.dumps([*prompt, *ids, 5, 6, 7])
    assert (await collect(engine, request_for(longer)))[1].cached_tokens == 128
    assert (await collect(engine, request_for(longer, cache_salt="tenant-b")))[1].cached_tokens == 0


@pytest.mark.parametrize("version", ["0.24", "0.29", "0.32"])
async def test_without_the_flags_counts_are_unknown(start: StartEmulator, version: str) -> None:
    engine, _ = await start("--emulate-version", version)
    info = await engine.probe()
    assert (info.reports_cached_tokens, info.reports_speculation) == (False, False)
    _, end = await collect(engine, request_for())
    assert (end.cached_tokens, end.drafted, end.accepted, end.draft_steps) == (None, None, None, None)


async def test_closing_the_stream_aborts_the_request(start: StartEmulator, tmp_path: Path) -> None:
    counts = tmp_path / "counts.jsonl"
    engine, process = await start("--time-scale", "1", "--step-seconds", "0.01", "--counts-file", str(counts))
    async with aclosing(engine.generate(request_for(max_tokens=20_000))) as items:
        assert isinstance(await anext(items), TokenChunk)
    ids, _ = await collect(engine, request_for(max_tokens=2))
    assert len(ids) == 2
    process.terminate()
    await process.wait()
    aborted, finished = [json.loads(line) for line in counts.read_text().splitlines()]
    assert (aborted["finish_reason"], finished["finish_reason"]) == ("abort", "length")


async def test_a_killed_process_is_a_lost_engine(start: StartEmulator) -> None:
    engine, process = await start("--time-scale", "1", "--step-seconds", "0.01")
    items = engine.generate(request_for(max_tokens=20_000))
    await anext(items)
    process.kill()
    with pytest.raises(EngineLost):
        async for _ in items:
            pass
    await process.wait()
    assert not await engine.healthy()


async def test_the_likeliest_first_tokens_are_told_on_request(start: StartEmulator) -> None:
    engine, _ = await start()
    rules = [{"reply_ids": [72, 105], "logprobs": {"72": -0.5, "105": -0.75, "33": -3.0, "34": -4.0}}]
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{engine.base_url}/emulator/script", json=rules) as reply,
    ):
        assert reply.status == 200
    ids, end = await collect(engine, replace(request_for(), candidates=3))
    assert ids[:2] == [72, 105]
    assert end.candidates == {72: -0.5, 105: -0.75, 33: -3.0}
    _, unasked = await collect(engine, request_for())
    assert unasked.candidates == {}


async def test_a_token_without_a_script_is_certain(start: StartEmulator) -> None:
    engine, _ = await start()
    ids, end = await collect(engine, replace(request_for(), candidates=5))
    assert end.candidates == {ids[0]: 0.0}
