"""The memory of a logical NeuronCore, by the plugin's own formulas. Arithmetic on documents, nothing measured."""

from __future__ import annotations

from paceline.speculation.modelfiles import ModelFiles
from paceline.speculation.shapes import attention_heads, layer_count

GIB = 1 << 30
PHYSICAL_CORE_GIB = 12.0
"""96 GiB of a Trainium2 chip over its 8 physical cores."""
MEMORY_SHARE = 0.9
"""vLLM's gpu_memory_utilization in the plugin's document."""
KV_CAP = 0.30
"""VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION's default."""
KV_NUMBER_BYTES = 2


def core_gib(logical_nc_config: int) -> float:
    """Device memory of a logical core."""
    return PHYSICAL_CORE_GIB * logical_nc_config


def kv_budget_gib(core: float, weights: float) -> float:
    """What the plugin takes for the KV cache of one core: what the weights leave, at most the cap. In GiB."""
    usable = core * MEMORY_SHARE
    return max(0.0, min(usable - weights, usable * KV_CAP))


def kv_bytes_per_token(model: ModelFiles, tensor_parallel_size: int) -> int:
    """Keys and values of one token on one core, in bytes. Heads that are fewer than cores are held several times.

    Raises `ModelError` where config.json does not say, or where attention is of another kind.
    """
    _, kv_heads, width = attention_heads(model)
    per_core = max(1, -(-kv_heads // tensor_parallel_size))
    return 2 * layer_count(model) * per_core * width * KV_NUMBER_BYTES


def admitted(kv_tokens: int, max_model_len: int) -> int:
    """Requests that run at once, each counted as if it grew to the longest context."""
    return kv_tokens // max_model_len
