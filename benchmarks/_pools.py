"""The model behind benchmarks/pools.py: workflows with known acceptance on two emulated pools, in virtual time.

Time is the emulator's (`emulator/settings.py`), acceptance is drawn by its `AcceptanceCurve`. A step's times in
both pools are drawn once, so that every way of choosing meets the same workflows.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from paceline.emulator.settings import Timing
from paceline.emulator.speculation import AcceptanceCurve
from paceline.routing.pools import Ask, PoolReason, Pools
from paceline.routing.speeds import Measured

PLAIN, DRAFTING = "", "drafting"
POOLS = (PLAIN, DRAFTING)
BLOCK = 32
Curves = Callable[[random.Random, int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its prompt's new tokens, its output, and the passes after the first token in each pool."""

    new_tokens: int
    output_tokens: int
    passes: dict[str, int]
    accepted: dict[str, int | None]


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow as it will happen, wherever its steps run."""

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """How workflows are made."""

    name: str
    draft_seconds: float
    """What each token that may be drafted adds to a pass, as a share of a plain pass."""
    tokens_ahead: int
    curves: Curves
    """The curve of each of so many steps."""
    first_prompt: tuple[int, int] = (2000, 6000)
    new_tokens: tuple[int, int] = (200, 2000)
    output_tokens: tuple[int, int] = (100, 500)
    steps: tuple[int, int] = (8, 32)

    def timing(self, base: Timing) -> Timing:
        """The emulator's times with this drafter."""
        return Timing(base.prefill_token, base.prefill_fixed, base.step, 0.0, self.draft_seconds * base.step)


def read_curves(path: Path) -> dict[str, tuple[float, ...]]:
    """Shares of checks that accept at least 1, 2, ... tokens, by `model/drafter/thinking` (options in brackets).

    The file has mean acceptance lengths for K = 1, 2, ...; their differences are the shares. Lengths are measured
    one by one, so at the end of a curve noise exceeds what a further token brings: a share is at least 0 and at
    most the one before.
    """
    lengths: dict[str, dict[int, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            options = f" ({row['draft_options']})" if row["draft_options"] else ""
            key = f"{row['model']}/{row['drafter']}/{row['thinking']}{options}"
            lengths.setdefault(key, {})[int(row["k"])] = float(row["mean_acceptance_length"])
    return {key: _shares([1.0, *(known[k] for k in sorted(known))]) for key, known in lengths.items()}


def _shares(lengths: Sequence[float]) -> tuple[float, ...]:
    shares: list[float] = []
    for before, after in pairwise(lengths):
        shares.append(min(max(0.0, after - before), shares[-1] if shares else 1.0))
    return tuple(shares)


def curves_file() -> Path:
    """acceptance_length.csv in the folder of public traces."""
    folder = os.environ.get("PACELINE_DATA")
    if not folder:
        raise SystemExit("set PACELINE_DATA to the folder that has acceptance_length.csv")
    return Path(folder) / "acceptance_length.csv"


def make_workflows(
    scenario: Scenario, curves: dict[str, tuple[float, ...]], count: int, seed: int
) -> list[Workflow]:
    """The same workflows for the same seed."""
    rng = random.Random(f"{scenario.name}/{seed}")
    return [_workflow(scenario, curves, f"{scenario.name} {number}", rng) for number in range(count)]


def _workflow(scenario: Scenario, curves: dict[str, tuple[float, ...]], name: str, rng: random.Random) -> Workflow:
    names = scenario.curves(rng, rng.randint(*scenario.steps))
    steps = []
    for number, curve in enumerate(names):
        drafter = AcceptanceCurve(curves[curve][: scenario.tokens_ahead])
        new = rng.randint(*(scenario.new_tokens if number else scenario.first_prompt))
        output = rng.randint(*scenario.output_tokens)
        passes, accepted = _verify(drafter, output, rng)
        steps.append(Step(new, output, {PLAIN: output - 1, DRAFTING: passes}, {PLAIN: None, DRAFTING: accepted}))
    return Workflow(name, tuple(steps))


def _verify(drafter: AcceptanceCurve, output: int, rng: random.Random) -> tuple[int, int]:
    """Passes after the first token, and accepted tokens."""
    left, passes, accepted = output - 1, 0, 0
    while left > 0:
        kept = drafter.draft(b"", range(left), rng)[1]
        left, passes, accepted = left - kept - 1, passes + 1, accepted + kept
    return passes, accepted


class Walk:
    """One workflow on its way through the pools: what is resident where, and the time so far."""

    def __init__(self, timing: Timing, tokens_ahead: int) -> None:
        self._timing = timing
        self._ahead = {PLAIN: 0, DRAFTING: tokens_ahead}
        self.context = 0
        self.resident = dict.fromkeys(POOLS, 0)
        self.seconds = 0.0

    def times(self, step: Step, pool: str, context: int, resident: int) -> tuple[int, float, float]:
        """Uncached tokens, seconds of prefill and seconds of decode of a step in a pool."""
        uncached = context + step.new_tokens - resident // BLOCK * BLOCK
        prefill = uncached * self._timing.prefill_token + self._timing.prefill_fixed
        return uncached, prefill, step.passes[pool] * self._timing.decode_step(1, self._ahead[pool])

    def take(self, step: Step, pool: str) -> Measured:
        """Run a step; returns what the runtime would measure."""
        uncached, prefill, decode = self.times(step, pool, self.context, self.resident[pool])
        self.context += step.new_tokens + step.output_tokens
        self.resident[pool] = self.context
        self.seconds += prefill + decode
        return Measured(pool, self.context, uncached, prefill, step.output_tokens, step.accepted[pool], decode)


def always(pool: str, workflows: Iterable[Workflow], timing: Timing, tokens_ahead: int) -> float:
    """Seconds of all workflows in one pool."""
    total = 0.0
    for workflow in workflows:
        walk = Walk(timing, tokens_ahead)
        for step in workflow.steps:
            walk.take(step, pool)
        total += walk.seconds
    return total


def hindsight(workflows: Iterable[Workflow], timing: Timing, tokens_ahead: int) -> float:
    """Seconds with the best pool for each step, known beforehand; each return pays for what is not resident.

    Dynamic programming per workflow over the pool and the step at which the other pool was left, which says what
    is resident there.
    """
    return sum(_best(workflow, Walk(timing, tokens_ahead)) for workflow in workflows)


def _best(workflow: Workflow, walk: Walk) -> float:
    states: dict[tuple[str, int], float] = {(PLAIN, 0): 0.0, (DRAFTING, 0): 0.0}
    context = 0
    for step in workflow.steps:
        after: dict[tuple[str, int], float] = {}
        for (pool, away), seconds in states.items():
            other = POOLS[pool == PLAIN]
            for target, resident, left in ((pool, context, away), (other, away, context)):
                _, prefill, decode = walk.times(step, target, context, resident)
                key, total = (target, left), seconds + prefill + decode
                after[key] = min(total, after.get(key, total))
        states = after
        context += step.new_tokens + step.output_tokens
    return min(states.values())


@dataclass(frozen=True, slots=True)
class Chosen:
    """What Paceline's choice came to."""

    seconds: float
    reasons: dict[PoolReason, int]


def paceline(
    workflows: Sequence[Workflow],
    timing: Timing,
    tokens_ahead: int,
    *,
    at_once: int = 8,
    seen: Callable[[Measured], Measured] = lambda measured: measured,
) -> Chosen:
    """Run all workflows by `routing/pools.py`, `at_once` side by side, so that nobody learns from the future."""
    pools, reasons, total = Pools(), dict.fromkeys(PoolReason, 0), 0.0
    waiting = list(reversed(workflows))
    running: list[tuple[Workflow, Walk, int]] = []
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append((waiting.pop(), Walk(timing, tokens_ahead), 0))
        goes_on = []
        for workflow, walk, number in running:
            step = workflow.steps[number]
            prompt = walk.context + step.new_tokens
            ask = Ask("m", workflow.name, prompt, walk.context, dict.fromkeys(POOLS, True))
            choice = pools.choose(ask).choice
            reasons[choice.reason] += 1
            pools.learn("m", workflow.name, choice.profile, seen(walk.take(step, choice.profile)))
            if number + 1 < len(workflow.steps):
                goes_on.append((workflow, walk, number + 1))
            else:
                pools.end("m", workflow.name)
                total += walk.seconds
        running = goes_on
    return Chosen(total, reasons)
