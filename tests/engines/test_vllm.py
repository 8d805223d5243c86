"""The adapter in front of a real vLLM."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import aiohttp
import orjson
import pytest
from tests.engines.conftest import collect, request_for
from tests.engines.scripted import recorded

from paceline.engines.base import EngineInfo, TokenChunk
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.errors import EngineRefused

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
BLOCK = 32


@pytest.fixture
async def vllm(vllm_url: str) -> AsyncIterator[VllmHttpEngine]:
    engine = VllmHttpEngine(vllm_url)
    yield engine
    await engine.close()


async def read_metric(url: str, name: str) -> float:
    """The value of a metric without further labels."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        match = re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)$", await answer.text(), re.MULTILINE)
    assert match is not None
    return float(match[1])


async def test_the_probe(vllm: VllmHttpEngine) -> None:
    info = await vllm.probe()
    assert info == EngineInfo(
        version=info.version,
        model="coder",
        max_model_len=4096,
        block_size=BLOCK,
        reports_cached_tokens=True,
        reports_speculation=True,
        structured_outputs=True,
    )
    assert re.match(r"0\.\d+", info.version)
    assert await vllm.healthy()


async def test_two_turns_keep_their_ids_and_the_cache(vllm: VllmHttpEngine) -> None:
    await vllm.probe()
    salt = uuid.uuid4().hex
    prompt: list[int] = recorded("stream_first_turn")["request"]["prompt"]
    first = request_for(orjson.dumps(prompt), max_tokens=60, cache_salt=salt)
    ids, end = await collect(vllm, first)
    assert (end.prompt_tokens, end.output_tokens, end.cached_tokens) == (len(prompt), len(ids), 0)
    assert end.drafted is not None
    assert end.accepted is not None
    assert 0 < end.accepted <= end.drafted
    context = [*prompt, *ids]
    longer = [*context, 198, *prompt[9:]]
    _, end = await collect(vllm, request_for(orjson.dumps(longer), max_tokens=8, cache_salt=salt))
    assert end.prompt_tokens == len(longer)
    assert end.cached_tokens == (len(context) - 1) // BLOCK * BLOCK
    again, end = await collect(vllm, request_for(orjson.dumps(prompt), max_tokens=60, cache_salt=uuid.uuid4().hex))
    assert again == ids
    assert end.cached_tokens == 0


async def test_closing_the_stream_aborts_the_request(vllm: VllmHttpEngine, vllm_url: str) -> None:
    before = await read_metric(vllm_url, "generation_tokens_total")
    endless = request_for(orjson.dumps([16, 11] * 40), max_tokens=3000)
    async with aclosing(vllm.generate(endless)) as items:
        assert isinstance(await anext(items), TokenChunk)
        assert await read_metric(vllm_url, "num_requests_running") == 1
    async with asyncio.timeout(60):
        while await read_metric(vllm_url, "num_requests_running"):
            await asyncio.sleep(0.2)
    assert await read_metric(vllm_url, "generation_tokens_total") - before < 1500


async def test_refusals(vllm: VllmHttpEngine) -> None:
    with pytest.raises(EngineRefused, match="maximum context length is 4096 tokens"):
        await collect(vllm, request_for(orjson.dumps([198] * 5000)))
    with pytest.raises(EngineRefused, match="out of vocabulary"):
        await collect(vllm, request_for(b"[10000000]"))


async def test_the_likeliest_first_tokens_are_told_on_request(vllm: VllmHttpEngine) -> None:
    await vllm.probe()
    prompt: list[int] = recorded("stream_first_turn")["request"]["prompt"]
    request = request_for(orjson.dumps(prompt), max_tokens=1, cache_salt=uuid.uuid4().hex)
    ids, end = await collect(vllm, replace(request, candidates=5))
    assert len(end.candidates) >= 5
    assert max(end.candidates, key=end.candidates.__getitem__) == ids[0]
    assert all(value <= 0 for value in end.candidates.values())
