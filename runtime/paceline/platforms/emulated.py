"""The emulator in place of vLLM: same flags, no model."""

from __future__ import annotations

from pathlib import Path

from paceline import config
from paceline.config_neuron import Neuron
from paceline.errors import ConfigError
from paceline.platforms import neuron as plugin
from paceline.platforms.plan import LaunchPlan, server_flags

VERSIONS = ("0.24", "0.29", "0.32")
"""Those of `paceline.emulator.settings`, which is another process's."""


def plan(
    engine: config.Engine, speculation: config.Speculation | None, model_path: str, python: Path, port: int
) -> LaunchPlan:
    """The command of an emulated server; with a section `neuron`, of one that follows the plugin's rules.

    Raises `ConfigError` for a plugin whose vLLM is not emulated.
    """
    command = [str(python), "-m", "paceline.emulator", *server_flags(engine, speculation, model_path, port)]
    env = {}
    if engine.neuron:
        command += ["--emulate-version", _version(engine.neuron), *plugin.shape_flags(engine, engine.neuron)]
        command += plugin.additional_flags(engine, engine.neuron)
        env = {"VLLM_CACHE_ROOT": str(plugin.cache_folder(engine, speculation, model_path))}
    elif engine.block_size:
        command += ["--block-size", str(engine.block_size)]
    if engine.emulator_script:
        command += ["--script", str(engine.emulator_script)]
    return LaunchPlan((*command, *engine.extra_args), env)


def _version(neuron: Neuron) -> str:
    version = ".".join(neuron.plugin.split(".")[:2])
    if version not in VERSIONS:
        raise ConfigError(
            f"neuron.plugin: the emulator imitates vLLM {', '.join(VERSIONS)}, not {version}; set one of these",
            field="plugin",
        )
    return version
