"""Checks of an engine on Neuron: its plugin, flags, variables, sampling, memory and time to start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from paceline.errors import ModelError
from paceline.rules import memory
from paceline.rules.case import Case, Check, NeuronCase, Values, configured
from paceline.rules.table import NEWEST_PLUGIN, PlatformRule


def version(_rule: PlatformRule, case: Case) -> Iterator[Values]:
    """The rule is about this version itself."""
    yield {"plugin": case.plugin, "newest": NEWEST_PLUGIN}


def batch_of_one(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """Prefix caching is wrong for one request at a time."""
    if case.neuron.prefix_caching and case.engine.max_concurrent_steps == 1:
        yield {}


def flag(rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """`extra_args` has none of the rule's flags."""
    for argument in case.engine.extra_args:
        name = argument.partition("=")[0]
        if name in rule.values:
            yield {"flag": name}


def ray(rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """The executor is not Ray's."""
    arguments = " ".join(case.engine.extra_args).replace("=", " ").split()
    for name, value in pairwise(arguments):
        if name in rule.values and value == "ray":
            yield {"flag": name}


def variable(rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """`env` switches none of the rule's variables on."""
    for name in map(str, rule.values):
        if case.engine.env.get(name, "0") not in ("", "0"):
            yield {"name": name}


def joined_cores(rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """No variable contradicts the setting."""
    lnc = case.neuron.logical_nc_config
    for name in map(str, rule.values):
        if (found := case.engine.env.get(name)) not in (None, str(lnc)):
            yield {"name": name, "found": found, "lnc": lnc}


def samples_on_device(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """The device may be asked for the likeliest token only."""
    if case.neuron.sampling == "device":
        yield {}


def structured_sampling(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """Schemas are enforced on the device."""
    if case.engine.structured_outputs and case.neuron.sampling == "cpu":
        yield {}


def one_request(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """One request of the longest context fits."""
    if case.kv_tokens is not None and case.kv_tokens < case.max_model_len:
        right = -(-case.max_model_len // case.block_size)
        yield {"tokens": case.kv_tokens, "max_model_len": case.max_model_len, "right": right}


def admission(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """As many requests as the engine is given are admitted."""
    admitted = memory.admitted(case.kv_tokens, case.max_model_len) if case.kv_tokens else 0
    if 0 < admitted < case.engine.max_concurrent_steps:
        wanted = {"wanted": case.engine.max_concurrent_steps, "max_model_len": case.max_model_len}
        yield {"tokens": case.kv_tokens, "admitted": admitted, **wanted}


def budget(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """The KV cache is no larger than the plugin itself would make it."""
    target = case.case.target
    if case.kv_tokens is None or target is None or target.weights is None:
        return
    cores = case.neuron.tensor_parallel_size
    try:
        wanted = case.kv_tokens * memory.kv_bytes_per_token(target, cores) / memory.GIB
    except ModelError:
        return
    core = memory.core_gib(case.neuron.logical_nc_config)
    allowed = memory.kv_budget_gib(core, target.weights.size_bytes / cores / memory.GIB)
    if wanted > allowed:
        yield {"wanted": f"{wanted:.1f}", "budget": f"{allowed:.1f}", "core": f"{core:g}"}


def start_timeout(rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """A first start has time to compile."""
    (right,) = rule.values
    if case.engine.start_timeout_seconds < int(right):
        yield {"seconds": f"{case.engine.start_timeout_seconds:g}", "right": right}


CHECKS: dict[str, Check] = {
    "neuron.fork-retired": version,
    "neuron.nxdi-retired": version,
    "neuron.unknown-plugin": version,
    "neuron.unverified": version,
    "neuron.too-old": version,
    "neuron.nxdi-batch-1": configured(batch_of_one),
    "neuron.no-pipeline": configured(flag),
    "neuron.no-lora": configured(flag),
    "neuron.no-quantization-flag": configured(flag),
    "neuron.no-ray": configured(ray),
    "neuron.no-device-flag": configured(flag),
    "neuron.own-flags": configured(flag),
    "neuron.v2-runner": configured(variable),
    "neuron.lnc-env": configured(joined_cores),
    "neuron.greedy": configured(samples_on_device),
    "neuron.structured-sampling": configured(structured_sampling),
    "neuron.kv-one-request": configured(one_request),
    "neuron.worst-case-admission": configured(admission),
    "neuron.kv-budget": configured(budget),
    "neuron.start-timeout": configured(start_timeout),
}
