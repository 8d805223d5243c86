"""Does the method fit the target, K, the platform and the way steps sample?"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.rules.case import Case
from paceline.rules.check import findings
from paceline.speculation.finding import Finding, Subject, ok, refused, warning
from paceline.speculation.profiles import unsupported

LOOKUP_METHODS = ("ngram", "suffix")
DEFAULT_TREE_DEPTH = 24


def platform(subject: Subject) -> Iterator[Finding]:
    """The platform runs the method at all, by its rules in `paceline.rules` or as the emulator does."""
    profile = subject.profile
    if reason := unsupported(profile, subject.platform):
        yield refused("platform.method", reason, "take one of these methods, or another platform")
    found = findings(Case(subject.platform, subject.engine, profile, subject.target, subject.drafter))
    yield from found
    if subject.platform and not (reason or found):
        yield ok("platform.method", f"{subject.platform} runs {profile.method}")
    if profile.use_heterogeneous_vocab:
        yield ok("platform.vllm", "a mapped vocabulary needs vLLM 0.29 and drafts greedily")


def hybrid(subject: Subject) -> Iterator[Finding]:
    """Lookup mangles tool calls of models with linear attention or Mamba (vLLM issues 39273, 40875, 56077)."""
    method = subject.profile.method
    if not subject.target.hybrid:
        yield ok("target.attention", "the target has attention layers only")
    elif method in LOOKUP_METHODS:
        yield refused(
            "target.attention",
            f"the target has linear-attention or Mamba layers: with {method} vLLM returns mangled tool calls",
            "take mtp or eagle3 for this target, or no speculation",
        )
    else:
        yield warning(
            "target.attention",
            "the target has linear-attention or Mamba layers, with which speculation has changed answers",
            "compare greedy answers with and without speculation before use",
        )


def draft_length(subject: Subject) -> Iterator[Finding]:
    """K is one that the method can draft."""
    method, k = subject.profile.method, subject.profile.num_speculative_tokens
    if method == "mtp":
        yield from _predicted(subject, k)
    elif method == "dflash":
        yield from _block(subject, k)
    elif method == "suffix":
        depth = subject.profile.suffix_decoding_max_tree_depth or DEFAULT_TREE_DEPTH
        if k >= depth:
            yield warning(
                "k",
                f"K = {k} cannot be reached: match and draft together have at most {depth} tokens",
                "lower K, or raise `suffix_decoding_max_tree_depth`",
            )
    if subject.context is not None and k >= subject.context:
        yield refused("k", f"K = {k} does not fit into {subject.context} tokens of context", "lower K")


def _predicted(subject: Subject, k: int) -> Iterator[Finding]:
    source = subject.drafter or subject.target
    predicted = source.predicted_tokens
    if not source.config:
        yield warning("k", f"{source.name} has no config.json here, so K was not checked", "add its config.json")
    elif predicted is None:
        yield refused(
            "k", "config.json names no multi-token-prediction layers", "take a target that was trained with them"
        )
    elif k > predicted and k % predicted:
        yield refused(
            "k",
            f"K = {k} is no multiple of the {predicted} tokens that the model predicts: vLLM does not start",
            f"set `num_speculative_tokens` to {k - k % predicted} or {k - k % predicted + predicted}",
        )
    elif k > predicted:
        yield warning(
            "k",
            f"K = {k} runs layers again that were trained to predict {predicted}",
            f"measure against K = {predicted}",
        )
    else:
        yield ok("k", f"K = {k}, the model predicts {predicted}")


def _block(subject: Subject, k: int) -> Iterator[Finding]:
    block = subject.drafter.text.get("block_size") if subject.drafter else None
    if not isinstance(block, int):
        yield warning("k", "the drafter's config.json names no block_size", "take K from its model card")
    elif k != block - 1:
        level = refused if k >= block else warning
        yield level(
            "k",
            f"K = {k}, but the drafter drafts blocks of {block}",
            f"set `num_speculative_tokens = {block - 1}`",
        )
    else:
        yield ok("k", f"K = {k} for blocks of {block}")


def caching(subject: Subject) -> Iterator[Finding]:
    """Known trouble of a method with the prefix cache, which Paceline lives on."""
    if subject.profile.method == "dflash" and subject.platform != "neuron":
        yield warning(
            "prefix_caching",
            "with cached prefixes dflash was seen to accept less the longer the context (vLLM 47930)",
            "watch the acceptance of long steps; send them to a plain pool",
        )
    if subject.profile.method == "mtp":
        yield warning(
            "prefix_caching",
            "mtp with prefix caching was seen to lower the accuracy of one model (vLLM 43559)",
            "compare greedy answers with and without speculation before use",
        )


def sampling(subject: Subject) -> Iterator[Finding]:
    """While an engine speculates, vLLM refuses every request with min_p or logit_bias."""
    min_p = subject.target.generation.get("min_p")
    if min_p:
        yield refused(
            "sampling",
            f"the target's generation_config.json sets min_p = {min_p}: vLLM refuses every request that has it",
            "remove min_p there, or add `--generation-config vllm` to the engine's `extra_args`",
        )
    else:
        yield ok("sampling", "steps send neither min_p nor logit_bias, which vLLM refuses while it speculates")
