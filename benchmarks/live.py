"""10,000 live workflows of 100,000 tokens each, in a runtime that may keep 1 GiB of them in memory.

A workflow that is continued is drawn at random from all of them; its step appends 500 tokens and an answer of
200. What is in memory continues from there, everything else is read from a SQLite ledger. Measured are the
memory of the process, before and while it runs, how many continuations found their head in memory, and what
each kind costs.

What is not as in service: the file holds 50 different chains of 40 steps, each of which stands for many
workflows, because 10,000 of them would be 4 GB of ids alone. Each of the workflows has its own head in memory
and its own steps after the shared ones; those are kept by the benchmark, packed, and put after what was read.
The file is in the system's cache. There is no server and no engine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import psutil
from benchmarks._chains import (
    ANSWER_TOKENS,
    TENANT,
    Chains,
    Texts,
    append,
    fresh_ledger,
    head_after,
    no_rules,
    real_tokenizer,
    step_of,
)
from benchmarks._common import Report, median, percentile

from paceline.ledger.store import SqlLedger
from paceline.transcript.chat import ChatModel
from paceline.workflow.chain import ChainLink
from paceline.workflow.model import Message, Role, StepState, Workflow
from paceline.workflow.ports import Ledger
from paceline.workflow.prompts import Prompt

CHAINS, TOKENS, TURNS = 50, 100_000, 40
NEW_TOKENS = 500
MIB = 2**20


@dataclass
class Live:
    """One of the many workflows."""

    workflow: Workflow
    stored: str
    """The last step of its chain in the file."""
    later: list[ChainLink] = field(default_factory=list)
    """What it did since."""

    @property
    def head(self) -> str:
        """Its last step."""
        return self.later[-1].step_id if self.later else self.workflow.workflow_id


class Fleet:
    """The ledger of all workflows, as far as prompts read it: stored chains, each under many names."""

    def __init__(self, ledger: SqlLedger, chains: list[Workflow], count: int) -> None:
        self._ledger = ledger
        self.reads = 0
        self.live: list[Live] = []
        for number in range(count):
            chain = chains[number % len(chains)]
            assert chain.head_step_id
            own = replace(chain, workflow_id=f"live-{number:06}", head_step_id=None)
            self.live.append(Live(own, chain.head_step_id))
        self._of = {one.workflow.workflow_id: one for one in self.live}

    async def load_links(self, tenant: str, step_id: str) -> list[ChainLink]:
        """The chain of a workflow's last step."""
        self.reads += 1
        one = self._of[step_id.partition("/")[0]]
        links = await self._ledger.load_links(tenant, one.stored)
        name = one.workflow.workflow_id
        links[-1] = replace(links[-1], step_id=name, workflow_id=name)
        if one.later:
            shared = links[-1]
            links += one.later
            links[-1] = replace(links[-1], system=shared.system, tools=shared.tools)
        return links


class Bench:
    """Continues workflows."""

    def __init__(self, fleet: Fleet, chat: ChatModel, texts: Texts, cache_mib: int) -> None:
        self._fleet, self._chat, self._texts = fleet, chat, texts
        # The only part of a ledger that an append needs is `load_links`.
        self._prompts = no_rules(cast("Ledger", fleet), cache_mib)
        self.memory: list[float] = []
        self.database: list[float] = []

    async def once(self, one: Live) -> None:
        """Continue a workflow and keep its new head."""
        command = append(one.workflow, self._texts.message(NEW_TOKENS))
        reads = self._fleet.reads
        started = time.perf_counter()
        prompt = await self._prompts.build(command, one.workflow, self._chat, one.head)
        taken = (time.perf_counter() - started) * 1000
        (self.memory if self._fleet.reads == reads else self.database).append(taken)
        generated = [*self._texts.ids(ANSWER_TOKENS), self._chat.closing_ids[0]]
        self._finish(one, prompt, generated)

    def _finish(self, one: Live, prompt: Prompt, generated: list[int]) -> None:
        step_id = f"{one.workflow.workflow_id}/{len(one.later)}"
        step = step_of(one.workflow, step_id, prompt, one.head)
        output = Message(Role.ASSISTANT, self._chat.tokenizer.decode(generated[:-1]))
        head = head_after(step, prompt, self._chat, output, generated)
        self._prompts.remember(TENANT, head)
        link = ChainLink(
            step_id=step_id,
            workflow_id=one.workflow.workflow_id,
            parent_step_id=one.head,
            state=StepState.FINISHED,
            segments=prompt.segments(self._chat, generated),
            keys=head.trail[-1].keys,
            calls=(),
            system="",
            tools=(),
            reasoning_tokens=0,
            kept_reasoning_tokens=0,
            replica="one",
        )
        one.later.append(link)


async def measure(report: Report, options: argparse.Namespace) -> None:
    """Write the chains, fill the memory, then continue at random."""
    process, rng = psutil.Process(), random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        chat = await real_tokenizer(Path(folder))
    texts = Texts(chat)
    async with fresh_ledger() as ledger:
        chains = Chains(ledger, chat, texts)
        stored = [await chains.write(TOKENS, TURNS) for _ in range(CHAINS)]
        report.say(f"{CHAINS} chains of {TURNS} steps are written; they stand for {options.workflows:,} workflows")
        fleet = Fleet(ledger, stored, options.workflows)
        bench = Bench(fleet, chat, texts, options.cache_mib)
        gc.collect()
        base = peak = process.memory_info().rss
        for number in range(options.fill + options.steps):
            await bench.once(rng.choice(fleet.live))
            peak = max(peak, process.memory_info().rss)
            if number + 1 == options.fill:
                report.say(
                    f"memory after {number + 1} continuations: {(peak - base) / MIB:,.0f} MiB above the base"
                )
                bench.memory.clear()
                bench.database.clear()
    done = len(bench.memory) + len(bench.database)
    rows = [
        {
            "from": name,
            "continuations": len(times),
            "share": len(times) / done,
            "p50 ms": median(times),
            "p95 ms": percentile(times, 95),
        }
        for name, times in (("memory", bench.memory), ("database", bench.database))
    ]
    report.table("continuations", f"{options.workflows:,} workflows of {TOKENS:,} tokens", rows)
    sizes = {
        "base MiB": base / MIB,
        "bound MiB": options.cache_mib,
        "most MiB": peak / MIB,
        "most above base MiB": (peak - base) / MIB,
    }
    report.table("memory", "Resident memory of the process", [sizes])


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workflows", type=int, default=10_000)
    parser.add_argument("--cache-mib", type=int, default=1024)
    parser.add_argument("--fill", type=int, default=2_500, help="continuations before the measured ones")
    parser.add_argument("--steps", type=int, default=5_000)
    options = parser.parse_args()
    report = Report("live")
    asyncio.run(measure(report, options))
    report.write()


if __name__ == "__main__":
    main()
