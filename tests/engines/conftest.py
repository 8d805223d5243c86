"""Servers with scripted replies, and the adapter in front of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest
from tests.engines.scripted import ScriptedServer

from paceline.engines.base import GenerateRequest, GenerationEnd
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.workflow.model import Sampling

MakeEngine = Callable[..., VllmHttpEngine]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A server without scripts."""
    scripted = ScriptedServer()
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def make_engine(server: ScriptedServer) -> AsyncIterator[MakeEngine]:
    """Makes adapters in front of the server. At the end they are closed and no task of theirs is left."""
    before = asyncio.all_tasks()
    engines: list[VllmHttpEngine] = []

    def make(**options: object) -> VllmHttpEngine:
        engines.append(VllmHttpEngine(server.url, **options))  # type: ignore[arg-type]  # checked by the class
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()
    own = {asyncio.current_task(), *before}
    left = [task for task in asyncio.all_tasks() - own if "ScriptedServer" not in repr(task)]
    assert not left


@pytest.fixture
def engine(make_engine: MakeEngine) -> VllmHttpEngine:
    """One adapter with its defaults."""
    return make_engine(served_model_name="coder")


def request_for(
    prompt: bytes = b"[1,2,3]",
    *,
    max_tokens: int = 8,
    sampling: Sampling | None = None,
    stop_token_ids: tuple[int, ...] = (),
    cache_salt: str = "tenant-a",
    session_id: str = "workflow-1",
) -> GenerateRequest:
    """A request with these parts and plain defaults."""
    return GenerateRequest(
        request_id="request-1",
        prompt_json=prompt,
        prompt_tokens=prompt.count(b",") + 1,
        max_tokens=max_tokens,
        sampling=sampling or Sampling(temperature=0.0),
        stop_token_ids=stop_token_ids,
        cache_salt=cache_salt,
        session_id=session_id,
    )


async def collect(engine: VllmHttpEngine, request: GenerateRequest) -> tuple[list[int], GenerationEnd]:
    """All ids of a request and its end; the end comes once and last."""
    ids: list[int] = []
    ends: list[GenerationEnd] = []
    async with aclosing(engine.generate(request)) as stream:
        async for item in stream:
            assert not ends
            if isinstance(item, GenerationEnd):
                ends.append(item)
            else:
                ids += item.token_ids
    assert len(ends) == 1
    return ids, ends[0]
