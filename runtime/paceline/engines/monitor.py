"""Watches one engine: probes it until it answers, then its health; the router learns of every change."""

from __future__ import annotations

import asyncio
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
"""Health checks in a row that must fail before a server that was ready counts as down."""

log = structlog.get_logger()


class Watcher(Protocol):
    """Learns what happens to an engine."""

    def __call__(self, phase: ReplicaPhase, detail: str, info: EngineInfo | None, /) -> None: ...


class Monitor:
    """Runs until cancelled. `suspect` makes it look at once, after a step lost its stream."""

    def __init__(self, name: str, engine: Engine, watcher: Watcher) -> None:
        self._name = name
        self._engine = engine
        self._watcher = watcher
        self._wake = asyncio.Event()
        self._ready = False
        self._lost = False
        self._suspected = False

    def suspect(self) -> None:
        """Check the engine now: a step has just lost it. Until it answers it takes no more steps."""
        if not self._ready or self._suspected:
            return
        self._suspected = True
        self._watcher(ReplicaPhase.STARTING, "a step has lost it; checking", None)
        self._wake.set()

    def restarted(self) -> None:
        """The server was started again: probe it before it counts as ready."""
        self._lost = True
        self._wake.set()

    async def run(self) -> None:
        """Probe, then watch, for ever."""
        while True:
            self._lost = self._suspected = False
            info = await self._probed()
            log.info("engine_ready", engine=self._name, version=info.version, emulated=info.emulated)
            self._ready = True
            self._watcher(ReplicaPhase.READY, "", info)
            await self._until_down()
            self._ready = False
            if self._lost:
                continue
            log.warning("engine_down", engine=self._name)
            self._watcher(ReplicaPhase.DOWN, "the server does not answer its health check", None)

    async def _probed(self) -> EngineInfo:
        refused = ""
        while True:
            try:
                return await self._engine.probe()
            except EngineUnavailable:
                pass
            except EngineRefused as error:
                if refused != error.message:
                    refused = error.message
                    log.warning("engine_unusable", engine=self._name, error=refused)
                    self._watcher(ReplicaPhase.DOWN, refused, None)
            await self._pause(PROBE_SECONDS)

    async def _until_down(self) -> None:
        failures = 0
        while failures < FAILURES and not self._lost:
            await self._pause(HEALTH_SECONDS if not failures else PROBE_SECONDS / 4)
            failures = 0 if await self._engine.healthy() else failures + 1
            if self._suspected and not failures:
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
