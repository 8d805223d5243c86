"""What it costs to make the prompt of a continuation: 500 new tokens after histories of several lengths.

Real chains of steps in a SQLite ledger and a real tokenizer, no engine and no server. `memory`: the head of the
chain is in the runtime's memory. `database`: it is not, as just after a start, so that the whole chain is read;
the file is in the system's cache. Measured is `Prompts.build` and the JSON text of the ids that is sent to the
engine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from pathlib import Path

from benchmarks._chains import Chains, Texts, append, fresh_ledger, no_rules, real_tokenizer
from benchmarks._common import Report, median, percentile

from paceline.ledger.store import SqlLedger
from paceline.transcript.chat import ChatModel
from paceline.workflow.commands import RunStep
from paceline.workflow.model import Workflow
from paceline.workflow.prompts import Prompts

NEW_TOKENS = 500
SIZES = {"1k": (1_000, 2), "32k": (32_000, 16), "128k": (128_000, 64)}
"""Tokens of history, and the steps that they are made of."""
TARGETS = {"memory": 3.0, "database": 20.0}
"""Milliseconds at p50."""


class Case:
    """One history and where it comes from."""

    def __init__(self, size: str, source: str, ledger: SqlLedger, workflow: Workflow) -> None:
        self.size, self.source = size, source
        self._ledger, self._workflow = ledger, workflow
        self._warm = no_rules(ledger, 256)
        self._tokens = 0
        self.times: list[float] = []

    async def once(self, chat: ChatModel, texts: Texts) -> None:
        """Make one prompt."""
        prompts = self._warm if self.source == "memory" else no_rules(self._ledger, 256)
        command = append(self._workflow, texts.message(NEW_TOKENS))
        self.times.append(await self._timed(prompts, command, chat))

    async def _timed(self, prompts: Prompts, command: RunStep, chat: ChatModel) -> float:
        started = time.perf_counter()
        prompt = await prompts.build(command, self._workflow, chat, self._workflow.head_step_id)
        prompt.context.prompt_json()
        taken = (time.perf_counter() - started) * 1000
        assert prompt.break_reason is None, prompt.break_reason
        self._tokens = prompt.carried
        return taken

    def row(self, shortest: Case) -> dict[str, object]:
        """Its line of the table."""
        return {
            "history": self.size,
            "tokens": self._tokens,
            "steps": SIZES[self.size][1],
            "from": self.source,
            "times": len(self.times),
            "p50 ms": median(self.times),
            "target": TARGETS[self.source],
            "p95 ms": percentile(self.times, 95),
            "times the p50 of 1k": median(self.times) / median(shortest.times),
        }


async def measure(report: Report, repeats: int) -> None:
    """Write the chains, then go through all cases again and again."""
    with tempfile.TemporaryDirectory() as folder:
        chat = await real_tokenizer(Path(folder))
    texts = Texts(chat)
    async with fresh_ledger() as ledger:
        chains = Chains(ledger, chat, texts)
        cases: list[Case] = []
        for size, (tokens, turns) in SIZES.items():
            workflow = await chains.write(tokens, turns)
            cases += [Case(size, source, ledger, workflow) for source in TARGETS]
        report.say("the chains are written")
        gc.collect()
        for number in range(repeats + 3):
            for case in cases:
                await case.once(chat, texts)
                if number == 2:
                    case.times.clear()
    cases.sort(key=lambda case: case.source, reverse=True)
    first = {case.source: case for case in reversed(cases)}
    rows = [case.row(first[case.source]) for case in cases]
    report.table("rows", f"Prompt of a continuation, {NEW_TOKENS} new tokens", rows)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    report = Report("append")
    asyncio.run(measure(report, repeats))
    report.write()


if __name__ == "__main__":
    main()
