"""The engines of the configuration as replicas: connected or launched, and watched."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import structlog

from paceline import background, config, platforms
from paceline.engines.base import EngineInfo
from paceline.engines.launcher import LaunchedServer, ServerState
from paceline.engines.monitor import Monitor
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.routing.placement import ReplicaLoad, ReplicaPhase
from paceline.workflow.replicas import Replica, Replicas

log = structlog.get_logger()


class Fleet:
    """Starts what is to be started, watches everything, and tells the router. Close the stack to stop it all."""

    def __init__(
        self, settings: config.Settings, models: dict[str, str], replicas: Replicas, log_dir: Path
    ) -> None:
        self._settings = settings
        self._models = models
        self._replicas = replicas
        self._log_dir = log_dir
        self.ready = asyncio.Event()
        """Set once the first replica was ready."""
        self.changed = asyncio.Event()
        """Set whenever a replica changes."""

    async def start(self, stack: AsyncExitStack) -> None:
        """Start every engine; does not wait until they are ready."""
        for name, engine in self._settings.engines.items():
            await self._add(stack, name, engine)

    async def _add(self, stack: AsyncExitStack, name: str, engine: config.Engine) -> None:
        server = self._launched(name, engine) if engine.platform else None
        adapter = VllmHttpEngine(
            server.url if server else engine.url,
            api_key=engine.api_key,
            served_model_name=engine.served_model_name,
            stall_seconds=self._settings.limits.stall_seconds,
        )
        stack.push_async_callback(adapter.close)
        load = ReplicaLoad(name, engine.model, engine.max_concurrent_steps)
        profile = self._settings.speculation.get(engine.speculation)
        drafts = profile.num_speculative_tokens if profile and profile.method != "none" else 0
        replica = Replica(load, adapter, engine.instance_type, engine.speculation, drafts)
        replica.greedy_only = platforms.greedy_only(engine, profile)
        replica.may_enforce = platforms.may_enforce(engine)
        self._replicas.add(replica)

        def probed(phase: ReplicaPhase, detail: str, info: EngineInfo | None) -> None:
            replica.info = info or replica.info
            self._set_phase(name, phase, detail)

        # A server that Paceline starts has its own deadline, and is started again when it is lost.
        patience = math.inf if server else engine.start_timeout_seconds
        lost = ReplicaPhase.STARTING if server else ReplicaPhase.DOWN
        monitor = Monitor(name, adapter, probed, patience=patience, lost=lost)
        replica.suspect = monitor.suspect
        if server:
            server.on_state = partial(self._launcher_saw, server, adapter, monitor)
            await server.start()
            stack.push_async_callback(server.close)
        background.start(stack, f"monitor {name}", monitor.run())

    def _launched(self, name: str, engine: config.Engine) -> LaunchedServer:
        speculation = self._settings.speculation.get(engine.speculation)
        return LaunchedServer(name, engine, speculation, self._models[engine.model], self._log_dir)

    def _launcher_saw(
        self, server: LaunchedServer, adapter: VllmHttpEngine, monitor: Monitor, state: ServerState
    ) -> None:
        log.info("engine_state", engine=server.name, phase=state.phase, detail=state.detail)
        adapter.base_url = server.url
        if state.phase == "ready":
            return  # the monitor's probe decides
        monitor.restarted()
        phase = ReplicaPhase.DOWN if state.phase in {"failed", "stopped"} else ReplicaPhase.STARTING
        self._set_phase(server.name, phase, state.detail)

    def _set_phase(self, name: str, phase: ReplicaPhase, detail: str) -> None:
        self._replicas.set_phase(name, phase, detail)
        if phase is ReplicaPhase.READY:
            self.ready.set()
        self.changed.set()

    def any_ready(self) -> bool:
        """Whether any replica takes steps now."""
        return any(replica.load.phase is ReplicaPhase.READY for replica in self._replicas.all())
