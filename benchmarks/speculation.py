"""Speculation on and off on a real engine: code edits, the same requests to both engines in turn within one run.

`ngram` drafts from the prompt, so it pays where the answer repeats what was given, as an edited file does.
`--pair` measures the 1.5B model with the 0.5B one as its draft instead. Speed is that of generating: output tokens
after the first, per second.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from typing import Any

from benchmarks import _tasks
from benchmarks._common import Report, Served, median, percentile, real_engine, real_model, serve

from paceline_agents.aio import AsyncClient
from paceline_agents.types import Answer

PAIR_MODEL = "qwen2.5-coder-1.5b"
SYSTEM = "You edit code. Answer with code only."


@dataclass(frozen=True, slots=True)
class Pair:
    """One edit without and with speculation."""

    edit: str
    plain: Answer
    drafted: Answer

    @property
    def ratio(self) -> float:
        """How much faster it was with speculation."""
        return speed(self.drafted) / speed(self.plain)


def speed(answer: Answer) -> float:
    """Output tokens after the first per second."""
    assert answer.timings.decode
    return ((answer.usage.output or 0) - 1) / answer.timings.decode


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The same model twice, as two models, so that the request says which engine it goes to."""
    path = PAIR_MODEL if options.pair else real_model()
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


async def ask(client: AsyncClient, model: str, prompt: str, tokens: int) -> Answer:
    """One turn in a workflow of its own."""
    workflow = await client.create_workflow(model=model, system=SYSTEM, temperature=0.0)
    return await workflow.step(prompt, max_output_tokens=tokens)


async def run(report: Report, options: argparse.Namespace, served: Served) -> None:
    """Alternate between the engines, edit by edit, round by round."""
    edits, pairs = _tasks.edits()[: options.edits], list[Pair]()
    async with AsyncClient(served.target) as client:
        for model in ("plain", "drafted"):  # loads the model, and computes for the first time
            await ask(client, model, "Write a loop.", 16)
        report.say("both engines are ready")
        for repeat in range(options.repeats):
            for number, edit in enumerate(edits):
                order = ("plain", "drafted") if (number + repeat) % 2 else ("drafted", "plain")
                answers = {model: await ask(client, model, edit.prompt, options.tokens) for model in order}
                pairs.append(Pair(edit.name, answers["plain"], answers["drafted"]))
                report.say(f"repeat {repeat + 1}, {edit.name}: {pairs[-1].ratio:.2f} times as fast")
    report.table("edits", "by edit", [row(edit.name, [p for p in pairs if p.edit == edit.name]) for edit in edits])
    report.table("rows", f"all, K={options.k}", [row("all", pairs)])


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
