"""The command line that vLLM has on every platform."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from paceline import config
from paceline.rules.table import version_of
from paceline.speculation.profiles import speculative_config

GIB = 1 << 30
COUNTS_SINCE = (0, 29)
"""The vLLM that first reports drafted and accepted tokens per request."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A command, and the variables it needs. What the caller's environment already sets wins over `env`,
    except LD_PRELOAD, where `preload` is added."""

    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    preload: tuple[Path, ...] = ()


def vllm_command(
    engine: config.Engine, speculation: config.Speculation | None, model_path: str, python: Path, port: int
) -> list[str]:
    """vLLM's OpenAI server.

    The module is run, not the `vllm` command: that one fails in the CPU package, which has another name.
    """
    flags = server_flags(engine, speculation, model_path, port)
    return [str(python), "-m", "vllm.entrypoints.openai.api_server", *flags, "--disable-uvicorn-access-log"]


def server_flags(
    engine: config.Engine, speculation: config.Speculation | None, model_path: str, port: int
) -> list[str]:
    """vLLM's flags that Paceline needs everywhere. Speculation metrics without speculation stop vLLM's start, and
    the flag for them the start of a vLLM before 0.29."""
    flags = ["--model", model_path, "--served-model-name", engine.served_model_name or engine.model]
    flags += ["--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", str(engine.max_concurrent_steps)]
    flags += ["--enable-prompt-tokens-details", "--enable-force-include-usage"]
    if engine.max_model_len:
        flags += ["--max-model-len", str(engine.max_model_len)]
    if values := speculative_config(speculation) if speculation else None:
        flags += ["--speculative-config", json.dumps(values)]
        if not engine.neuron or version_of(engine.neuron.plugin) >= COUNTS_SINCE:
            flags += ["--per-request-spec-decode-metrics", "summary"]
    return flags


def vllm_env(speculation: config.Speculation | None, model_path: str) -> dict[str, str]:
    """vLLM sends no usage statistics; with all files at hand it asks no model hub either."""
    env = {"VLLM_NO_USAGE_STATS": "1"}
    models = [model_path, *([speculation.drafter] if speculation and speculation.drafter else [])]
    if all(Path(model).is_dir() for model in models):
        env["HF_HUB_OFFLINE"] = "1"
    return env
