"""The emulator in place of vLLM: same flags, no model."""

from __future__ import annotations

from pathlib import Path

from paceline import config
from paceline.platforms.plan import LaunchPlan, server_flags


def plan(
    engine: config.Engine, speculation: config.Speculation | None, model_path: str, python: Path, port: int
) -> LaunchPlan:
    """The command of an emulated server."""
    command = [str(python), "-m", "paceline.emulator", *server_flags(engine, speculation, model_path, port)]
    if engine.block_size:
        command += ["--block-size", str(engine.block_size)]
    if engine.emulator_script:
        command += ["--script", str(engine.emulator_script)]
    return LaunchPlan((*command, *engine.extra_args))
