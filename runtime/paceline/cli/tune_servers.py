"""The servers that `paceline spec tune` measures: one at a time, each with one setting of speculation."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from paceline import config
from paceline.engines.launcher import LaunchedServer
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.errors import ConfigError, ModelError
from paceline.models.catalog import resolve_model
from paceline.platforms import cpu
from paceline.speculation import checks
from paceline.speculation.profiles import require_supported
from paceline.speculation.tune.drafts import Draft, Setting
from paceline.speculation.tune.measure import DETAILED
from paceline.speculation.tune.results import Conditions

NAME = "tune"


@dataclass(frozen=True, slots=True)
class Servers:
    """Starts the servers that are measured."""

    target: str
    drafts: tuple[Draft, ...]
    platform: str
    python: str
    engine_args: tuple[str, ...]
    at_once: int
    """Most steps at once."""

    def conditions(self, digest: str) -> Conditions:
        """What a result file of these servers is bound to."""
        return Conditions(
            target=self.target,
            platform=self.platform,
            sample=digest,
            engine_args=self.engine_args,
            dtype=cpu.default_dtype(cpu.features()) if self.platform == "cpu" else "",
            machine=f"{os.cpu_count()} x {cpu.model_name()}",
            emulated=self.platform == "emulated",
        )

    def draft(self, setting: Setting) -> Draft | None:
        """What drafts in this setting; None without speculation."""
        return next((draft for draft in self.drafts if draft.name == setting.draft), None)

    def check(self, largest: int) -> None:
        """Raise `ConfigError` for a platform that Paceline does not start or that does not run a method, and for a
        drafter that `spec check` refuses: before anything is measured."""
        if self.platform not in ("cpu", "cuda", "emulated"):
            raise ConfigError(f"--platform {self.platform}: take one of cpu, cuda, emulated")
        for draft in self.drafts:
            require_supported(draft.at(largest), self.platform)
            engine = self._engine(Setting(draft.name, largest), None)
            with suppress(ModelError):  # files that are not here are left to the engine
                checks.check_engine(engine, draft.at(largest), resolve_model(self.target))

    def _engine(self, setting: Setting, max_model_len: int | None) -> config.Engine:
        values: dict[str, Any] = {
            "model": NAME,
            "platform": self.platform,
            "python": self.python,
            "max_concurrent_steps": self.at_once,
            "max_model_len": max_model_len,
            "extra_args": [*self.engine_args, *(DETAILED if setting.k else ())],
        }
        parsed = config.parse({"models": {NAME: {"path": self.target}}, "engines": {NAME: values}}, "spec tune")
        return parsed.engines[NAME]

    @asynccontextmanager
    async def open(
        self, setting: Setting, max_model_len: int, repeat: int
    ) -> AsyncIterator[tuple[VllmHttpEngine, str]]:
        """A server that is ready, and its version; it is gone afterwards."""
        draft = self.draft(setting)
        server = LaunchedServer(
            f"{NAME}-{draft.profile.method}-{setting.k}-{repeat}" if draft else f"{NAME}-off-{repeat}",
            self._engine(setting, max_model_len),
            draft.at(setting.k) if draft else None,
            resolve_model(self.target),
            config.data_dir() / "logs",
        )
        engine: VllmHttpEngine | None = None
        try:
            await server.start()
            await server.wait_ready()
            engine = VllmHttpEngine(server.url)
            info = await engine.probe()
            yield engine, info.version
        finally:
            if engine:
                await engine.close()
            await server.close()
