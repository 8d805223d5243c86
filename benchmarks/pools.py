"""EMULATED: is the choice between a speculative and a plain pool as good as the better pool, and as hindsight?

    PACELINE_DATA=... python -m benchmarks.pools
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks._pools import (
    DRAFTING,
    PLAIN,
    Scenario,
    always,
    curves_file,
    hindsight,
    make_workflows,
    paceline,
    read_curves,
)
from paceline.emulator.settings import Timing

LOW, MIDDLE, HIGH = "deepseek-v4-pro/MTP/on", "minimax-m3/EAGLE3/on", "qwen3.5-397b-a17b-nvfp4/MTP/on"
ALL = (LOW, "deepseek-v4-pro/MTP/off", "kimi-k2.5-nvfp4/EAGLE3/on", "kimi-k2.5-nvfp4/EAGLE3/off", MIDDLE, HIGH)


def any_of(names: Sequence[str]):
    def curves(rng: random.Random, steps: int) -> list[str]:
        return [rng.choice(names)] * steps

    return curves


def changing(first: str, then: str, earliest: int, latest: int):
    def curves(rng: random.Random, steps: int) -> list[str]:
        at = rng.randint(earliest, latest)
        return [first] * min(at, steps) + [then] * max(0, steps - at)

    return curves


def either(*ways):
    def curves(rng: random.Random, steps: int) -> list[str]:
        return rng.choice(ways)(rng, steps)

    return curves


LONG = {"first_prompt": (60_000, 120_000), "new_tokens": (500, 4000), "steps": (6, 14)}
SCENARIOS = (
    Scenario("all profit", 0.1, 7, any_of(ALL)),
    Scenario("none profits", 0.7, 7, any_of(ALL)),
    Scenario("mixed", 0.36, 7, any_of((LOW, HIGH))),
    Scenario("mixed, all curves", 0.36, 7, any_of(ALL)),
    Scenario("thinking off", 0.25, 7, changing(LOW, "deepseek-v4-pro/MTP/off", 3, 12)),
    Scenario("plan, then edits", 0.36, 7, changing(LOW, HIGH, 3, 8)),
    Scenario("edits, then talk", 0.36, 7, changing(HIGH, LOW, 3, 8)),
    Scenario("either change", 0.36, 7, either(changing(HIGH, LOW, 3, 8), changing(LOW, HIGH, 3, 8))),
    Scenario("plan 3, then edits", 0.36, 7, changing(LOW, HIGH, 2, 4)),
    Scenario("grown contexts", 0.36, 7, either(changing(HIGH, LOW, 6, 9), changing(LOW, HIGH, 6, 9)), new_tokens=(6000, 16000), steps=(8, 14)),
    Scenario("grown contexts, high-low", 0.36, 7, changing(HIGH, LOW, 6, 9), new_tokens=(6000, 16000), steps=(8, 14)),
    Scenario("grown contexts, low-high", 0.36, 7, changing(LOW, HIGH, 6, 9), new_tokens=(6000, 16000), steps=(8, 14)),
    Scenario("long contexts", 0.36, 7, either(changing(HIGH, LOW, 3, 6), changing(LOW, HIGH, 3, 6)), **LONG),
    Scenario("long contexts, mixed", 0.36, 7, any_of((LOW, HIGH)), **LONG),
)


def main() -> None:
    curves = read_curves(curves_file())
    for scenario in SCENARIOS:
        timing = scenario.timing(Timing())
        workflows = make_workflows(scenario, curves, 400, 1)
        k = scenario.tokens_ahead
        plain, spec = always(PLAIN, workflows, timing, k), always(DRAFTING, workflows, timing, k)
        chosen = paceline(workflows, timing, k)
        best = hindsight(workflows, timing, k)
        print(
            f"{scenario.name:22} plain {plain:9.0f} spec {spec:9.0f} paceline {chosen.seconds:9.0f} best {best:9.0f} "
            f"vs better {chosen.seconds / min(plain, spec) - 1:+.3f} vs hindsight {chosen.seconds / best - 1:+.3f} ",
            {r.value: n for r, n in chosen.reasons.items() if n},
        )


if __name__ == "__main__":
    main()
