"""Limits of the sandbox, shown with real processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paceline_agents.repair.sandbox import Limits, RunResult, run_limited

pytestmark = pytest.mark.slow

MIB = 1 << 20


async def run_python(code: str, folder: Path, limits: Limits) -> RunResult:
    return await run_limited([sys.executable, "-c", code], cwd=folder, limits=limits)


def alive(pid: int) -> bool:
    """The process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_output_and_exit_code_come_back(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd()); print('bad', file=sys.stderr); sys.exit(3)"
    run = await run_python(code, tmp_path, Limits())

    assert (run.end, run.exit_code, run.passed) == ("exit", 3, False)
    assert sorted(run.output.split()) == sorted([str(tmp_path), "bad"])


async def test_success_is_exit_code_zero(tmp_path: Path) -> None:
    assert (await run_python("pass", tmp_path, Limits())).passed


async def test_a_program_that_does_not_exist_fails(tmp_path: Path) -> None:
    run = await run_limited(["no-such-program"], cwd=tmp_path, limits=Limits())

    assert not run.passed
    assert "no-such-program" in run.output or "No such file" in run.output


async def test_an_endless_loop_is_killed(tmp_path: Path) -> None:
    run = await run_python("while True: pass", tmp_path, Limits(seconds=0.5))

    assert (run.end, run.exit_code) == ("timeout", -9)


async def test_a_memory_hog_gets_a_memory_error(tmp_path: Path) -> None:
    run = await run_python("x = bytearray(900 << 20)", tmp_path, Limits(memory_bytes=300 * MIB))

    assert run.exit_code == 1
    assert "MemoryError" in run.output


async def test_endless_output_is_cut_and_killed(tmp_path: Path) -> None:
    run = await run_python("while True: print('x' * 1000)", tmp_path, Limits(output_bytes=50_000))

    assert run.end == "output_limit"
    assert len(run.output) == 50_000


async def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    code = "open('f', 'wb').write(b'x' * 3_000_000)"
    run = await run_python(code, tmp_path, Limits(file_bytes=MIB))

    assert not run.passed
    assert (tmp_path / "f").stat().st_size <= MIB


FORKS = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
for number in range(10):
    child = subprocess.Popen(sleep, start_new_session=number % 2 == 0)
    print(child.pid, flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(
    ("end", "seconds"), [("timeout", 3.0), ("exit", 30.0)], ids=["killed in time", "left in the background"]
)
async def test_the_whole_tree_is_killed(tmp_path: Path, end: str, seconds: float) -> None:
    code = FORKS + ("time.sleep(600)" if end == "timeout" else "time.sleep(0.2)")
    run = await run_python(code, tmp_path, Limits(seconds=seconds))

    pids = [int(word) for word in run.output.split()]
    assert run.end == end
    assert len(pids) == 11
    assert [pid for pid in pids if alive(pid)] == []


async def test_it_has_no_standard_input_and_the_given_environment(tmp_path: Path) -> None:
    code = "import os, sys; print(repr(sys.stdin.read()), os.environ.get('HOME'), os.environ['GREETING'])"
    run = await run_limited(
        [sys.executable, "-c", code], cwd=tmp_path, limits=Limits(), env={"GREETING": "hi", "PATH": os.defpath}
    )

    assert run.output.split() == ["''", "None", "hi"]


async def test_the_api_key_does_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_API_KEY", "secret")
    monkeypatch.setenv("OTHER", "seen")
    code = "import os; print(os.environ.get('PACELINE_API_KEY'), os.environ['OTHER'])"

    assert (await run_python(code, tmp_path, Limits())).output.split() == ["None", "seen"]
