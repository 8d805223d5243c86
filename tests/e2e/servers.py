"""`paceline serve` as a process of its own, and what a crash must leave right."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import create_engine, text

from paceline_agents import types as t
from paceline_agents.aio import AsyncClient, AsyncWorkflowHandle

PACELINE = str(Path(sys.executable).with_name("paceline"))
PRICES = {"input": 0.5, "cached_input": 0.05, "output": 2.0}
PACED = [
    "--step-seconds=0.01",
    "--step-per-request-seconds=0",
    "--prefill-fixed-seconds=0.05",
    "--reply-tokens=400",
]
"""Flags of an emulated engine at about 100 tokens per second."""
LAUNCHED = {"model": "n", "platform": "emulated", "extra_args": PACED}
FAST = ("--time-scale=0", "--reply-tokens=16")
"""Flags of one that takes no time."""
PATIENCE = 30.0
"""How long anything may take on a busy machine, in seconds."""


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def to_toml(values: dict[str, Any], section: str = "") -> str:
    """Settings as TOML."""
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if name not in tables]
    text_ = "\n".join([f"[{section}]" if section else "", *lines, ""])
    return text_ + "".join(to_toml(value, f"{section}.{name}".strip(".")) for name, value in tables.items())


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait for what another process does."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


@dataclass
class Server:
    """One installation: configuration, ledger and log in a folder, and at most one process that serves it."""

    folder: Path
    settings: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    _starts: int = 0

    def __post_init__(self) -> None:
        """Write the configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = self.folder / "paceline.toml"
        self.ledger = self.folder / "ledger.db"
        self.log = self.folder / "serve.log"
        self.facts: dict[str, Any] = {}
        server = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "shutdown_grace_seconds": 0.3}
        server.update(self.settings.get("server", {}))
        ledger = {"url": f"sqlite:///{self.ledger}", **self.settings.get("ledger", {})}
        names = {engine["model"] for engine in self.settings.get("engines", {}).values()} or {"m"}
        rest = {"models": {name: {"path": "emulated"} for name in names}, "prices": dict.fromkeys(names, PRICES)}
        self.config.write_text(to_toml({**rest, **self.settings, "server": server, "ledger": ledger}))

    @property
    def environment(self) -> dict[str, str]:
        """No settings of the machine; data beside the configuration."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
        return own | {"XDG_DATA_HOME": str(self.folder / "data"), "XDG_CACHE_HOME": str(self.folder / "cache")}

    @property
    def target(self) -> str:
        """Address of the gRPC server."""
        return str(self.facts["address"])

    def start(self) -> Server:
        """Start it and wait until it accepts calls."""
        ready = self.folder / f"ready-{self._starts}.json"
        self._starts += 1
        with self.log.open("ab") as log:
            command = [PACELINE, "serve", "--config", str(self.config), "--ready-file", str(ready)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        until(lambda: ready.exists() or (self.process and self.process.poll() is not None))
        assert ready.exists(), self.log.read_text()
        self.facts = json.loads(ready.read_text())
        return self

    def kill(self) -> None:
        """As the machine would: no time for anything."""
        if self.process:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; returns the exit code."""
        assert self.process
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def run(
        self, *arguments: str, preexec_fn: Callable[[], None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run another command of Paceline on the same configuration."""
        command = [PACELINE, *arguments, "--config", str(self.config)]
        return subprocess.run(
            command,
            env=self.environment,
            preexec_fn=preexec_fn,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def sql(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Read the ledger behind the runtime's back."""
        engine = create_engine(f"sqlite:///{self.ledger}")
        try:
            with engine.connect() as connection:
                return [dict(row._mapping) for row in connection.execute(text(query), values)]
        finally:
            engine.dispose()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in map(json.loads, lines) if line["event"] == name]

    def processes(self) -> list[psutil.Process]:
        """What is left of it and of its engines: whatever has its data folder in its environment."""
        return [one for one in psutil.process_iter() if _belongs(one, self.environment["XDG_DATA_HOME"])]


def _belongs(process: psutil.Process, folder: str) -> bool:
    try:
        return process.environ().get("XDG_DATA_HOME") == folder and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@contextmanager
def installed(folder: Path, settings: dict[str, Any]) -> Iterator[Server]:
    """A server that is gone afterwards, whatever happened."""
    server = Server(folder, settings)
    try:
        yield server
    finally:
        server.kill()
        until(lambda: not server.processes())


MOMENTS = ("asked", "queued", "prefill", "first", "middle", "checkpointed", "last", "finished")


@dataclass
class Crash:
    """One kill at one moment of two running steps, the restart, and what then must hold."""

    server: Server
    moment: str
    seed: int

    async def play(self) -> dict[str, Any]:
        """Crash a running server and start it again. Returns what happened; raises AssertionError."""
        rng = random.Random(self.seed)
        name = f"{self.moment}-{self.seed}"
        async with AsyncClient(self.server.target) as client:
            idle = await client.create_workflow(model="m", workflow_id=f"idle-{name}")
            before = await idle.step(f"a turn before, {name}", max_output_tokens=8)
            running = [
                await client.create_workflow(model=model, workflow_id=f"run-{model}-{name}")
                for model in ("m", "n")
            ]
            for workflow in running:
                await workflow.step(f"a turn before, {name}", max_output_tokens=8)
            await self._kill_when_it_is_time(running, name, rng)
        lost = self._check_restart()
        async with AsyncClient(self.server.target) as client:
            for workflow in running:
                await self._check_again(client, workflow.workflow_id, name)
            again = await (await client.get_workflow(idle.workflow_id)).step("a turn after", max_output_tokens=8)
        assert again.reuse.carried_tokens == before.reuse.prompt_tokens + (before.usage.output or 0)
        assert (again.usage.cached_prompt or 0) >= (again.reuse.carried_tokens - 1) // 32 * 32
        check_books(self.server.sql)
        return {"moment": self.moment, "seed": self.seed, **lost}

    async def _kill_when_it_is_time(
        self, running: list[AsyncWorkflowHandle], name: str, rng: random.Random
    ) -> None:
        streams = [self._stream(workflow, name) for workflow in running]
        reached = [asyncio.create_task(_reach(stream, self.moment, rng.randrange(1, 30))) for stream in streams]
        if self.moment != "asked":
            await asyncio.wait(reached, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(rng.random() * 0.02)
        self.server.kill()
        for task in reached:
            task.cancel()
        await asyncio.gather(*reached, return_exceptions=True)
        for stream in streams:
            await stream.close()

    def _stream(self, workflow: AsyncWorkflowHandle, name: str) -> Any:
        tokens = 250 if self.moment == "checkpointed" else 40
        request_id = f"{workflow.info.model}-{name}"
        return workflow.step("a turn that is cut", request_id=request_id, max_output_tokens=tokens)

    def _check_restart(self) -> dict[str, int]:
        until(lambda: not self.server.processes())
        before = self.server.sql("select * from attempts where state = 'running'")
        self.server.start()
        assert self.server.sql("select * from attempts where state = 'running'") == []
        assert self.server.sql("select * from steps where state in ('running', 'queued')") == []
        for row in before:
            (now,) = self.server.sql("select * from attempts where attempt_id = :one", one=row["attempt_id"])
            assert (now["state"], now["error_reason"]) == ("failed", "RUNTIME_LOST")
            known = ("output_tokens", "uncached_prompt_tokens", "list_nanos", "output_source")
            assert [now[name] for name in known] == [row[name] for name in known]
            assert now["output_source"] == ("checkpoint" if row["checkpointed_at"] else None)
        return {"lost": len(before), "checkpointed": sum(row["checkpointed_at"] is not None for row in before)}

    async def _check_again(self, client: AsyncClient, workflow_id: str, name: str) -> None:
        workflow = await client.get_workflow(workflow_id)
        stream = self._stream(workflow, name)
        answer = await stream.result()
        rows = self.server.sql(
            "select number, state, error_reason from attempts where step_id = :step order by number",
            step=answer.step_id,
        )
        assert rows[-1]["state"] == "finished"
        assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
        assert all(row["error_reason"] == "RUNTIME_LOST" for row in rows[:-1])
        after = await workflow.step("a turn after", max_output_tokens=8)
        assert after.reuse.carried_tokens == answer.reuse.prompt_tokens + (answer.usage.output or 0)
        kept = {"unclosed_turn"}  # the answer before was cut by its limit
        if workflow.info.model == "n":  # that engine died with the runtime
            kept.add("evicted")
        assert after.reuse.break_reason in kept


def check_books(sql: Callable[..., list[dict[str, Any]]]) -> None:
    """Nothing is open or reserved, and what was spent is what the attempts cost."""
    assert sql("select * from attempts where state = 'running'") == []
    assert sql("select * from steps where state in ('running', 'queued')") == []
    assert sql("select * from workflows where reserved_list_nanos <> 0 or reserved_tokens <> 0") == []
    wrong = sql(
        "select workflow_id, spent_list_nanos, (select coalesce(sum(list_nanos), 0) from attempts a where "
        "a.tenant = w.tenant and a.workflow_id = w.workflow_id) as billed from workflows w "
        "where spent_list_nanos <> billed"
    )
    assert wrong == []


def check_idle(paceline: Any) -> None:
    """Nothing runs, waits or is owed in a runtime of this process."""
    replicas = paceline.runtime.replicas
    assert [one.load.running for one in replicas.all()] == [0] * len(replicas.all())
    assert replicas.queued() == 0
    check_books(paceline.sql)


async def _reach(stream: Any, moment: str, pieces: int) -> None:
    """Read a step until a moment of it."""
    heard = 0
    async for event in stream:
        match event:
            case t.Started() if moment == "queued":
                return
            case t.Progress(phase="prefill") if moment == "prefill":
                return
            case t.TextDelta():
                heard += 1
                wanted = {"first": 1, "middle": pieces, "last": 35, "checkpointed": 120}.get(moment)
                if wanted and heard >= wanted:
                    return
