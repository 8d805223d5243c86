"""Checks of speculation on a platform: methods, heads, K, and what they need of the engine."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.rules.case import Case, Check, NeuronCase, Values, configured
from paceline.rules.table import PlatformRule


def method_missing(rule: PlatformRule, case: Case) -> Iterator[Values]:
    """The platform runs the method."""
    if case.method != "none" and case.method not in rule.values:
        yield {"method": case.method}


def method_listed(rule: PlatformRule, case: Case) -> Iterator[Values]:
    """The method is one of those that the rule is about."""
    if case.method in rule.values:
        yield {"method": case.method}


def eagle3_layers(_rule: PlatformRule, case: Case) -> Iterator[Values]:
    """The head has one layer."""
    layers = case.drafter.text.get("num_hidden_layers") if case.drafter else None
    if case.method == "eagle3" and layers not in (None, 1):
        yield {"layers": layers}


def eagle3_model(rule: PlatformRule, case: Case) -> Iterator[Values]:
    """An official table has the target together with eagle3."""
    architectures = case.target.architectures if case.target else ()
    if case.method == "eagle3" and architectures and not set(architectures) & set(rule.values):
        yield {"architecture": architectures[0]}


def target_model(rule: PlatformRule, case: Case) -> Iterator[Values]:
    """The plugin has a recipe for the target."""
    architectures = case.target.architectures if case.target else ()
    if architectures and not set(architectures) & set(rule.values):
        yield {"architecture": architectures[0]}


def speculates_on_the_cpu(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """Speculation samples on the device."""
    if case.case.method != "none" and case.neuron.sampling == "cpu":
        yield {}


def dflash(_rule: PlatformRule, case: Case) -> Iterator[Values]:
    """The method is dflash."""
    if case.method == "dflash":
        yield {}


def dflash_caching(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """dflash is without prefix caching."""
    if case.case.method == "dflash" and case.neuron.prefix_caching:
        yield {}


def dflash_prefill(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """dflash computes a prompt in one piece."""
    if case.case.method == "dflash" and case.neuron.segment_size < case.max_model_len:
        yield {"segment": case.neuron.segment_size, "max_model_len": case.max_model_len}


def dflash_k(_rule: PlatformRule, case: Case) -> Iterator[Values]:
    """K fills the drafter's block."""
    block = case.drafter.text.get("block_size") if case.drafter else None
    if case.profile and case.method == "dflash" and isinstance(block, int):
        k = case.profile.num_speculative_tokens
        if k != block - 1:
            yield {"k": k, "block": block, "right": block - 1}


def dflash_blocks(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """The KV cache of dflash holds every request at its longest, and no more."""
    right = -(-case.max_model_len * case.engine.max_concurrent_steps // case.block_size)
    if case.case.method == "dflash" and case.neuron.num_gpu_blocks_override != right:
        yield {"right": right}


def eagle3_caching(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """NxD Inference runs eagle3 without prefix caching only."""
    if case.case.method == "eagle3" and case.neuron.prefix_caching:
        yield {}


def old_runner(_rule: PlatformRule, case: Case) -> Iterator[Values]:
    """On GPUs vLLM falls back to its older model runner for what the newer one lacks."""
    if case.method == "suffix":
        yield {"what": "suffix"}
    elif case.profile and case.profile.use_heterogeneous_vocab:
        yield {"what": "a mapped vocabulary"}


CHECKS: dict[str, Check] = {
    "neuron.eagle3-only": method_missing,
    "neuron.trained-heads-only": method_missing,
    "neuron.eagle3-one-layer": eagle3_layers,
    "neuron.eagle3-models": eagle3_model,
    "neuron.models-0-21": target_model,
    "neuron.models-0-24": target_model,
    "neuron.models-0-29": target_model,
    "neuron.spec-sampling": configured(speculates_on_the_cpu),
    "neuron.dflash-no-reuse": dflash,
    "neuron.dflash-caching": configured(dflash_caching),
    "neuron.dflash-one-prefill": configured(dflash_prefill),
    "neuron.dflash-k": dflash_k,
    "neuron.dflash-blocks": configured(dflash_blocks),
    "neuron.nxdi-plain-draft": method_listed,
    "neuron.nxdi-eagle3-caching": configured(eagle3_caching),
    "cpu.dflash": dflash,
    "cuda.old-runner": old_runner,
}
