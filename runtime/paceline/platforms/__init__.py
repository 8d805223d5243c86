"""What each vLLM platform needs: the command line, environment and limits of a server that Paceline starts."""

from __future__ import annotations

from pathlib import Path

from paceline import config
from paceline.errors import ConfigError
from paceline.models.catalog import resolve_model
from paceline.platforms import cpu, cuda, emulated, neuron
from paceline.platforms.plan import LaunchPlan
from paceline.speculation.profiles import require_supported

__all__ = ["LaunchPlan", "greedy_only", "may_enforce", "plan"]


def greedy_only(engine: config.Engine, speculation: config.Speculation | None) -> str:
    """Why the server of `[engines.NAME]` must not be asked to sample; empty if it may."""
    match engine.platform:
        case "cpu":
            return cpu.greedy_only(speculation)
        case "neuron" | "emulated":
            return neuron.greedy_only(engine)
        case _:
            return ""


def may_enforce(engine: config.Engine) -> bool:
    """Whether the server of `[engines.NAME]` may be asked for structured outputs.

    vLLM's own reasoning parser would have a form begin behind the reasoning, which Paceline's forms contain.
    """
    parses = any(argument.startswith("--reasoning-parser") for argument in engine.extra_args)
    return engine.structured_outputs and not parses


def plan(
    engine: config.Engine, speculation: config.Speculation | None, model_path: str, python: Path, port: int
) -> LaunchPlan:
    """How to start the server of `[engines.NAME]` on a loopback port.

    `python` belongs to the engine's venv. Raises `ConfigError` for a platform that cannot be launched or
    cannot run the profile, `ModelError` for a drafter that is not here.
    """
    if speculation and speculation.drafter and engine.platform != "emulated":
        speculation = speculation.model_copy(update={"drafter": resolve_model(speculation.drafter)})
    return as_written(engine, speculation, model_path, python, port)


def as_written(
    engine: config.Engine, speculation: config.Speculation | None, model_path: str, python: Path, port: int
) -> LaunchPlan:
    """The same for a server anywhere: model and drafter may be paths that are not on this machine.

    Raises `ConfigError` for a platform that cannot be launched, or that cannot run the profile.
    """
    if speculation and not engine.neuron:
        require_supported(speculation, engine.platform)
    match engine.platform:
        case "cpu":
            return cpu.plan(engine, speculation, model_path, python, port)
        case "cuda":
            return cuda.plan(engine, speculation, model_path, python, port)
        case "emulated":
            return emulated.plan(engine, speculation, model_path, python, port)
        case "neuron":
            return neuron.plan(engine, speculation, model_path, python, port)
        case _:
            raise ConfigError(
                "platform: needed to start a server; set cpu, cuda, neuron or emulated", field="platform"
            )
