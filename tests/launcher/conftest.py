"""A stand-in for an engine venv, and helpers that watch processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from paceline import config

STAND_IN = Path(__file__).with_name("stand_in.py")

PARENT = """
import asyncio, sys
from pathlib import Path
from pydantic import TypeAdapter
from paceline import config
from paceline.engines.launcher import LaunchedServer

async def main():
    engine = config.Engine.model_validate_json(sys.argv[1])
    speculation = TypeAdapter(config.Speculation | None).validate_json(sys.argv[2])
    server = LaunchedServer(
        "one", engine, speculation, sys.argv[3], Path(sys.argv[4]), stop_grace_seconds=2,
        on_state=lambda state: print(f"{state.phase}: {state.detail}", flush=True),
    )
    await server.start()
    await server.wait_ready()
    await asyncio.sleep(600)

asyncio.run(main())
"""
"""A program that starts an engine, prints its states and waits: ENGINE SPECULATION MODEL LOG_DIR."""

MakeEngine = Callable[..., config.Engine]


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """The file with the process ids of the stand-in."""
    return tmp_path / "pids"


@pytest.fixture
def make_engine(tmp_path: Path, pids: Path) -> MakeEngine:
    """Makes the configuration of an engine whose Python runs the stand-in whatever it is asked to run."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S {STAND_IN} "$@"\n')
    python.chmod(0o755)

    def make(start_timeout_seconds: float = 60, **variables: str) -> config.Engine:
        return config.Engine(
            model="stand-in",
            platform="cuda",
            python=str(python),
            env={"STAND_IN_PIDS": str(pids), **variables},
            start_timeout_seconds=start_timeout_seconds,
        )

    return make


def read_pids(pids: Path) -> list[int]:
    """The three processes of the stand-in: worker, resisting grandchild, server."""
    found = [int(line) for line in pids.read_text().split()]
    assert len(found) == 3
    return found


def living(processes: list[int]) -> list[int]:
    """Those that run, zombies not counted."""
    return [pid for pid in processes if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(processes: list[int], seconds: float = 30) -> list[int]:
    """Wait for the end of processes that are nobody's children here; returns those that stay."""
    deadline = time.monotonic() + seconds
    while living(processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    return living(processes)


OwnChildren = Callable[[], list[psutil.Process]]


@pytest.fixture
def own_children() -> OwnChildren:
    """Lists the child processes of this test: those that other tests keep, such as a real engine, do not count."""
    before = psutil.Process().children()
    return lambda: [child for child in psutil.Process().children() if child not in before]
