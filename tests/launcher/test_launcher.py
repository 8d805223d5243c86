"""Supervision, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import psutil
import pytest
from tests.launcher.conftest import PARENT, MakeEngine, OwnChildren, living, read_pids, wait_until_gone

from paceline import config
from paceline.engines.launcher import LaunchedServer, RestartPolicy, ServerState
from paceline.errors import ConfigError, EngineStartError

pytestmark = pytest.mark.slow


async def test_close_leaves_no_process(make_engine: MakeEngine, pids: Path, tmp_path: Path) -> None:
    states: list[ServerState] = []
    server = LaunchedServer(
        "one", make_engine(), None, "m", tmp_path / "logs", on_state=states.append, stop_grace_seconds=0.5
    )
    await server.start()
    await server.wait_ready()
    assert server.state.phase == "ready"
    started = read_pids(pids)
    assert len(living(started)) == 3

    await server.close()

    assert living(started) == []
    assert [state.phase for state in states] == ["starting", "ready", "stopped"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_orphan_when_the_parent_dies(
    make_engine: MakeEngine, pids: Path, tmp_path: Path, how: signal.Signals
) -> None:
    command = [sys.executable, "-c", PARENT, make_engine().model_dump_json(), "null", "m", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        assert "ready" in next(line for line in parent.stdout if line.startswith(("ready", "failed")))
        guardian = psutil.Process(parent.pid).children()
        started = [*read_pids(pids), *(process.pid for process in guardian)]
        assert len(living(started)) == 4

        parent.send_signal(how)
        parent.wait()

    assert wait_until_gone(started) == []


async def test_the_next_start_ends_what_was_left_when_parent_and_guardian_were_killed(
    make_engine: MakeEngine, pids: Path, tmp_path: Path
) -> None:
    arguments = [make_engine().model_dump_json(), "null", "m", str(tmp_path / "first")]
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout
    while not (await parent.stdout.readline()).startswith(b"ready"):
        assert parent.returncode is None
    started = read_pids(pids)
    (guardian,) = psutil.Process(parent.pid).children()
    parent.send_signal(signal.SIGSTOP)  # so that it cannot see its guardian die
    guardian.kill()
    parent.kill()
    await parent.wait()
    assert wait_until_gone(started[2:]) == []  # the kernel ended the server
    assert len(living(started)) == 2

    server = LaunchedServer("one", make_engine(), None, "m", tmp_path, stop_grace_seconds=0.5)
    await server.start()
    assert wait_until_gone(started) == []
    await server.wait_ready()
    assert len(living(read_pids(pids))) == 3
    await server.close()


async def test_no_orphan_when_the_guardian_is_killed(
    make_engine: MakeEngine, pids: Path, tmp_path: Path, own_children: OwnChildren
) -> None:
    policy = RestartPolicy(first_delay=600)
    restarting = asyncio.Event()

    def watch(state: ServerState) -> None:
        if state.phase == "restarting":
            restarting.set()

    server = LaunchedServer("one", make_engine(), None, "m", tmp_path, on_state=watch, restart=policy)
    await server.start()
    await server.wait_ready()
    started = read_pids(pids)
    (guardian,) = own_children()

    os.kill(guardian.pid, signal.SIGKILL)

    await restarting.wait()
    assert wait_until_gone(started) == []
    await server.close()


async def test_restarts_until_it_failed_too_often(make_engine: MakeEngine, tmp_path: Path) -> None:
    states: list[ServerState] = []
    policy = RestartPolicy(first_delay=0.01, max_delay=0.02, max_failures=3)
    engine = make_engine(STAND_IN_LIFE="1.5")
    server = LaunchedServer(
        "one", engine, None, "m", tmp_path, on_state=states.append, restart=policy, stop_grace_seconds=0.5
    )
    await server.start()
    await server.wait_ready()
    url = server.url
    assert server._task
    await asyncio.wait([server._task])

    phases = [state.phase for state in states]
    assert phases.count("ready") == 3
    assert phases[-3:] == ["starting", "ready", "failed"]
    assert [state.detail.split("again in ")[1] for state in states if state.phase == "restarting"] == [
        "0.01 s",
        "0.02 s",
    ]
    assert server.url == url
    with pytest.raises(EngineStartError, match="given up after 3 ends in a row"):
        await server.wait_ready()
    await server.close()
    logs = [tmp_path / name for name in ("one.log", "one.log.1", "one.log.2", "one.log.3")]
    assert [path.exists() for path in logs] == [True, True, True, False]


async def test_a_first_start_that_fails_names_the_log_and_the_error(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine(STAND_IN_ERROR="ValueError: the weights are odd")
    server = LaunchedServer("one", engine, None, "m", tmp_path)
    await server.start()
    with pytest.raises(EngineStartError) as caught:
        await server.wait_ready()
    assert "ValueError: the weights are odd" in caught.value.message
    assert str(tmp_path / "one.log") in caught.value.message
    assert server.state.phase == "failed"
    await server.close()


async def test_start_timeout(make_engine: MakeEngine, tmp_path: Path, own_children: OwnChildren) -> None:
    states: list[ServerState] = []
    engine = make_engine(start_timeout_seconds=2, STAND_IN_DEAF="1")
    server = LaunchedServer("one", engine, None, "m", tmp_path, on_state=states.append)
    await server.start()
    with pytest.raises(
        EngineStartError, match=r"start_timeout_seconds = 2; last: Starting to load model stand-in"
    ):
        await server.wait_ready()
    assert ("loading", "loading weights") in [(state.phase, state.detail) for state in states]
    assert own_children() == []
    await server.close()


@pytest.mark.parametrize("steps", range(12))
async def test_close_at_any_moment_of_a_start_ends_it(
    make_engine: MakeEngine, tmp_path: Path, steps: int, own_children: OwnChildren
) -> None:
    server = LaunchedServer("one", make_engine(STAND_IN_DEAF="1"), None, "m", tmp_path, stop_grace_seconds=0.5)
    await server.start()
    for _ in range(steps):
        await asyncio.sleep(0)
    await server.close()
    assert server.state.phase == "stopped"
    assert own_children() == []


async def test_close_wakes_whoever_waits(make_engine: MakeEngine, tmp_path: Path) -> None:
    server = LaunchedServer("one", make_engine(STAND_IN_DEAF="1"), None, "m", tmp_path)
    await server.start()
    waiting = asyncio.create_task(server.wait_ready())
    await asyncio.sleep(0)
    await server.close()
    with pytest.raises(EngineStartError, match="closed"):
        await waiting


async def test_an_emulated_engine_starts_and_stops(tmp_path: Path, own_children: OwnChildren) -> None:
    engine = config.Engine(model="small", platform="emulated", block_size=16, max_model_len=4096)
    speculation = config.Speculation(method="ngram")
    server = LaunchedServer("one", engine, speculation, "emulated", tmp_path)
    await server.start()
    try:
        await server.wait_ready()
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/v1/models") as response:
            (model,) = (await response.json())["data"]
    finally:
        await server.close()
    assert (model["id"], model["max_model_len"]) == ("small", 4096)
    assert own_children() == []


async def test_neuron_and_missing_python_are_refused_before_anything_starts(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine()
    plugin = config.Engine.model_validate(
        {
            "model": "m",
            "platform": "neuron",
            "max_model_len": 8192,
            "neuron": {"plugin": "0.29.0.1.2.0", "tensor_parallel_size": 8},
        }
    )
    with pytest.raises(EngineStartError, match="set `python` to the Python"):
        await LaunchedServer("one", plugin, None, "m", tmp_path).start()
    drafting = config.Speculation(method="ngram")
    runnable = plugin.model_copy(update={"python": engine.python or sys.executable})
    with pytest.raises(ConfigError, match="trained-heads-only"):
        await LaunchedServer("one", runnable, drafting, "m", tmp_path).start()
    missing = LaunchedServer("one", engine.model_copy(update={"python": "/nowhere/python"}), None, "m", tmp_path)
    with pytest.raises(EngineStartError, match="/nowhere/python does not exist"):
        await missing.start()
