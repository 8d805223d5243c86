"""The guardian alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.launcher.conftest import STAND_IN, living, read_pids, wait_until_gone

from paceline.engines import guardian

Guard = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def guard(pids: Path) -> Guard:
    """Starts a guardian with a grace of 0.3 s over a command."""

    def start(*command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, "0.3", *command],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"STAND_IN_PIDS": str(pids)},
        )

    return start


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 128 + 9), ("kill -15 $$", 128 + 15)]
)
def test_the_exit_code_is_the_engines(guard: Guard, script: str, code: int) -> None:
    with guard("/bin/sh", "-c", script) as process:
        assert process.wait() == code


def test_a_command_that_does_not_exist(guard: Guard) -> None:
    with guard("/no/such/engine") as process:
        _, errors = process.communicate()
    assert process.returncode == 127
    assert errors == b"/no/such/engine: No such file or directory\n"


def test_the_engines_exit_ends_what_it_left_behind(guard: Guard, tmp_path: Path) -> None:
    left = tmp_path / "left"
    with guard("/bin/sh", "-c", f"trap '' TERM; setsid sleep 600 & echo $! > {left}; exit 5") as process:
        assert process.wait() == 5
    assert wait_until_gone([int(left.read_text())], 0) == []


@pytest.mark.parametrize("how", ["end of input", signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_every_order_to_stop_ends_the_whole_tree(guard: Guard, pids: Path, how: str | signal.Signals) -> None:
    with guard(sys.executable, "-S", str(STAND_IN), "--port", "0") as process:
        while not (pids.exists() and len(pids.read_text().split()) == 3):
            assert process.poll() is None
            time.sleep(0.02)
        started = read_pids(pids)
        assert len(living(started)) == 3
        below = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert sorted(living(below)) == sorted(started)  # the one that left its parent and session, too
        if isinstance(how, signal.Signals):
            process.send_signal(how)
        else:
            assert process.stdin
            process.stdin.close()
        assert process.wait() == 128 + signal.SIGTERM
        assert living(started) == []
