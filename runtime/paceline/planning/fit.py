"""How a model can be split over an instance's cores, and what then fits."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.planning.instances import LOGICAL_NC_CONFIG, Instance
from paceline.planning.models import Shape
from paceline.rules import memory
from paceline.rules.case import NEURON_BLOCK_SIZE

WEIGHT_BYTES = 2
"""bfloat16."""
LEAST_KV_GIB = 1.0
"""VLLM_NEURON_MIN_KV_BUDGET_GIB's default: with less the plugin does not start."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked for."""

    agents: int
    context: int
    """Tokens that one agent's conversation grows to."""
    max_model_len: int
    """Tokens that every admitted request is counted with."""
    kv_number_bytes: int = 2


@dataclass(frozen=True, slots=True)
class Split:
    """One tensor parallel size."""

    tensor_parallel_size: int
    replicas: int
    weights_gib: float
    """On one core."""
    kv_gib: float
    """On one core."""
    kv_bytes: int
    """Of one token on one core."""
    kv_tokens: int
    """Of one replica, in whole blocks."""
    streams: int
    """Requests that one replica admits at once."""
    resident: int
    """Whole contexts that one replica holds."""
    reason: str
    """Why it is not taken; empty if it can be."""

    @property
    def total_streams(self) -> int:
        """Of all replicas."""
        return self.replicas * self.streams

    @property
    def total_resident(self) -> int:
        """Of all replicas."""
        return self.replicas * self.resident


def splits(instance: Instance, shape: Shape, demand: Demand) -> list[Split]:
    """Every size that divides the model's heads, the smallest first."""
    sizes = [cores for cores in range(1, instance.cores + 1) if instance.cores % cores == 0]
    return [split(instance, shape, demand, size) for size in sizes if shape.can_split(size)]


def split(instance: Instance, shape: Shape, demand: Demand, size: int) -> Split:
    """The arithmetic for one tensor parallel size."""
    weights = shape.parameters * WEIGHT_BYTES / size / memory.GIB
    kv_gib = memory.kv_budget_gib(memory.core_gib(LOGICAL_NC_CONFIG), weights)
    per_token = shape.kv_bytes_per_token(size, demand.kv_number_bytes)
    tokens = int(kv_gib * memory.GIB) // per_token // NEURON_BLOCK_SIZE * NEURON_BLOCK_SIZE
    streams = memory.admitted(tokens, demand.max_model_len)
    reason = ""
    if kv_gib < LEAST_KV_GIB:
        reason = f"weights of {weights:.2f} GiB per core leave {kv_gib:.2f} GiB for KV, under {LEAST_KV_GIB:g} GiB"
    elif not streams:
        reason = f"{tokens:,} KV tokens are less than max_model_len {demand.max_model_len:,}"
    elif size < shape.least_tensor_parallel_size:
        reason = f"the published least is {shape.least_tensor_parallel_size}"
    return Split(
        tensor_parallel_size=size,
        replicas=instance.cores // size,
        weights_gib=weights,
        kv_gib=kv_gib,
        kv_bytes=per_token,
        kv_tokens=tokens,
        streams=streams,
        resident=tokens // demand.context,
        reason=reason,
    )


def best(found: list[Split]) -> Split | None:
    """Of those that can be taken, the one with most streams; of equal ones the smallest."""
    usable = [item for item in found if not item.reason]
    return max(usable, key=lambda item: (item.total_streams, -item.tensor_parallel_size), default=None)
