"""What each vLLM platform needs: the command line, environment and limits of a server that Paceline starts."""

from __future__ import annotations

from pathlib import Path

from paceline import config
from paceline.errors import ConfigError
from paceline.models.catalog import resolve_model
from paceline.platforms import cpu, cuda, emulated
from paceline.platforms.plan import LaunchPlan
from paceline.speculation.profiles import require_supported

__all__ = ["LaunchPlan", "greedy_only", "plan"]


def greedy_only(engine: config.Engine, speculation: config.Speculation | None) -> str:
    """Why the server of `[engines.NAME]` must not be asked to sample; empty if it may."""
    return cpu.greedy_only(speculation) if engine.platform == "cpu" else ""


def plan(
    engine: config.Engine, speculation: config.Speculation | None, model_path: str, python: Path, port: int
) -> LaunchPlan:
    """How to start the server of `[engines.NAME]` on a loopback port.

    `python` belongs to the engine's venv. Raises `ConfigError` for a platform that cannot be launched or
    cannot run the profile, `ModelError` for a drafter that is not here.
    """
    if speculation:
        require_supported(speculation, engine.platform)
        if speculation.drafter and engine.platform != "emulated":
            speculation = speculation.model_copy(update={"drafter": resolve_model(speculation.drafter)})
    match engine.platform:
        case "cpu":
            return cpu.plan(engine, speculation, model_path, python, port)
        case "cuda":
            return cuda.plan(engine, speculation, model_path, python, port)
        case "emulated":
            return emulated.plan(engine, speculation, model_path, python, port)
        case "neuron":
            raise ConfigError(
                "platform: launching on neuron comes later; start vLLM with its Neuron plugin yourself and "
                "name that server by `url = ...`",
                field="platform",
            )
        case _:
            raise ConfigError("platform: needed to start a server; set cpu, cuda or emulated", field="platform")
