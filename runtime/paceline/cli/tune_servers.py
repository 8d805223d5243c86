"""The servers that `paceline spec tune` measures: one at a time, each with one setting of speculation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from paceline import config
from paceline.engines.launcher import LaunchedServer
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.errors import ConfigError
from paceline.models.catalog import resolve_model
from paceline.speculation.profiles import require_supported
from paceline.speculation.tune.results import Conditions

NAME = "tune"


@dataclass(frozen=True, slots=True)
class Servers:
    """Starts the servers that are measured, one for each cell."""

    target: str
    drafter: str
    method: str
    platform: str
    python: str
    engine_args: tuple[str, ...]
    concurrency: int

    def conditions(self, digest: str) -> Conditions:
        """What a result file of these servers is bound to."""
        return Conditions(
            self.target,
            self.drafter,
            self.method,
            self.platform,
            self.concurrency,
            digest,
            self.engine_args,
            self.platform == "emulated",
        )

    def settings(self, k: int, max_model_len: int | None) -> config.Settings:
        """The configuration of one server."""
        profile: dict[str, Any] = {"method": "none"}
        if k:
            profile = {"method": self.method, "drafter": self.drafter, "num_speculative_tokens": k}
        engine = {
            "model": NAME,
            "platform": self.platform,
            "python": self.python,
            "max_concurrent_steps": self.concurrency,
            "max_model_len": max_model_len,
            "speculation": NAME,
            "extra_args": list(self.engine_args),
        }
        values = {
            "models": {NAME: {"path": self.target}},
            "engines": {NAME: engine},
            "speculation": {NAME: profile},
        }
        return config.parse(values, "spec tune")

    def check(self, largest: int) -> None:
        """Raise `ConfigError` for a platform that Paceline does not start, or that does not run the method."""
        if self.platform not in ("cpu", "cuda", "emulated"):
            raise ConfigError(f"--platform {self.platform}: take one of cpu, cuda, emulated")
        require_supported(self.settings(largest, None).speculation[NAME], self.platform)

    @asynccontextmanager
    async def open(self, k: int, max_model_len: int) -> AsyncIterator[VllmHttpEngine]:
        """A server that is ready; it is gone afterwards."""
        settings = self.settings(k, max_model_len)
        name = f"{NAME}-{self.method}-{k}" if k else f"{NAME}-off"
        server = LaunchedServer(
            name,
            settings.engines[NAME],
            settings.speculation[NAME],
            resolve_model(self.target),
            config.data_dir() / "logs",
        )
        engine: VllmHttpEngine | None = None
        try:
            await server.start()
            await server.wait_ready()
            engine = VllmHttpEngine(server.url)
            await engine.probe()
            yield engine
        finally:
            if engine:
                await engine.close()
            await server.close()
