"""A plan: its figures, each with formula and source, what does not fit, and what would."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paceline.errors import ConfigError
from paceline.planning import fit, instances
from paceline.planning.figures import Figure, figures
from paceline.planning.fit import Demand, Split
from paceline.planning.instances import LOGICAL_NC_CONFIG, Instance, Price
from paceline.planning.models import Shape
from paceline.rules import memory
from paceline.rules.case import NEURON_BLOCK_SIZE, Case
from paceline.rules.check import findings
from paceline.speculation.finding import Finding

FP8 = "KV cache in fp8 (--kv-cache fp8; the plugin wants calibrated scales in the checkpoint)"
ROPE = (
    "rope scaling in the engine's `extra_args`, where the model's card describes it; not verified with the plugin"
)
CAP = (
    "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION={fraction:.2f} in the engine's `env`; the default protects the "
    "compiler, which stops with NCC_EVRF009 where the cache is too large"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not fit."""

    statement: str
    remedies: tuple[str, ...]
    """Each alone is enough."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer."""

    instance: Instance
    shape: Shape
    demand: Demand
    splits: tuple[Split, ...]
    """Every size that was looked at."""
    chosen: Split | None
    figures: tuple[Figure, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[Finding, ...]
    """What the platform's rules say of the model."""

    @property
    def fits(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


def make(
    instance: Instance, shape: Shape, demand: Demand, price: Price | None, tensor_parallel_size: int | None = None
) -> Plan:
    """Plan. A given tensor parallel size is taken even if it is under the published least.

    Raises `ConfigError` for one that does not divide the model.
    """
    found = fit.splits(instance, shape, demand)
    if tensor_parallel_size:
        found = _only(found, tensor_parallel_size, instance, shape)
    chosen = fit.best(found)
    problems = [*_start_problems(instance, shape, demand, found, chosen), *_length_problems(shape, demand)]
    if chosen and chosen.total_resident < demand.agents:
        problems.append(_working_set(instance, shape, demand, chosen))
    return Plan(
        instance=instance,
        shape=shape,
        demand=demand,
        splits=tuple(found),
        chosen=chosen,
        figures=tuple(figures(instance, shape, demand, price, chosen)),
        problems=tuple(problems),
        warnings=tuple(findings(Case("neuron", target=shape.files))),
    )


def _only(found: list[Split], size: int, instance: Instance, shape: Shape) -> list[Split]:
    for item in found:
        if item.tensor_parallel_size == size:
            below = size < shape.least_tensor_parallel_size and item.streams and item.kv_gib >= fit.LEAST_KV_GIB
            return [replace(item, reason="") if below else item]
    known = ", ".join(str(item.tensor_parallel_size) for item in found)
    raise ConfigError(
        f"--tensor-parallel-size {size}: {shape.name} on {instance.name} splits over {known} cores; "
        "take one of these"
    )


def _start_problems(
    instance: Instance, shape: Shape, demand: Demand, found: list[Split], chosen: Split | None
) -> Iterator[Problem]:
    """Nothing can be started."""
    if chosen:
        return
    reasons = "; ".join(f"TP{item.tensor_parallel_size}: {item.reason}" for item in found)
    yield Problem(
        f"{shape.name} cannot be served: {reasons}", tuple(_ways_to_start(instance, shape, demand, found))
    )


def _ways_to_start(instance: Instance, shape: Shape, demand: Demand, found: list[Split]) -> Iterator[str]:
    if larger := fit.best(fit.splits(instance, shape, demand)):
        yield f"--tensor-parallel-size {larger.tensor_parallel_size}"
    for item in found:
        if item.streams and item.kv_gib >= fit.LEAST_KV_GIB:
            yield f"--tensor-parallel-size {item.tensor_parallel_size}, by arithmetic alone: {item.reason}"
    startable = [
        item
        for item in found
        if item.kv_gib >= fit.LEAST_KV_GIB and item.tensor_parallel_size >= shape.least_tensor_parallel_size
    ]
    if longest := max((item.kv_tokens for item in startable), default=0):
        yield f"--max-model-len {longest} or less, with a --context no longer than that"
    if any(not item.reason for item in _in_fp8(instance, shape, demand, found)):
        yield FP8
    for other in instances.table().values():
        if other.cores > instance.cores and fit.best(fit.splits(other, shape, demand)):
            yield f"--instance {other.name}"


def _length_problems(shape: Shape, demand: Demand) -> Iterator[Problem]:
    """Longer than the model knows."""
    longest = shape.max_length
    if longest and demand.max_model_len > longest:
        yield Problem(
            f"max_model_len {demand.max_model_len:,} is more than the model's own {longest:,} tokens: "
            "vLLM refuses to start",
            (
                f"--max-model-len {longest}, with a --context no longer than that",
                ROPE,
                "a model with a longer context",
            ),
        )


def _working_set(instance: Instance, shape: Shape, demand: Demand, chosen: Split) -> Problem:
    """Conversations lose their prefix between turns."""
    statement = (
        f"{demand.agents} contexts of {demand.context:,} tokens do not stay in the KV cache: "
        f"{chosen.replicas} replicas hold {chosen.resident} each, {chosen.total_resident} together; "
        "the others are computed again at each turn, as there is no cache below device memory"
    )
    return Problem(statement, tuple(_ways_to_hold(instance, shape, demand, chosen)))


def _ways_to_hold(instance: Instance, shape: Shape, demand: Demand, chosen: Split) -> Iterator[str]:
    if chosen.total_resident:
        yield f"--agents {chosen.total_resident} or fewer"
    each = -(-demand.agents // chosen.replicas)
    if shorter := chosen.kv_tokens // each // NEURON_BLOCK_SIZE * NEURON_BLOCK_SIZE:
        yield f"--context {shorter} or less ({each} contexts on each replica)"
    if fraction := _cap_fraction(demand, chosen, each):
        yield CAP.format(fraction=fraction)
    if any(item.total_resident >= demand.agents for item in _in_fp8(instance, shape, demand, [chosen])):
        yield FP8
    for other in instances.table().values():
        larger = fit.split(other, shape, demand, chosen.tensor_parallel_size)
        if other.cores > instance.cores and larger.total_resident >= demand.agents:
            yield f"--instance {other.name}"
    if chosen.total_resident:
        yield f"{-(-demand.agents // chosen.total_resident)} instances of {instance.name}"


def _cap_fraction(demand: Demand, chosen: Split, each: int) -> float:
    """The cap of the KV budget with which a replica holds so many contexts; 0 where the weights leave no room."""
    usable = memory.core_gib(LOGICAL_NC_CONFIG) * memory.MEMORY_SHARE
    blocks = -(-each * demand.context // NEURON_BLOCK_SIZE)
    needed = blocks * NEURON_BLOCK_SIZE * chosen.kv_bytes / memory.GIB
    fraction = math.ceil(100 * needed / usable) / 100
    return fraction if fraction * usable <= usable - chosen.weights_gib else 0.0


def _in_fp8(instance: Instance, shape: Shape, demand: Demand, found: list[Split]) -> list[Split]:
    """The same sizes with half the bytes per token; none where that is so already."""
    if demand.kv_number_bytes == 1:
        return []
    fp8 = replace(demand, kv_number_bytes=1)
    return [fit.split(instance, shape, fp8, item.tensor_parallel_size) for item in found]
