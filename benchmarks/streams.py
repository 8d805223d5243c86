"""64 streams at 20 tokens/s each: how much later a token comes through a runtime than straight from the engine.

The emulated engine makes one token for every request at each tick of 50 ms, as a batching engine does. One more
stream, always straight to the engine, marks the ticks. A token's delay is its arrival minus that of the same tick
there; what the runtime adds is the delay through it minus the delay of as many streams straight to the engine.
Passes alternate within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from benchmarks import _direct
from benchmarks._common import Report, Served, emulator, percentile, serve

from paceline.engines.completions import CompletionStream
from paceline.transcript.chat import ChatModel, load
from paceline.transcript.context import Context
from paceline.workflow.model import Message, Role
from paceline_agents.aio import AsyncClient
from paceline_agents.types import TextDelta

TICK = 0.05
RAMP_SECONDS = 1.0
EARLY = 0.01
"""A stream may get its token before the marking one by less than this, in seconds."""
PROMPT = "Say x. " * 140
"""About 1,000 tokens of the built-in tokenizer, which makes one of each byte."""

Arrivals = list[float]
"""The time at which each token came."""


async def straight(session: aiohttp.ClientSession, url: str, request: bytes, arrivals: Arrivals) -> None:
    """One stream to the engine itself."""
    reader = CompletionStream()
    async with session.post(f"{url}/v1/completions", data=request, headers=_direct.HEADERS) as reply:
        reply.raise_for_status()
        async for data in reply.content.iter_any():
            if chunk := reader.feed(data):
                arrivals.extend([time.perf_counter()] * len(chunk.token_ids))


async def through(client: AsyncClient, workflow_id: str, tokens: int, arrivals: Arrivals) -> None:
    """One stream through the runtime. Each token is one letter."""
    async for event in client.step(workflow_id, PROMPT, max_output_tokens=tokens):
        if isinstance(event, TextDelta):
            arrivals.extend([time.perf_counter()] * len(event.text))


def delays(ticks: Arrivals, arrivals: Arrivals) -> list[float]:
    """Milliseconds by which each token of a stream came after its tick. The stream's first tick is the one that
    fits most of its tokens."""
    fits = Counter(bisect_right(ticks, arrived + EARLY) - 1 - index for index, arrived in enumerate(arrivals))
    first = fits.most_common(1)[0][0]
    pairs = ((arrived, first + index) for index, arrived in enumerate(arrivals))
    return [1000 * (arrived - ticks[tick]) for arrived, tick in pairs if 0 <= tick < len(ticks)]


class Bench:
    """Passes of one kind each."""

    def __init__(
        self, url: str, chat: ChatModel, session: aiohttp.ClientSession, streams: int, tokens: int
    ) -> None:
        self._url, self._chat, self._session = url, chat, session
        self._streams, self._tokens = streams, tokens

    async def request(self, max_tokens: int, salt: str) -> bytes:
        """A request to the engine itself, as the runtime sends it."""
        prompt = Context().extend(await self._chat.render_first("", (), [Message(Role.USER, PROMPT)]))
        return _direct.body(prompt.prompt_json(), prompt.tokens, max_tokens, salt, self._chat.stop_token_ids)

    async def measure(self, start: Callable[[Arrivals], Coroutine[Any, Any, None]]) -> list[float]:
        """The delays of all tokens of one pass."""
        ticks: Arrivals = []
        marks = await self.request(self._tokens + round(3 * RAMP_SECONDS / TICK), "ticks")
        marking = asyncio.create_task(straight(self._session, self._url, marks, ticks))
        await asyncio.sleep(10 * TICK)
        arrivals: list[Arrivals] = [[] for _ in range(self._streams)]
        async with asyncio.TaskGroup() as group:
            for one in arrivals:
                group.create_task(start(one))
                await asyncio.sleep(RAMP_SECONDS / self._streams)
        await marking
        return [delay for one in arrivals for delay in delays(ticks, one)]

    async def straight(self) -> list[float]:
        """All streams straight to the engine."""
        request = await self.request(self._tokens, "direct")
        return await self.measure(lambda arrivals: straight(self._session, self._url, request, arrivals))

    async def through(self, client: AsyncClient) -> list[float]:
        """All streams through the runtime, each in a workflow of its own."""
        ids = iter([(await client.create_workflow(temperature=0.0)).workflow_id for _ in range(self._streams)])
        return await self.measure(lambda arrivals: through(client, next(ids), self._tokens, arrivals))


def row(kind: str, found: list[float], cpu: float | None, client_cpu: float) -> dict[str, object]:
    """A line of the table."""
    return {
        "streams": kind,
        "tokens": len(found),
        "delay p50": percentile(found, 50),
        "p95": percentile(found, 95),
        "p99": percentile(found, 99),
        "runtime CPU/token": cpu,
        "client CPU/token": client_cpu,
    }


async def run(report: Report, options: argparse.Namespace, url: str, served: Served) -> None:
    """Alternate the passes and report."""
    plain: list[float] = []
    added: list[float] = []
    cpu = plain_client = added_client = 0.0
    chat = await load("emulated")
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, AsyncClient(served.target) as client:
        bench = Bench(url, chat, session, options.streams, options.tokens)
        for _ in range(options.rounds):
            start = time.process_time()
            plain += await bench.straight()
            middle, before = time.process_time(), served.cpu_seconds()
            added += await bench.through(client)
            cpu += served.cpu_seconds() - before
            plain_client += middle - start
            added_client += time.process_time() - middle
    rows = [
        row("straight", plain, None, 1000 * plain_client / len(plain)),
        row("through Paceline", added, 1000 * cpu / len(added), 1000 * added_client / len(added)),
    ]
    report.table("rows", f"{options.streams} streams at {1 / TICK:g} tokens/s, ms", rows)
    summary = {
        f"added {name}": percentile(added, number) - percentile(plain, number)
        for name, number in (("p50", 50), ("p95", 95), ("p99", 99))
    }
    report.table("added", "added by the runtime, ms; targets: p50 10, p95 50", [summary])


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=160, help="tokens per stream and pass")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    report = Report("streams")
    with TemporaryDirectory() as folder, ExitStack() as stack:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps([{"reply": "x" * 4 * options.tokens}]))
        flags = ["--prefill-token-seconds=0", "--prefill-fixed-seconds=0", "--step-per-request-seconds=0"]
        flags += [f"--step-seconds={TICK}", f"--max-num-seqs={options.streams + 1}", f"--script={script}"]
        url = stack.enter_context(
            emulator("--num-gpu-blocks-override=16384", "--max-num-batched-tokens=262144", *flags)
        )
        engine = {"model": "m", "url": url, "max_concurrent_steps": options.streams}
        settings = {"models": {"m": {"path": "emulated"}}, "engines": {"e": engine}}
        served = stack.enter_context(serve("streams", settings))
        asyncio.run(run(report, options, url, served))
    report.write()


if __name__ == "__main__":
    main()
