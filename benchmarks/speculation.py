"""Speculation on and off on a real engine: code edits, the same requests to both engines in turn within one run.

`ngram` drafts from the prompt, so it pays where the answer repeats what was given, as an edited file does.
`--pair` measures the 1.5B model with the 0.5B one as its draft instead. Speed is that of generating: output tokens
after the first, per second. `kept` compares whole steps as their caller sees them, prompts cached: the speed-up
through Paceline over that of the same requests sent straight to the two engines.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson
from benchmarks import _tasks
from benchmarks._common import Report, Served, median, percentile, real_engine, real_model, serve

from paceline.engines.base import GenerateRequest
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.models.catalog import resolve_model
from paceline.transcript import chat
from paceline.transcript.chat import ChatModel
from paceline.workflow.model import Message, Role, Sampling
from paceline_agents.aio import AsyncClient
from paceline_agents.types import Answer

PAIR_MODEL = "qwen2.5-coder-1.5b"
MODELS = ("plain", "drafted")
SYSTEM = "You edit code. Answer with code only."


@dataclass(frozen=True, slots=True)
class Pair:
    """One edit without and with speculation."""

    edit: str
    plain: Answer
    drafted: Answer
    seconds: dict[tuple[str, str], float]
    """Of the whole step by way (`paceline`, `engine`) and model, as the caller sees it."""

    @property
    def ratio(self) -> float:
        """How much faster it was with speculation."""
        return speed(self.drafted) / speed(self.plain)

    def whole(self, way: str) -> float:
        """How much faster the whole step was with speculation."""
        return self.seconds[way, "plain"] / self.seconds[way, "drafted"]

    @property
    def kept(self) -> float:
        """Share of the engine's own speed-up that comes out of Paceline."""
        return self.whole("paceline") / self.whole("engine")


def speed(answer: Answer) -> float:
    """Output tokens after the first per second."""
    assert answer.timings.decode
    return ((answer.usage.output or 0) - 1) / answer.timings.decode


def model_path(options: argparse.Namespace) -> str:
    """The model that answers."""
    return PAIR_MODEL if options.pair else real_model()


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The same model twice, as two models, so that the request says which engine it goes to."""
    path = model_path(options)
    profile: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": options.k}
    if options.pair:
        profile = {"method": "draft_model", "num_speculative_tokens": options.k, "drafter": real_model()}
    return {
        "models": {"plain": {"path": path}, "drafted": {"path": path}},
        "speculation": {"on": profile},
        "engines": {
            "plain": real_engine("plain", kv_cache_gib=0.5),
            "drafted": real_engine("drafted", kv_cache_gib=0.5, speculation="on"),
        },
    }


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks through Paceline and past it."""

    client: AsyncClient
    engines: dict[str, VllmHttpEngine]
    chat: ChatModel
    tokens: int

    async def through(self, model: str, prompt: str) -> tuple[Answer, float]:
        """One turn in a workflow of its own, and its seconds."""
        workflow = await self.client.create_workflow(model=model, system=SYSTEM, temperature=0.0)
        begin = time.perf_counter()
        answer = await workflow.step(prompt, max_output_tokens=self.tokens)
        return answer, time.perf_counter() - begin

    async def past(self, model: str, prompt: str) -> float:
        """The same request by token ids straight to the engine: its seconds."""
        ids = await self.chat.render_first(SYSTEM, (), [Message(Role.USER, prompt)])
        request = GenerateRequest(
            request_id=uuid.uuid4().hex,
            prompt_json=orjson.dumps(ids),
            prompt_tokens=len(ids),
            max_tokens=self.tokens,
            sampling=Sampling(temperature=0.0),
            stop_token_ids=self.chat.stop_token_ids,
            cache_salt="direct",
            session_id="",
        )
        begin = time.perf_counter()
        async for _ in self.engines[model].generate(request):
            pass
        return time.perf_counter() - begin

    async def pair(self, edit: str, prompt: str, order: tuple[str, str]) -> Pair:
        """All four, the two of each way beside each other in time."""
        seconds: dict[tuple[str, str], float] = {}
        answers: dict[str, Answer] = {}
        for model in order:
            seconds["engine", model] = await self.past(model, prompt)
            answers[model], seconds["paceline", model] = await self.through(model, prompt)
        return Pair(edit, answers["plain"], answers["drafted"], seconds)


@asynccontextmanager
async def asking(served: Served, path: str, tokens: int) -> AsyncIterator[Asker]:
    """An asker with connections to everybody."""
    engines: dict[str, VllmHttpEngine] = {}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(served.target))
        for model in MODELS:  # waits until the engine is ready, and computes for the first time
            workflow = await client.create_workflow(model=model, system=SYSTEM, temperature=0.0)
            await workflow.step("Write a loop.", max_output_tokens=16)
        for url in served.engine_urls():
            engine = VllmHttpEngine(url)
            stack.push_async_callback(engine.close)
            engines[(await engine.probe()).model] = engine
        yield Asker(client, engines, await chat.load(resolve_model(path)), tokens)


async def run(report: Report, options: argparse.Namespace, served: Served) -> None:
    """Alternate between the engines, edit by edit, round by round."""
    edits, pairs = _tasks.edits()[: options.edits], list[Pair]()
    async with asking(served, model_path(options), options.tokens) as asker:
        report.say("both engines are ready")
        for edit in edits:  # caches the prompts
            for model in MODELS:
                short = replace(asker, tokens=8)
                await short.past(model, edit.prompt)
                await short.through(model, edit.prompt)
        for repeat in range(options.repeats):
            for number, edit in enumerate(edits):
                pair = await asker.pair(edit.name, edit.prompt, MODELS if (number + repeat) % 2 else MODELS[::-1])
                pairs.append(pair)
                report.say(
                    f"repeat {repeat + 1}, {edit.name}: {pair.ratio:.2f} times as fast, kept {pair.kept:.1%}"
                )
    report.table("edits", "by edit", [row(edit.name, [p for p in pairs if p.edit == edit.name]) for edit in edits])
    report.table("rows", f"all, K={options.k}", [row("all", pairs)])


def together(pairs: list[Pair], way: str) -> float:
    """Speed-up of all whole steps of a way together: a disturbance of one of them counts by its seconds only."""
    plain, drafted = (sum(pair.seconds[way, model] for pair in pairs) for model in MODELS)
    return plain / drafted


def row(name: str, pairs: list[Pair]) -> dict[str, object]:
    """A line of the table."""
    ratios = [pair.ratio for pair in pairs]
    drafted = sum(pair.drafted.speculation.drafted or 0 for pair in pairs)
    accepted = sum(pair.drafted.speculation.accepted or 0 for pair in pairs)
    lengths = [pair.drafted.speculation.mean_acceptance_length or 0.0 for pair in pairs]
    return {
        "edit": name,
        "pairs": len(pairs),
        "output tokens": sum(pair.plain.usage.output or 0 for pair in pairs),
        "same text": sum(pair.plain.text == pair.drafted.text for pair in pairs),
        "off tokens/s": median([speed(pair.plain) for pair in pairs]),
        "on tokens/s": median([speed(pair.drafted) for pair in pairs]),
        "ratio p50": median(ratios),
        "p10": percentile(ratios, 10),
        "p90": percentile(ratios, 90),
        "accepted %": 100 * accepted / drafted if drafted else None,
        "per verification": sum(lengths) / len(lengths),
        "whole step": together(pairs, "paceline"),
        "engine's own": together(pairs, "engine"),
        "kept %": 100 * together(pairs, "paceline") / together(pairs, "engine"),
        "kept p10": 100 * percentile([pair.kept for pair in pairs], 10),
        "kept p90": 100 * percentile([pair.kept for pair in pairs], 90),
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", action="store_true", help=f"{PAIR_MODEL} with the 0.5B model as its draft")
    parser.add_argument("--k", type=int, help="tokens drafted at a time; default 6, with --pair 4")
    parser.add_argument("--edits", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200, help="most tokens per answer")
    options = parser.parse_args()
    options.k = options.k or (4 if options.pair else 6)
    report = Report("speculation_pair" if options.pair else "speculation")
    with serve("speculation", settings(options)) as served:
        asyncio.run(run(report, options, served))
    report.write()


if __name__ == "__main__":
    main()
