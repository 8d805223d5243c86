"""A plan as a configuration: one engine for each replica, with its range of cores."""

from __future__ import annotations

from typing import Any

from paceline import config
from paceline.errors import ConfigError
from paceline.planning.fit import Split
from paceline.planning.instances import LOGICAL_NC_CONFIG, Price
from paceline.planning.report import Plan
from paceline.platforms.neuron import ranges
from paceline.rules.table import table

PLUGIN = "0.29.0.1.2.0"
"""The newest plugin that the rules know."""
SEGMENT = 2048
NANO_DIGITS = 9


def settings(plan: Plan, price: Price | None) -> config.Settings:
    """The configuration. Nobody's list price is made up: the model has none.

    Raises `ConfigError` where nothing can be started, and where no segment is short enough.
    """
    if plan.chosen is None:
        raise ConfigError(f"{plan.shape.name} does not fit on {plan.instance.name}: there is nothing to write")
    share = f"{plan.instance.name}-{plan.chosen.tensor_parallel_size}-cores"
    names = [f"{plan.shape.name}-{index}" for index in range(plan.chosen.replicas)]
    engines = {name: _engine(plan, plan.chosen, index) for index, name in enumerate(names)}
    values: dict[str, Any] = {
        "models": {plan.shape.name: {"path": plan.shape.path, "sampling_temperature": 0.0}},
        "engines": engines,
        "allow_unpriced": True,
    }
    if price:
        hourly = round(plan.instance.share(price, plan.chosen.tensor_parallel_size), NANO_DIGITS)
        values["accelerators"] = {share: {"usd_per_hour": f"{hourly.normalize():f}", "example": price.example}}
        for engine in engines.values():
            engine["instance_type"] = share
    return config.parse(values, "plan")


def _engine(plan: Plan, chosen: Split, index: int) -> dict[str, Any]:
    size = chosen.tensor_parallel_size
    more = {"extra_args": ["--kv-cache-dtype", "fp8"]} if plan.demand.kv_number_bytes == 1 else {}
    (start_timeout,) = table()["neuron.start-timeout"].values
    return {
        "model": plan.shape.name,
        "platform": "neuron",
        "max_concurrent_steps": min(chosen.streams, plan.demand.agents),
        "max_model_len": plan.demand.max_model_len,
        "start_timeout_seconds": start_timeout,
        **more,
        "neuron": {
            "plugin": PLUGIN,
            "tensor_parallel_size": size,
            "cores": ranges(tuple(range(index * size, (index + 1) * size))),
            "logical_nc_config": LOGICAL_NC_CONFIG,
            "segment_size": _segment(plan.demand.max_model_len),
        },
    }


def _segment(max_model_len: int) -> int:
    """The usual segment, or the longest that a short context allows."""
    sizes = [int(size) for size in table()["neuron.segment-size"].values]
    short = [size for size in sizes if size <= min(SEGMENT, max_model_len)]
    if not short:
        raise ConfigError(
            f"--max-model-len {max_model_len}: the shortest segment is {min(sizes)}; give that or more"
        )
    return max(short)
