"""The figures of a plan. Each says how it comes about and who says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from paceline.planning.fit import LEAST_KV_GIB, WEIGHT_BYTES, Demand, Split
from paceline.planning.instances import CHIP_CORES, LOGICAL_NC_CONFIG, Instance, Price
from paceline.planning.models import Shape
from paceline.rules import memory
from paceline.rules.table import table

ASKED = "asked for"
ARITHMETIC = "arithmetic"
CENT = Decimal("0.0001")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number."""

    name: str
    value: int | float | Decimal | str | None
    """None where it is not known."""
    unit: str
    formula: str
    source: str


def figures(
    instance: Instance, shape: Shape, demand: Demand, price: Price | None, chosen: Split | None
) -> Iterator[Figure]:
    """All figures; those of replicas only where something can be started."""
    yield from _machine(instance)
    yield from _model(shape, demand)
    if chosen:
        yield from _replica(shape, demand, chosen)
        yield from _agents(demand, chosen)
    yield from _money(instance, demand, price, chosen)


def _machine(instance: Instance) -> Iterator[Figure]:
    cores, lnc = instance.cores, LOGICAL_NC_CONFIG
    formula = f"{instance.chips} chips x {CHIP_CORES} physical cores / {lnc} joined (LNC {lnc})"
    yield Figure("logical cores", cores, "cores", formula, f"{instance.source}; rule neuron.lnc-default")
    formula = f"{memory.PHYSICAL_CORE_GIB:g} GiB x {lnc}"
    yield Figure("memory of a core", memory.core_gib(lnc), "GiB", formula, _rule("neuron.lnc-default"))


def _model(shape: Shape, demand: Demand) -> Iterator[Figure]:
    yield Figure("parameters", shape.parameters, "", shape.counted, shape.source)
    weights = shape.parameters * WEIGHT_BYTES / 1e9
    yield Figure("weights", round(weights, 2), "GB", f"parameters x {WEIGHT_BYTES} bytes (bfloat16)", ARITHMETIC)
    kilobytes = shape.kv_bytes_per_token(1, demand.kv_number_bytes) / 1024
    formula = (
        f"2 x {shape.layers} layers x {shape.kv_heads} KV heads x {shape.head_dim} wide x "
        f"{demand.kv_number_bytes} bytes"
    )
    yield Figure("KV of a token", round(kilobytes, 2), "KiB", formula, shape.source)


def _replica(shape: Shape, demand: Demand, chosen: Split) -> Iterator[Figure]:
    size, core = chosen.tensor_parallel_size, memory.core_gib(LOGICAL_NC_CONFIG)
    least = f"; {shape.least_source}" if shape.least_source else ""
    formula = "most streams of all replicas together; of equal sizes the smallest"
    yield Figure("tensor parallel size", size, "cores", formula, f"{ARITHMETIC}{least}")
    formula = "logical cores / tensor parallel size; single servers behind the router"
    yield Figure("replicas", chosen.replicas, "", formula, _rule("neuron.one-replica"))
    yield Figure("weights on a core", round(chosen.weights_gib, 2), "GiB", f"weights / {size}", ARITHMETIC)
    share, cap = memory.MEMORY_SHARE, memory.KV_CAP
    formula = (
        f"min({core:g} x {share:g} - {chosen.weights_gib:.2f}, {cap:.2f} x {core:g} x {share:g}); "
        f"at least {LEAST_KV_GIB:g}"
    )
    yield Figure("KV on a core", round(chosen.kv_gib, 2), "GiB", formula, _rule("neuron.kv-budget"))
    formula = f"KV on a core / {chosen.kv_bytes / 1024:g} KiB of a token on a core, whole blocks"
    yield Figure("KV tokens of a replica", chosen.kv_tokens, "tokens", formula, ARITHMETIC)
    formula = f"floor(KV tokens / max_model_len {demand.max_model_len:,}): worst-case admission"
    yield Figure("streams of a replica", chosen.streams, "", formula, _rule("neuron.worst-case-admission"))
    formula = f"{chosen.replicas} x {chosen.streams}"
    yield Figure("streams of all replicas", chosen.total_streams, "", formula, ARITHMETIC)


def _agents(demand: Demand, chosen: Split) -> Iterator[Figure]:
    working = demand.agents * demand.context
    formula = f"{demand.agents} agents x {demand.context:,} tokens"
    yield Figure("working set", working, "tokens", formula, ASKED)
    held = chosen.replicas * chosen.kv_tokens
    yield Figure(
        "KV tokens of all replicas", held, "tokens", f"{chosen.replicas} x {chosen.kv_tokens:,}", ARITHMETIC
    )
    share = round(100 * working / held)
    yield Figure("working set against KV", share, "%", "working set / KV tokens of all replicas", ARITHMETIC)
    formula = f"{chosen.replicas} x floor(KV tokens / context); no preemption and no cache below device memory"
    yield Figure("contexts that stay", chosen.total_resident, "", formula, _rule("neuron.no-preemption"))
    formula = "agents / streams; the others wait or run their tools"
    yield Figure("agents per stream", round(demand.agents / chosen.total_streams, 2), "", formula, ARITHMETIC)


def _money(instance: Instance, demand: Demand, price: Price | None, chosen: Split | None) -> Iterator[Figure]:
    if price is None:
        yield Figure(
            "instance", None, "$/hour", "", "no price found; add one as [accelerators] of the configuration"
        )
        return
    mark, hourly = "EXAMPLE $/hour" if price.example else "$/hour", price.usd_per_hour
    source = f"{price.source}; read {price.read}" if price.read else price.source
    formula = "capacity block; on-demand price not found" if price.read else ""
    yield Figure("instance", hourly, mark, formula, source)
    yield Figure("price book date", str(price.read) if price.read else None, "", "", source)
    chip = (hourly / instance.chips).quantize(CENT)
    yield Figure("chip", chip, mark, f"{hourly} / {instance.chips} chips", ARITHMETIC)
    if chosen:
        formula = f"{hourly} x {chosen.tensor_parallel_size} / {instance.cores} cores"
        replica = instance.share(price, chosen.tensor_parallel_size).quantize(CENT)
        yield Figure("replica", replica, mark, formula, ARITHMETIC)
    agent = (hourly / demand.agents).quantize(CENT)
    yield Figure("agent", agent, mark, f"{hourly} / {demand.agents} agents, working or not", ARITHMETIC)


def _rule(name: str) -> str:
    rule = table()[name]
    return f"{'; '.join(rule.source)} (rule {rule.id}), read {rule.read}"
