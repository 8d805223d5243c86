"""Starts and supervises one engine server, so that it is there exactly while Paceline is."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import aiohttp
import structlog

from paceline import config, platforms
from paceline.engines import guardian, install, orphans, progress
from paceline.errors import ConfigError, EngineStartError, ModelError
from paceline.speculation import checks

Phase = progress.Phase | Literal["starting", "ready", "restarting", "failed", "stopped"]

POLL_SECONDS = 0.3
"""How often a starting server is asked for its health; vLLM sends no event when it is ready."""
OLD_LOGS = 4
SUFFIX_PACKAGE = "arctic_inference"
NEURON_TAG = "NEURON_PROCESS_TAG"
"""By this variable neuron-monitor tells whose process it is; it means nothing elsewhere."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServerState:
    """Where a launched server is."""

    phase: Phase
    detail: str
    """Progress or reason, for people."""
    seconds: float
    """How long the phase has lasted."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a server that ended is started again. All times in seconds."""

    first_delay: float = 1.0
    max_delay: float = 60.0
    healthy_after: float = 300.0
    """A server that was ready for so long starts with a clean record."""
    max_failures: int = 5
    """Ends in a row, each before `healthy_after`, that make the server `failed`."""


class LaunchedServer:
    """One server from `[engines.NAME]` in its own venv, under a guardian process.

    A server that never became ready is not started again: what stops a first start (a wrong flag, a missing file,
    too little memory) does not heal, and somebody is waiting. One that was ready is restarted with back-off.
    """

    def __init__(
        self,
        name: str,
        engine: config.Engine,
        speculation: config.Speculation | None,
        model_path: str,
        log_dir: Path,
        *,
        on_state: Callable[[ServerState], None] | None = None,
        restart: RestartPolicy | None = None,
        stop_grace_seconds: float = 10.0,
    ) -> None:
        self.name = name
        self.log = log_dir / f"{name}.log"
        self._engine = engine
        self._speculation = speculation
        self._model_path = model_path
        self.on_state = on_state
        """Called at each change of the state."""
        self._restart = restart or RestartPolicy()
        self._stop_grace_seconds = stop_grace_seconds
        self._port = free_port()
        self._was_ready = False
        self._settled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._phase: Phase = "stopped"
        self._detail = "not started"
        self._since = time.monotonic()

    @property
    def url(self) -> str:
        """Base URL. A restart keeps it unless something else took the port meanwhile."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def state(self) -> ServerState:
        """The state now."""
        return ServerState(self._phase, self._detail, time.monotonic() - self._since)

    async def start(self) -> None:
        """Start the server and its supervision; does not wait until it is ready.

        What a Paceline left behind that was killed together with its guardians is ended first.
        Raises `ConfigError` for an engine that cannot be launched or a drafter that does not fit, as
        `paceline spec check` says, `EngineStartError` without a venv for it.
        """
        self._plan()
        await self._check_speculation()
        await asyncio.to_thread(orphans.kill_ownerless)
        self._set("starting", "starting the process")
        self._task = asyncio.create_task(self._supervise(), name=f"engine {self.name}")

    async def wait_ready(self) -> None:
        """Return once the server answers its health check.

        Raises `EngineStartError`, naming the log and its most telling line, when it failed or was closed.
        """
        await self._settled.wait()
        if self._task and self._task.done() and not self._task.cancelled():
            self._task.result()
        if self._phase != "ready":
            raise EngineStartError(f"engine {self.name}: {self._detail}", engine=self.name, log=self.log)

    async def close(self) -> None:
        """Stop the server and everything that it started."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._set("stopped", "closed")

    def _set(self, phase: Phase, detail: str) -> None:
        if (phase, detail) == (self._phase, self._detail):
            return
        if phase != self._phase:
            self._since = time.monotonic()
        self._phase, self._detail = phase, detail
        if phase in ("ready", "failed", "stopped"):
            self._settled.set()
        else:
            self._settled.clear()
        if self.on_state:
            self.on_state(self.state)

    async def _supervise(self) -> None:
        try:
            await self._keep_running()
        except EngineStartError as error:
            self._set("failed", error.message)
        except OSError as error:
            self._set("failed", f"{error.filename or 'the process'}: {error.strerror}")
        except asyncio.CancelledError:
            self._set("stopped", "closed")
            raise
        finally:
            self._settled.set()

    async def _keep_running(self) -> None:
        failures = 0
        while True:
            healthy_seconds = await self._run_once()
            reason = f"ended: {progress.cause(self.log)} (log: {self.log})"
            failures = 1 if healthy_seconds >= self._restart.healthy_after else failures + 1
            if not self._was_ready:
                raise EngineStartError(reason)
            if failures >= self._restart.max_failures:
                raise EngineStartError(f"{reason}; given up after {failures} ends in a row")
            delay = min(self._restart.max_delay, self._restart.first_delay * 2 ** (failures - 1))
            self._set("restarting", f"{reason}; starting again in {delay:g} s")
            await asyncio.sleep(delay)
            self._set("starting", "starting the process again")

    async def _run_once(self) -> float:
        """Run the server until it ends; returns for how long it was ready, in seconds."""
        if not port_is_free(self._port):
            self._port = free_port()
        async with self._process() as process:
            if not await self._becomes_ready(process):
                return 0.0
            self._was_ready = True
            self._set("ready", self.url)
            ready_at = time.monotonic()
            await process.wait()
            return time.monotonic() - ready_at

    async def _becomes_ready(self, process: asyncio.subprocess.Process) -> bool:
        log = progress.LogReader(self.log)
        seconds = self._engine.start_timeout_seconds
        try:
            async with asyncio.timeout(seconds), aiohttp.ClientSession() as session:
                while process.returncode is None:
                    self._show_progress(log)
                    if await self._healthy(session):
                        return True
                    with suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), POLL_SECONDS)
        except TimeoutError:
            raise EngineStartError(
                f"not ready after start_timeout_seconds = {seconds:g}; last: {progress.cause(self.log)} "
                f"(log: {self.log})"
            ) from None
        return False

    def _show_progress(self, log: progress.LogReader) -> None:
        for line in log.new_lines():
            if step := progress.step(line):
                self._set(*step)

    async def _healthy(self, session: aiohttp.ClientSession) -> bool:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(total=2)) as response:
                return response.status == 200
        return False

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """The running guardian; on leaving, nothing of the server is left.

        The pipe that tells it to stop is our own: asyncio's hangs when it is cancelled while it starts a process.
        """
        plan, tag = self._plan(), orphans.new_tag()
        read_end, write_end = os.pipe()
        process: asyncio.subprocess.Process | None = None
        try:
            with open_log(self.log) as log:
                process = await asyncio.create_subprocess_exec(
                    *[sys.executable, "-I", "-S", guardian.__file__, str(self._stop_grace_seconds), *plan.command],
                    stdin=read_end,
                    stdout=log,
                    stderr=log,
                    env=environment(plan, self._engine) | {orphans.TAG: tag, NEURON_TAG: self.name},
                    start_new_session=True,
                )
            yield process
        finally:
            os.close(read_end)
            os.close(write_end)
            if process is None or await self._ended(process) < 0:
                await asyncio.to_thread(orphans.kill_tagged, tag)

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        """Wait for the end of a guardian that was told to stop; returns its exit code."""
        try:
            async with asyncio.timeout(self._stop_grace_seconds + guardian.KILL_SECONDS + 5):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()

    async def _check_speculation(self) -> None:
        """Refuse what does not fit. Models that are not on this machine are left to the engine."""
        if self._speculation and self._speculation.method == "suffix":
            await asyncio.to_thread(self._require_suffix_package)
        arguments = (self._engine, self._speculation, self._model_path)
        try:
            warnings = await asyncio.to_thread(checks.check_engine, *arguments)
        except ModelError as error:
            log.warning("speculation_not_checked", engine=self.name, reason=error.message)
            warnings = checks.check_platform(self._engine, self._speculation)
        for item in warnings:
            log.warning("speculation_doubtful", engine=self.name, rule=item.rule, detail=item.statement)

    def _require_suffix_package(self) -> None:
        python = install.engine_python(self._engine.platform, self._engine.python)
        if not install.has_package(python, SUFFIX_PACKAGE):
            raise ConfigError(
                f"speculation: method suffix needs the package {SUFFIX_PACKAGE} beside {python}; install "
                "arctic-inference there (its build needs a C++ compiler), or take method ngram",
                field="method",
            )

    def _plan(self) -> platforms.LaunchPlan:
        python = install.engine_python(self._engine.platform, self._engine.python)
        return platforms.plan(self._engine, self._speculation, self._model_path, python, self._port)


def environment(plan: platforms.LaunchPlan, engine: config.Engine) -> dict[str, str]:
    """The server's variables: the plan's, over them the caller's own, over them `[engines.NAME.env]`.

    Paceline's own settings (they may hold passwords) and the caller's Python paths stay outside.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    if engine.platform != "emulated":
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            inherited.pop(name, None)
    values = plan.env | inherited | engine.env
    preload = [*map(str, plan.preload), *values.get("LD_PRELOAD", "").split()]
    return values | ({"LD_PRELOAD": " ".join(preload)} if preload else {})


def open_log(path: Path) -> BinaryIO:
    """Open a new log; older ones are kept as NAME.log.1 (the newest) to NAME.log.4."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in range(OLD_LOGS, 0, -1):
        older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        with suppress(FileNotFoundError):
            older.replace(path.with_name(f"{path.name}.{number}"))
    return path.open("wb")


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
