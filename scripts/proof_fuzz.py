"""Play many random cases of every fuzz target: COUNT of them, on every free core.

Results go to build/proof-fuzz.json after each batch. A run that was broken off goes on with the missing ones;
without that file everything is played anew. Batches are seeded by their number: one that fails is played again by
`--again TARGET SEED CASES`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import structlog
from tests.fuzz.target import Check, play
from tests.fuzz.targets import TARGETS

RESULTS = Path("build/proof-fuzz.json")
ROUND = 5_000
"""Cases of one round: one batch of each target. Rounds are whole."""
BY_NAME = {target.name: target for target in TARGETS}


@dataclass(frozen=True, slots=True)
class Batch:
    """Cases of one target with one seed."""

    target: str
    seed: int
    cases: int


@dataclass
class Results:
    """What was played so far."""

    cases: dict[str, int] = field(default_factory=dict)
    """Played, by target."""
    seeds: dict[str, list[int]] = field(default_factory=dict)
    """Of the batches that are done, by target."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    """Over all runs, summed."""
    revisions: list[str] = field(default_factory=list)
    """The product's, of each run."""
    machine: str = ""

    @property
    def played(self) -> int:
        """Cases of all targets."""
        return sum(self.cases.values())

    def note(self, batch: Batch, cases: int, failure: str) -> None:
        """Take the result of a batch."""
        self.cases[batch.target] = self.cases.get(batch.target, 0) + cases
        self.seeds.setdefault(batch.target, []).append(batch.seed)
        if failure:
            self.failures.append({**asdict(batch), "failure": failure})

    def write(self) -> None:
        """Write the file, whole or not at all."""
        fresh = RESULTS.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=1))
        fresh.replace(RESULTS)


class Player:
    """Plays batches in a process of its own; what a target needs is opened once."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.close = self._stack.close
        self._checks: dict[str, Check] = {}

    def play(self, batch: Batch) -> tuple[int, str]:
        """How many cases were played, and what failed."""
        target = BY_NAME[batch.target]
        if target.name not in self._checks:
            self._checks[target.name] = self._stack.enter_context(target.check())
        try:
            return play(target, self._checks[target.name], batch.cases, batch.seed), ""
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
            return 0, "".join(traceback.format_exception(error))[-6000:]


_players: list[Player] = []


def play_here(batch: Batch) -> tuple[int, str]:
    """Play a batch in a worker."""
    if not _players:
        faulthandler.enable()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        _players.append(Player())
        Finalize(None, _players[0].close, exitpriority=1)  # atexit is too late: it waits for the server's thread
    return _players[0].play(batch)


def batches(count: int) -> Iterator[Batch]:
    """All batches of a proof with so many cases. The numbers 0 and 1 are the seeds of the tests."""
    for number in range(-(-count // ROUND)):
        for target in TARGETS:
            yield Batch(target.name, 2 + number, ROUND * target.per_10_000 // 10_000)


def prove(results: Results, count: int, seconds: float, workers: int) -> None:
    """Play what is missing, for so long at most."""
    missing = (batch for batch in batches(count) if batch.seed not in results.seeds.get(batch.target, []))
    begun, before = time.monotonic(), results.seconds
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        running: dict[Future[tuple[int, str]], Batch] = {}
        while True:
            if time.monotonic() - begun < seconds:
                for batch in islice(missing, workers - len(running)):
                    running[pool.submit(play_here, batch)] = batch
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                batch = running.pop(done)
                try:
                    results.note(batch, *done.result())
                except BrokenProcessPool:
                    results.note(batch, 0, "the process died")
                    return
                finally:
                    results.seconds = round(before + time.monotonic() - begun, 1)
                    results.write()
                failed = f", {len(results.failures)} FAILED" if results.failures else ""
                print(f"{results.played}/{count} {batch.target} {batch.seed}{failed}", flush=True)


def described() -> tuple[str, str]:
    """The revision of the product, and the machine."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    revision = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return (
        revision or "unknown",
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after so long; a next run goes on"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--again", nargs=3, metavar=("TARGET", "SEED", "CASES"), help="play one batch only")
    given = parser.parse_args()
    if given.again:
        name, number, cases = given.again
        player = Player()
        played, failure = player.play(Batch(name, int(number), int(cases)))
        player.close()
        sys.exit(failure or print(f"{played} cases, nothing failed"))
    RESULTS.parent.mkdir(exist_ok=True)
    results = Results(**json.loads(RESULTS.read_text())) if RESULTS.exists() else Results()
    revision, results.machine = described()
    results.revisions = list(dict.fromkeys([*results.revisions, revision]))
    prove(results, given.count, given.seconds, given.workers)
    print(f"{results.played} cases in {results.seconds:.0f} s, {len(results.failures)} batches failed")
    if results.failures:
        print(json.dumps(results.failures[0], indent=1))
        sys.exit(1)


if __name__ == "__main__":
    main()
