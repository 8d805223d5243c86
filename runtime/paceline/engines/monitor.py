"""Watches one engine: probes it until it answers, then its health; the router learns of every change."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import structlog

from paceline.engines.base import Engine, EngineInfo
from paceline.errors import EngineRefused, EngineUnavailable
from paceline.routing.placement import ReplicaPhase

PROBE_SECONDS = 1.0
"""Pause between two probes of a server that does not answer."""
HEALTH_SECONDS = 2.0
"""Pause between two health checks."""
FAILURES = 2
"""Health checks in a row that must fail before a server that was ready counts as lost."""

log = structlog.get_logger()


class Watcher(Protocol):
    """Learns what happens to an engine."""

    def __call__(self, phase: ReplicaPhase, detail: str, info: EngineInfo | None, /) -> None: ...


class Monitor:
    """Runs until cancelled. `suspect` makes it look at once, after a step lost its stream."""

    def __init__(
        self, name: str, engine: Engine, watcher: Watcher, *, patience: float, lost: ReplicaPhase
    ) -> None:
        """A server that has not answered for `patience` seconds from the start on counts as down, until it
        answers. One that was ready and does not answer any more counts as `lost`: STARTING where somebody starts
        it again, else DOWN."""
        self._name = name
        self._engine = engine
        self._watcher = watcher
        self._patience = patience
        self._lost_phase = lost
        self._wake = asyncio.Event()
        self._ready = False
        self._restarted = False
        self._suspected = False

    def suspect(self) -> None:
        """Check the engine now: a step has just lost it. Until it answers it takes no more steps."""
        if not self._ready or self._suspected:
            return
        self._suspected = True
        self._watcher(ReplicaPhase.STARTING, "a step has lost it; checking", None)
        self._wake.set()

    def restarted(self) -> None:
        """The server is being started again: probe it before it counts as ready."""
        self._restarted = True
        self._ready = False
        self._wake.set()

    async def run(self) -> None:
        """Probe, then watch, for ever."""
        deadline = time.monotonic() + self._patience
        while True:
            info = await self._probed(deadline)
            log.info("engine_ready", engine=self._name, version=info.version, emulated=info.emulated)
            self._ready, self._suspected = True, False
            self._watcher(ReplicaPhase.READY, "", info)
            await self._until_lost()
            self._ready = False
            if not self._restarted:
                log.warning("engine_lost", engine=self._name)
                self._watcher(self._lost_phase, "the server does not answer its health check", None)
            deadline = time.monotonic() + self._patience

    async def _probed(self, deadline: float) -> EngineInfo:
        """What the server is, once it answers. What keeps it from that is logged at each change."""
        problem = ""
        while True:
            self._restarted = False
            try:
                info = await self._engine.probe()
                if not self._restarted:
                    return info
            except EngineUnavailable as error:
                problem = self._note(problem, "engine_waiting", error.message)
                if time.monotonic() > deadline:
                    detail = f"no answer for {self._patience:g} s; {error.message}"
                    self._watcher(ReplicaPhase.DOWN, detail, None)
            except EngineRefused as error:
                problem = self._note(problem, "engine_unusable", error.message)
                self._watcher(ReplicaPhase.DOWN, error.message, None)
            await self._pause(PROBE_SECONDS)

    def _note(self, known: str, event: str, problem: str) -> str:
        if problem != known:
            log.warning(event, engine=self._name, error=problem)
        return problem

    async def _until_lost(self) -> None:
        failures = 0
        while failures < FAILURES and not self._restarted:
            await self._pause(HEALTH_SECONDS if not failures else PROBE_SECONDS / 4)
            suspected = self._suspected
            failures = 0 if await self._engine.healthy() else failures + 1
            if suspected and not failures and not self._restarted:
                self._suspected = False
                self._watcher(ReplicaPhase.READY, "", None)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()
