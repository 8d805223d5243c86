"""Engines on Neuron for the tests: one that every rule accepts, and what to change in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.speculation.models import Model, model

from paceline import config
from paceline.rules.case import Case
from paceline.speculation.modelfiles import ModelFiles

PLUGINS = {"0.21": "0.21.0.1.0.0", "0.24": "0.24.0.1.1.0", "0.29": "0.29.0.1.2.0"}
EAGLE3: dict[str, Any] = {"method": "eagle3", "drafter": "/models/head", "num_speculative_tokens": 3}
DFLASH: dict[str, Any] = {"method": "dflash", "drafter": "/models/head", "num_speculative_tokens": 7}
DFLASH_ENGINE: dict[str, Any] = {"prefix_caching": False, "segment_size": 8192, "num_gpu_blocks_override": 1024}


def engine_values(
    plugin: str = PLUGINS["0.29"], neuron: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """The settings of an engine."""
    section = {"plugin": plugin, "tensor_parallel_size": 8, "cores": "8-15", **(neuron or {})}
    values = {"model": "llama", "platform": "neuron", "max_model_len": 8192, "start_timeout_seconds": 17_100}
    return {**values, "neuron": section, **more}


def engine(plugin: str = PLUGINS["0.29"], neuron: dict[str, Any] | None = None, **more: Any) -> config.Engine:
    """The engine."""
    return config.Engine.model_validate(engine_values(plugin, neuron, **more))


def case(
    profile: dict[str, Any] | None = None,
    *,
    target: ModelFiles | None = None,
    drafter: ModelFiles | None = None,
    platform: str = "neuron",
    **engine_settings: Any,
) -> Case:
    """A case of an engine on Neuron; on another platform, of no engine."""
    drafting = config.Speculation.model_validate(profile) if profile else None
    configured = engine(**engine_settings) if platform == "neuron" else None
    return Case(platform, configured, drafting, target, drafter)


def files(folder: Path, architecture: str, **settings: Any) -> ModelFiles:
    """A small model on disk that says it is something."""
    values: Model = model(64, 4)
    values.config |= {"architectures": [architecture], "num_attention_heads": 8, **settings}
    return ModelFiles(architecture, values.write(folder / architecture))
