"""EMULATED: is the choice between a speculative and a plain pool as good as the better pool, and as hindsight?

    PACELINE_DATA=... python -m benchmarks.pools [--workflows 400] [--seed 1] [--processes 16]

First in virtual time, by the same code that chooses in service. Then, smaller, with emulator processes behind a
runtime. No model runs: only the acceptance curves were measured, by vLLM's project, each on a model of its own.
Here they stand for kinds of text on one model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from contextlib import ExitStack
from typing import Any

from benchmarks._common import RESULTS, Report, emulator, serve
from benchmarks._pools import (
    DRAFTING,
    PLAIN,
    Curves,
    Scenario,
    always,
    curves_file,
    hindsight,
    make_workflows,
    paceline,
    read_curves,
)

from paceline.emulator.settings import Timing
from paceline.routing.pools import PoolReason
from paceline_agents.aio import AsyncClient
from paceline_agents.types import OutcomeKind

LOW, LOW_OFF = "deepseek-v4-pro/MTP/on", "deepseek-v4-pro/MTP/off"
HIGH = "qwen3.5-397b-a17b-nvfp4/MTP/on"
ALL = (LOW, LOW_OFF, "kimi-k2.5-nvfp4/EAGLE3/on", "kimi-k2.5-nvfp4/EAGLE3/off", "minimax-m3/EAGLE3/on", HIGH)
AHEAD = 7
SPLITS = 0.36
"""What a drafted token adds to a pass: so `LOW` loses (2.5 tokens per pass of 3.5 times the time), `HIGH` (5.0)
gains."""
SCALE = 0.05
"""Of the emulator processes' time."""


def of_one_kind(*names: str) -> Curves:
    """Each workflow keeps a curve."""
    return lambda rng, steps: [rng.choice(names)] * steps


def changing(first: str, then: str, earliest: int, latest: int) -> Curves:
    """Each workflow has `first` for so many steps, and `then` to its end."""

    def curves(rng: random.Random, steps: int) -> list[str]:
        at = rng.randint(earliest, latest)
        return [first] * min(at, steps) + [then] * max(0, steps - at)

    return curves


def either(*ways: Curves) -> Curves:
    """Each workflow goes one of these ways."""
    return lambda rng, steps: rng.choice(ways)(rng, steps)


GROWN: dict[str, Any] = {"new_tokens": (6000, 16_000), "steps": (8, 14)}
SCENARIOS = (
    Scenario("all profit", 0.1, AHEAD, of_one_kind(*ALL)),
    Scenario("none profits", 0.7, AHEAD, of_one_kind(*ALL)),
    Scenario("two kinds, mixed", SPLITS, AHEAD, of_one_kind(LOW, HIGH)),
    Scenario("all kinds, mixed", SPLITS, AHEAD, of_one_kind(*ALL)),
    Scenario("thinking off midway", 0.25, AHEAD, changing(LOW, LOW_OFF, 3, 12)),
    Scenario("plan, then edits", SPLITS, AHEAD, changing(LOW, HIGH, 2, 4)),
    Scenario("edits, then talk", SPLITS, AHEAD, changing(HIGH, LOW, 3, 8)),
    Scenario("long, high to low", SPLITS, AHEAD, changing(HIGH, LOW, 6, 9), **GROWN),
    Scenario("long, low to high", SPLITS, AHEAD, changing(LOW, HIGH, 6, 9), **GROWN),
    Scenario(
        "long, either way", SPLITS, AHEAD, either(changing(HIGH, LOW, 6, 9), changing(LOW, HIGH, 6, 9)), **GROWN
    ),
)
UNKNOWABLE = (
    Scenario("plan of 3 to 8 steps", SPLITS, AHEAD, changing(LOW, HIGH, 3, 8)),
    Scenario("either way, 3 to 8", SPLITS, AHEAD, either(changing(HIGH, LOW, 3, 8), changing(LOW, HIGH, 3, 8))),
    Scenario(
        "100k before a word", SPLITS, AHEAD, of_one_kind(LOW, HIGH), (60_000, 120_000), (500, 4000), steps=(6, 14)
    ),
)
"""Hindsight knows beforehand when a workflow changes, or its kind before its very long first prompt is read.
Nobody else can: shown without a target."""


def virtual(scenario: Scenario, curves: dict[str, tuple[float, ...]], count: int, seed: int) -> dict[str, Any]:
    """One row of the table."""
    timing, ahead = scenario.timing(Timing()), scenario.tokens_ahead
    workflows = make_workflows(scenario, curves, count, seed)
    plain, drafting = (always(pool, workflows, timing, ahead) for pool in (PLAIN, DRAFTING))
    chosen, best = paceline(workflows, timing, ahead), hindsight(workflows, timing, ahead)
    return {
        "scenario": scenario.name,
        "plain h": plain / 3600,
        "speculative h": drafting / 3600,
        "Paceline h": chosen.seconds / 3600,
        "hindsight h": best / 3600,
        "% over better pool": 100 * (chosen.seconds / min(plain, drafting) - 1),
        "% over hindsight": 100 * (chosen.seconds / best - 1),
        "switches": chosen.reasons[PoolReason.SWITCHED],
        "tries": chosen.reasons[PoolReason.UNTRIED],
    }


async def run_workflows(target: str, count: int, seed: int) -> float:
    """Seconds of prefill and decode of all steps; half of the workflows are of the kind that drafts well."""
    rng, total = random.Random(seed), 0.0
    async with AsyncClient(target) as client:
        for number in range(count):
            workflow = await client.create_workflow()
            text = f"{'high' if rng.random() < 0.5 else 'low'} {number}: " + "context " * rng.randint(20, 60)
            for _ in range(rng.randint(4, 8)):
                answer = await workflow.step(text, max_output_tokens=rng.randint(80, 200))
                total += (answer.timings.first_token or 0.0) + (answer.timings.decode or 0.0)
            await workflow.finish(OutcomeKind.SUCCEEDED)
    return total


def with_processes(curves: dict[str, tuple[float, ...]], count: int, seed: int) -> list[dict[str, Any]]:
    """The same workflows by each single pool and by both, through a runtime and emulator processes."""
    rows = []
    for name, pools in (("plain", (PLAIN,)), ("speculative", (DRAFTING,)), ("Paceline", (PLAIN, DRAFTING))):
        with ExitStack() as stack:
            urls = {pool: stack.enter_context(_engine(pool, curves)) for pool in pools}
            engines = {
                pool or "plain": {"model": "m", "url": url, "speculation": pool} for pool, url in urls.items()
            }
            settings = {
                "models": {"m": {"path": "emulated"}},
                "engines": engines,
                "speculation": {DRAFTING: {"method": "ngram", "num_speculative_tokens": AHEAD}},
            }
            served = stack.enter_context(serve("pools", settings))
            rows.append({"pools": name, "seconds": asyncio.run(run_workflows(served.target, count, seed))})
    return rows


def _engine(pool: str, curves: dict[str, tuple[float, ...]]) -> Any:
    """An emulator whose replies draft by the word that the prompt begins with."""
    times = Timing()
    flags = ["--enable-prompt-tokens-details", f"--time-scale={SCALE}"]
    if pool:
        config = {"method": "ngram", "num_speculative_tokens": AHEAD}
        flags += [f"--speculative-config={json.dumps(config)}", "--per-request-spec-decode-metrics=summary"]
        flags += [f"--step-per-draft-seconds={SPLITS * times.step}"]
    rules = [
        {"contains": word, "reply": "the rider holds a steady line " * 10, "acceptance": curves[name]}
        for word, name in (("high ", HIGH), ("low ", LOW))
    ]
    RESULTS.mkdir(parents=True, exist_ok=True)
    script = RESULTS / "pools-script.json"
    script.write_text(json.dumps(rules))
    return emulator(*flags, f"--script={script}")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pools", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workflows", type=int, default=400, help="of each scenario, in virtual time")
    parser.add_argument("--processes", type=int, default=16, help="workflows through emulator processes; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    curves = read_curves(curves_file())
    report = Report("pools")
    report.say(f"EMULATED: no model runs. Seed {options.seed}.\n")
    for key, title, scenarios in (
        ("virtual", "virtual time; targets: at most 3 % over the better pool, 5 % over hindsight", SCENARIOS),
        ("unknowable", "what it costs not to know the future", UNKNOWABLE),
    ):
        rows = [virtual(scenario, curves, options.workflows, options.seed) for scenario in scenarios]
        report.table(key, f"EMULATED, {title}; {options.workflows} workflows each", rows)
    if options.processes:
        rows = with_processes(curves, options.processes, options.seed)
        report.table("processes", f"EMULATED, {options.processes} workflows, processes, time x {SCALE}", rows)
    report.write()


if __name__ == "__main__":
    main()
