"""What a step costs beyond the engine: the same continuation straight to an emulated engine and through a runtime.

The emulated engine waits instead of computing, so what differs between the two is the runtime: gRPC, the ledger,
the transcript, tokenizing, parsing. Requests alternate within one run. `warm`: the context is in the runtime's
memory. `database`: other contexts have pushed it out, so that it is read from the ledger again. The empty bridge
shows what any process between client and engine costs on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import aiohttp
import grpc
from benchmarks import _bridge, _direct
from benchmarks._common import Report, Served, emulator, median, percentile, serve, source_text
from benchmarks._direct import Times

from paceline.models.catalog import resolve_model
from paceline.transcript.chat import ChatModel, load
from paceline.transcript.context import Context
from paceline.workflow.model import Message, Role
from paceline_agents.aio import AsyncClient
from paceline_agents.types import Finished, TextDelta

NEW_BYTES = 2000
OUTPUT_TOKENS = 32
TURN_TOKENS = 2500
"""A long context is made of turns of about this many tokens, as agents make them."""
SYSTEM = "You are a coding agent."
SIZES = {"1k": 1_000, "100k": 100_000}
FLAGS = (
    "--max-model-len=131072",
    "--num-gpu-blocks-override=32768",
    "--enable-prompt-tokens-details",
    "--prefill-token-seconds=0",
    "--prefill-fixed-seconds=0.01",
    "--step-seconds=0.005",
    "--step-per-request-seconds=0",
    f"--reply-tokens={OUTPUT_TOKENS}",
)
TARGETS = {("1k", "warm"): (2.5, 4.0), ("100k", "warm"): (5.0, None), ("100k", "database"): (20.0, None)}
"""First token and whole step, added milliseconds at p50."""


@dataclass(frozen=True, slots=True)
class Base:
    """A context that every measured step continues."""

    workflow_id: str
    step_id: str
    context: Context


class Bench:
    """Both ways to one emulated engine."""

    def __init__(self, url: str, chat: ChatModel, session: aiohttp.ClientSession, text: str) -> None:
        self._url, self._chat, self._session = url, chat, session
        self._news = _pieces(text, NEW_BYTES)
        self._turns = _pieces(text, 9_000)

    async def base(self, client: AsyncClient, tokens: int) -> Base:
        """Build a context of about `tokens` through the runtime."""
        workflow = await client.create_workflow(system=SYSTEM, temperature=0.0)
        context, step_id = Context.empty(), ""
        while context.tokens < tokens * 0.98:
            wanted = min(TURN_TOKENS, tokens - context.tokens)
            text = self._chat.tokenizer.decode(self._chat.tokenizer.encode_now(next(self._turns))[:wanted])
            rendered = await self._render(text, first=not context.tokens)
            answer = await workflow.step(text, max_output_tokens=1)
            step_id = answer.step_id
            # The generated id is not in the client's hands; any other one costs the engine the same.
            context = context.extend(rendered).extend(self._chat.tokenizer.encode_now("a")[:1])
            assert answer.reuse.prompt_tokens == context.tokens - 1, (answer.reuse, context.tokens)
        return Base(workflow.workflow_id, step_id, context)

    async def _render(self, text: str, *, first: bool) -> list[int]:
        message = [Message(Role.USER, text)]
        if first:
            return await self._chat.render_first(SYSTEM, (), message)
        return await self._chat.render_continuation(message, (), closed=False)

    async def request(self, base: Base) -> bytes:
        """One continuation as the engine takes it, made before the clock starts."""
        prompt = base.context.extend(await self._render(next(self._news), first=False))
        stop = self._chat.stop_token_ids
        return _direct.body(prompt.prompt_json(), prompt.tokens, OUTPUT_TOKENS, "direct", stop)

    async def direct(self, base: Base) -> Times:
        """One continuation straight to the engine."""
        return await _direct.stream(self._session, self._url, await self.request(base))

    async def through(self, client: AsyncClient, base: Base, max_tokens: int = OUTPUT_TOKENS) -> Times:
        """One continuation through the runtime."""
        stream = client.step(
            base.workflow_id,
            next(self._news),
            parent_step_id=base.step_id,
            max_output_tokens=max_tokens,
            temperature=0.0,
        )
        times = Times()
        async for event in stream:
            if isinstance(event, TextDelta):
                times.mark()
            elif isinstance(event, Finished):
                times.end()
        return times


def _pieces(text: str, size: int) -> Iterator[str]:
    """Pieces of a text that are all different, without end."""
    starts = itertools.cycle(range(0, len(text) - size, size))
    for number, start in enumerate(starts):
        yield f"# part {number}\n{text[start : start + size]}"[:size]


@dataclass(slots=True)
class Case:
    """One context size in one state, measured."""

    size: str
    state: str
    client: AsyncClient
    served: Served
    base: Base
    before: list[Base]
    """Contexts to continue first, to push this one out of memory."""
    bridge: grpc.aio.Channel | None
    """An empty bridge to compare with."""
    direct: list[Times] = field(default_factory=list)
    bridged: list[Times] = field(default_factory=list)
    through: list[Times] = field(default_factory=list)
    cpu: float = 0.0
    cpu_short: float = 0.0
    short: int = 0

    async def run(self, bench: Bench, pairs: int) -> None:
        """One block of alternating requests, and one of short answers for the cost of a token."""
        for _ in range(pairs):
            self.direct.append(await bench.direct(self.base))
            if self.bridge:
                self.bridged.append(await _bridge.through(self.bridge, await bench.request(self.base)))
            await self._evict(bench)
            start = self.served.cpu_seconds()
            self.through.append(await bench.through(self.client, self.base))
            self.cpu += self.served.cpu_seconds() - start
        if not self.before:
            start = self.served.cpu_seconds()
            for _ in range(pairs):
                await bench.through(self.client, self.base, 1)
            self.cpu_short += self.served.cpu_seconds() - start
            self.short += pairs

    async def _evict(self, bench: Bench) -> None:
        for other in self.before:
            await bench.through(self.client, other, 1)

    def forget(self) -> None:
        """Drop what was measured so far: it warmed things up."""
        for times in (self.direct, self.bridged, self.through):
            times.clear()
        self.cpu = self.cpu_short = self.short = 0

    def rows(self) -> list[dict[str, object]]:
        """Its lines of the table of times, in milliseconds."""
        first, whole = TARGETS.get((self.size, self.state), (None, None))
        rows = [self._row(self.state, self.through, first, whole)]
        if self.bridged:
            rows.append(self._row("(empty bridge)", self.bridged, None, None))
        return rows

    def _row(self, name: str, taken: list[Times], target: float | None, whole: float | None) -> dict[str, object]:
        first, plain = ([1000 * times.tokens[0] for times in way] for way in (taken, self.direct))
        total, plain_total = ([1000 * times.total for times in way] for way in (taken, self.direct))
        return {
            "context": self.size,
            "from": name,
            "steps": len(taken),
            "first +p50": median(first) - median(plain),
            "target": target,
            "first +p95": percentile(first, 95) - percentile(plain, 95),
            "step +p50": median(total) - median(plain_total),
            "target ": whole,
            "direct first": median(plain),
            "direct step": median(plain_total),
        }

    def cpu_row(self) -> dict[str, object]:
        """Its line of the table of CPU time, in milliseconds."""
        per_step = 1000 * self.cpu / len(self.through)
        short = 1000 * self.cpu_short / self.short if self.short else None
        return {
            "context": self.size,
            "from": self.state,
            f"step of {OUTPUT_TOKENS} tokens": per_step,
            "step of 1 token": short,
            "each further token": None if short is None else (per_step - short) / (OUTPUT_TOKENS - 1),
        }


def settings(model: str, url: str, cache_mib: int) -> dict[str, object]:
    """One model on one engine that somebody else runs."""
    return {
        "models": {"m": {"path": model}},
        "engines": {"e": {"model": "m", "url": url, "max_concurrent_steps": 8}},
        "limits": {"transcript_cache_mib": cache_mib},
    }


async def measure(report: Report, options: argparse.Namespace) -> None:
    """Build the contexts, then run the cases block by block."""
    chat = await load(options.model)
    text = source_text()
    async with aiohttp.ClientSession() as session:
        with ExitStack() as stack:
            url = stack.enter_context(emulator(f"--model={options.model}", "--served-model-name=m", *FLAGS))
            warm = stack.enter_context(serve("overhead-warm", settings(options.model, url, 256)))
            cold = stack.enter_context(serve("overhead-database", settings(options.model, url, 1)))
            empty = stack.enter_context(_bridge.bridge(url))
            async with (
                AsyncClient(warm.target) as warm_client,
                AsyncClient(cold.target) as cold_client,
                grpc.aio.insecure_channel(empty) as channel,
            ):
                bench = Bench(url, chat, session, text)
                cases = []
                for state, client, served in (("warm", warm_client, warm), ("database", cold_client, cold)):
                    bases = {name: await bench.base(client, tokens) for name, tokens in SIZES.items()}
                    # The cache of the second runtime holds two long contexts.
                    count = 2 if state == "database" else 0
                    others = [await bench.base(client, SIZES["100k"]) for _ in range(count)]
                    for name, base in bases.items():
                        floor = channel if (name, state) == ("1k", "warm") else None
                        cases.append(Case(name, state, client, served, base, others, floor))
                report.say(f"contexts are built: {[case.base.context.tokens for case in cases]} tokens")
                for case in cases:
                    await case.run(bench, 3)
                    case.forget()
                for _ in range(options.rounds):
                    for case in cases:
                        await case.run(bench, options.pairs)
    cases.sort(key=lambda case: (case.size != "1k", case.state != "warm"))
    title = f"added by the runtime, ms; {NEW_BYTES} B of new text, {OUTPUT_TOKENS} tokens out"
    report.table("rows", title, [row for case in cases for row in case.rows()])
    report.table("cpu", "CPU of the runtime's process, ms", [case.cpu_row() for case in cases])


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model",
        default="emulated",
        help="folder with tokenizer.json; the built-in tokenizer makes a token of a byte",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20, help="pairs per case and round")
    options = parser.parse_args()
    options.model = resolve_model(options.model)
    report = Report("overhead")
    asyncio.run(measure(report, options))
    report.write()


if __name__ == "__main__":
    main()
