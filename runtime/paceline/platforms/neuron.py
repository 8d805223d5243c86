"""vLLM with its Neuron plugin on Trainium2: rendered by documented rules, not run by this project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline import config
from paceline.config_neuron import Neuron
from paceline.errors import ConfigError
from paceline.platforms.compilecache import Compiled, folder
from paceline.platforms.plan import LaunchPlan, vllm_command, vllm_env
from paceline.rules.case import NEURON_BLOCK_SIZE
from paceline.rules.table import version_of

DTYPE = "bfloat16"
GREEDY = {"greedy": True, "device": False}
"""The plugin's `all_greedy` by our `sampling`; without it tokens are chosen on the CPU."""
DFLASH_FLAGS = (
    "--no-async-scheduling",
    "--no-enable-chunked-prefill",
    "--disable-hybrid-kv-cache-manager",
)
IMAGES = {
    (0, 21): "0.21.0.1.0.0-neuronx-py313-sdk2.31.1-ubuntu24.04",
    (0, 24): "0.24.0.1.1.0-neuronx-py313-sdk2.32.0-ubuntu24.04",
}
"""Published tags of AWS's image by the plugin's first two numbers; none was found for 0.29."""
IMAGE = "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx"


def plan(
    engine: config.Engine, speculation: config.Speculation | None, model_path: str, python: Path, port: int
) -> LaunchPlan:
    """The command and environment of a server on NeuronCores.

    Nothing is checked here: `paceline.rules` does. Raises `ConfigError` without `[engines.NAME.neuron]`.
    """
    neuron = section(engine)
    command = vllm_command(engine, speculation, model_path, python, port)
    command += ["--dtype", engine.dtype or DTYPE, *shape_flags(engine, neuron)]
    if speculation and speculation.method == "dflash":
        command += DFLASH_FLAGS
    elif neuron.sampling == "cpu":
        command += ["--no-async-scheduling"]
    command += additional_flags(engine, neuron)
    cache = cache_folder(engine, speculation, model_path)
    return LaunchPlan((*command, *engine.extra_args), vllm_env(speculation, model_path) | env(neuron, cache))


def greedy_only(engine: config.Engine) -> str:
    """Why the server must not be asked to sample; empty if it may."""
    compiled = engine.neuron is not None and engine.neuron.sampling == "greedy"
    return "its engine's `sampling` is greedy, which is compiled in" if compiled else ""


def section(engine: config.Engine) -> Neuron:
    """`[engines.NAME.neuron]`. Raises `ConfigError` without one."""
    if engine.neuron is None:
        raise ConfigError("platform: neuron needs a section `[engines.NAME.neuron]`", field="neuron")
    return engine.neuron


def shape_flags(engine: config.Engine, neuron: Neuron) -> list[str]:
    """vLLM's flags that are compiled in; the emulator takes them, too."""
    values = ["--block-size", str(engine.block_size or NEURON_BLOCK_SIZE)]
    values += ["--tensor-parallel-size", str(neuron.tensor_parallel_size)]
    values += ["--max-num-batched-tokens", str(neuron.segment_size)]
    if neuron.num_gpu_blocks_override:
        values += ["--num-gpu-blocks-override", str(neuron.num_gpu_blocks_override)]
    if not neuron.prefix_caching:
        values += ["--no-enable-prefix-caching"]
    return values


def additional_flags(engine: config.Engine, neuron: Neuron) -> list[str]:
    """The flag with the plugin's own settings; the emulator takes it, too."""
    return ["--additional-config", json.dumps({"neuron_config": neuron_config(engine, neuron)})]


def neuron_config(engine: config.Engine, neuron: Neuron) -> dict[str, Any]:
    """The plugin's own settings."""
    values: dict[str, Any] = {}
    if neuron.segmented(engine.max_model_len):
        values["kv_segment_size_buckets"] = [neuron.segment_size]
    values["num_batched_tokens_buckets"] = neuron.num_batched_tokens_buckets or [neuron.segment_size]
    values["num_seqs_buckets"] = neuron.num_seqs_buckets or [engine.max_concurrent_steps]
    if neuron.decode_context_length_buckets:
        values["decode_context_length_buckets"] = neuron.decode_context_length_buckets
    if neuron.sampling in GREEDY:
        values["on_device_sampling_config"] = {"all_greedy": GREEDY[neuron.sampling]}
    if engine.structured_outputs:
        values["enable_structured_outputs"] = True
    return values


def env(neuron: Neuron, cache: Path) -> dict[str, str]:
    """The plugin's variables."""
    values = {
        "NEURON_VISIBLE_DEVICES": ranges(neuron.core_ids),
        "NEURON_LOGICAL_NC_CONFIG": str(neuron.logical_nc_config),
        "VLLM_CACHE_ROOT": str(cache),
    }
    if neuron.remote_cache:
        values["NEURON_LIBTORCH_REMOTE_CACHE"] = str(neuron.remote_cache)
    if neuron.compile_workers:
        values["NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS"] = str(neuron.compile_workers)
    if neuron.compile_timeout_seconds:  # documents name both
        for name in ("NEURON_LIBTORCH_COMPILATION_TIMEOUT", "VLLM_NEURON_COMPILATION_TIMEOUT"):
            values[name] = str(neuron.compile_timeout_seconds)
    return values


def cache_folder(engine: config.Engine, speculation: config.Speculation | None, model_path: str) -> Path:
    """The folder of what is compiled with these settings."""
    neuron = section(engine)
    drafting = speculation if speculation and speculation.method != "none" else None
    compiled = Compiled(
        plugin=neuron.plugin,
        model=model_path,
        dtype=engine.dtype or DTYPE,
        tensor_parallel_size=neuron.tensor_parallel_size,
        logical_nc_config=neuron.logical_nc_config,
        block_size=engine.block_size or NEURON_BLOCK_SIZE,
        num_gpu_blocks=neuron.num_gpu_blocks_override,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_concurrent_steps,
        segment_size=neuron.segment_size,
        prefix_caching=neuron.prefix_caching,
        num_batched_tokens_buckets=tuple(neuron.num_batched_tokens_buckets),
        num_seqs_buckets=tuple(neuron.num_seqs_buckets),
        decode_context_length_buckets=tuple(neuron.decode_context_length_buckets),
        sampling=neuron.sampling,
        structured_outputs=engine.structured_outputs,
        method=drafting.method if drafting else "none",
        drafter=drafting.drafter if drafting else "",
        num_speculative_tokens=drafting.num_speculative_tokens if drafting else 0,
        extra_args=tuple(engine.extra_args),
    )
    return (neuron.compile_cache or config.cache_dir() / "neuron") / folder(compiled)


def ranges(cores: tuple[int, ...]) -> str:
    """Cores as `NEURON_VISIBLE_DEVICES` wants them, such as `0-7`."""
    if cores == tuple(range(cores[0], cores[-1] + 1)) and len(cores) > 1:
        return f"{cores[0]}-{cores[-1]}"
    return ",".join(map(str, cores))


def image(neuron: Neuron) -> str:
    """AWS's image for the plugin; empty where no tag is known."""
    tag = IMAGES.get(version_of(neuron.plugin))
    return f"{IMAGE}:{tag}" if tag else ""
