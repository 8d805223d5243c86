"""Kill the runtime at many seeded moments and check each time that the next one continues: COUNT.

Results go to build/proof-kills.jsonl, a line per kill; a run that was broken off goes on after the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from tests.e2e.conftest import Emulator
from tests.e2e.servers import LAUNCHED, MOMENTS, PACED, Crash, Server, installed

RESULTS = Path("build/proof-kills.jsonl")


def note(result: dict[str, object]) -> None:
    """Add a line to the results."""
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")


async def play(server: Server, first: int, count: int) -> None:
    """Play the kills from `first` on, each on what the ones before have left."""
    server.start()
    for seed in range(first, count):
        begun = time.monotonic()
        result = await Crash(server, MOMENTS[seed % len(MOMENTS)], seed).play()
        note(result)
        print(f"{seed + 1}/{count} {result['moment']:<13} {time.monotonic() - begun:5.1f} s", flush=True)
    server.stop()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    count = parser.parse_args().count
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.touch()
    done = len(RESULTS.read_text().splitlines())
    if done < count:
        emulator = Emulator(*PACED)
        try:
            engines = {"far": {"model": "m", "url": emulator.url}, "near": LAUNCHED}
            with tempfile.TemporaryDirectory() as folder, installed(Path(folder), {"engines": engines}) as server:
                asyncio.run(play(server, done, count))
        finally:
            emulator.kill()
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    lost, checkpointed = sum(row["lost"] for row in rows), sum(row["checkpointed"] for row in rows)
    print(
        f"{len(rows)} kills: {lost} attempts were lost, {checkpointed} of them with a checkpoint; all as promised"
    )


if __name__ == "__main__":
    main()
