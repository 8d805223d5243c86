"""Checks of what the Neuron plugin compiles: segments, buckets and cores."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.rules.case import Check, NeuronCase, Values, configured
from paceline.rules.table import PlatformRule

BUCKET_FIELDS = ("num_batched_tokens_buckets", "num_seqs_buckets", "decode_context_length_buckets")


def segment_size(rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """A kernel exists for the segment."""
    if case.neuron.segmented(case.max_model_len) and case.neuron.segment_size not in rule.values:
        yield {"segment": case.neuron.segment_size}


def segment_listed(rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """The segment is one of those that the rule is about."""
    if case.neuron.segment_size in rule.values:
        yield {"segment": case.neuron.segment_size}


def segment_blocks(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """A segment is whole blocks."""
    if case.neuron.segmented(case.max_model_len) and case.neuron.segment_size % case.block_size:
        yield {"segment": case.neuron.segment_size, "block": case.block_size}


def segment_bucket(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """In segmented prefill the only bucket is the segment."""
    buckets, segment = case.neuron.num_batched_tokens_buckets, case.neuron.segment_size
    if case.neuron.segmented(case.max_model_len) and buckets and buckets != [segment]:
        yield {"buckets": buckets, "segment": segment}


def largest_prefill_bucket(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """The largest prefill bucket is as large as a prefill can get."""
    largest = max(case.neuron.num_batched_tokens_buckets, default=case.neuron.segment_size)
    right = min(case.neuron.segment_size, case.max_model_len)
    if largest != right:
        yield {"largest": largest, "right": right}


def largest_decode_bucket(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """The largest batch is as large as the engine's limit."""
    buckets, right = case.neuron.num_seqs_buckets, case.engine.max_concurrent_steps
    if buckets and max(buckets) != right:
        yield {"largest": max(buckets), "right": right}


def buckets_ascend(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """Buckets are sorted, each once."""
    for field in BUCKET_FIELDS:
        buckets: list[int] = getattr(case.neuron, field)
        if buckets != sorted(set(buckets)):
            yield {"field": field, "buckets": buckets}


def context_buckets(rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """Context buckets fit the attention kernel's tile and lie below the whole context."""
    (tile,) = rule.values
    for bucket in case.neuron.decode_context_length_buckets:
        if bucket % int(tile) or bucket >= case.max_model_len:
            yield {"bad": bucket, "max_model_len": case.max_model_len}


def too_few_cores(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """Each rank has a core."""
    cores, parallel = len(case.neuron.core_ids), case.neuron.tensor_parallel_size
    if cores < parallel:
        yield {"cores": cores, "parallel": parallel}


def idle_cores(_rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """Each core has a rank."""
    cores, parallel = len(case.neuron.core_ids), case.neuron.tensor_parallel_size
    if cores > parallel:
        yield {"cores": cores, "parallel": parallel}


def core_range(rule: PlatformRule, case: NeuronCase) -> Iterator[Values]:
    """The largest instance has such cores; it has half as many logical ones where two are joined."""
    lnc, highest = case.neuron.logical_nc_config, max(case.neuron.core_ids)
    limit = int(rule.values[lnc - 1])
    if highest >= limit:
        yield {"core": highest, "limit": limit, "last": limit - 1, "lnc": lnc}


CHECKS: dict[str, Check] = {
    "neuron.segment-size": configured(segment_size),
    "neuron.segment-8192": configured(segment_listed),
    "neuron.segment-blocks": configured(segment_blocks),
    "neuron.segment-bucket": configured(segment_bucket),
    "neuron.largest-prefill-bucket": configured(largest_prefill_bucket),
    "neuron.largest-decode-bucket": configured(largest_decode_bucket),
    "neuron.buckets-ascend": configured(buckets_ascend),
    "neuron.context-buckets": configured(context_buckets),
    "neuron.cores": configured(too_few_cores),
    "neuron.idle-cores": configured(idle_cores),
    "neuron.core-range": configured(core_range),
}
