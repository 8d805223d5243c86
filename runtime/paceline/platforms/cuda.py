"""vLLM on NVIDIA GPUs: its own defaults for number format, block size and memory."""

from __future__ import annotations

from pathlib import Path

from paceline import config
from paceline.platforms.plan import GIB, LaunchPlan, vllm_command, vllm_env


def plan(
    engine: config.Engine, speculation: config.Speculation | None, model_path: str, python: Path, port: int
) -> LaunchPlan:
    """The command and environment of a server on a GPU."""
    command = vllm_command(engine, speculation, model_path, python, port)
    command += ["--dtype", engine.dtype or "auto"]
    if engine.block_size:
        command += ["--block-size", str(engine.block_size)]
    if engine.kv_cache_gib:
        command += ["--kv-cache-memory-bytes", str(int(engine.kv_cache_gib * GIB))]
    return LaunchPlan((*command, *engine.extra_args), vllm_env(speculation, model_path))
