"""What a server does otherwise under vLLM's Neuron plugin: buckets, admission and requests that are refused.

By the plugin's documents (`paceline/rules/platform_rules.toml` names them); nothing was seen on Trainium.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import Field

from paceline.config_types import Section
from paceline.emulator.neuron_times import DEFAULT_MODEL, NeuronTimes, times_of
from paceline.emulator.protocol import CompletionRequest, Refused

SMALLEST_PREFILL_BUCKET = 128


class DeviceSampling(Section):
    """`on_device_sampling_config`."""

    all_greedy: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


class NeuronConfig(Section):
    """The plugin's `neuron_config`, as far as it is emulated. Other names are refused."""

    kv_segment_size_buckets: list[int] = Field(default_factory=list)
    num_batched_tokens_buckets: list[int] = Field(default_factory=list)
    num_seqs_buckets: list[int] = Field(default_factory=list)
    decode_context_length_buckets: list[int] | None = None
    on_device_sampling_config: DeviceSampling | None = None
    enable_structured_outputs: bool = False

    @property
    def sampling(self) -> Literal["greedy", "device", "cpu"]:
        """Where tokens are chosen."""
        if self.on_device_sampling_config is None:
            return "cpu"
        return "greedy" if self.on_device_sampling_config.all_greedy else "device"


class AdditionalConfig(Section):
    """vLLM's `--additional-config` for the plugin."""

    neuron_config: NeuronConfig


@dataclass(frozen=True, slots=True)
class Limits:
    """The flags of vLLM that buckets depend on, in tokens and requests."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool


@dataclass(frozen=True, slots=True)
class NeuronSettings:
    """One emulated server on NeuronCores. Buckets ascend and end at the server's limits."""

    prefill_buckets: tuple[int, ...]
    """Tokens of a compiled prefill: the segment alone where prompts are computed in segments."""
    batch_buckets: tuple[int, ...]
    """Requests of a compiled decode step."""
    context_buckets: tuple[int, ...]
    """Context lengths of a compiled decode step; the last is max_model_len."""
    sampling: Literal["greedy", "device", "cpu"] = "greedy"
    structured_outputs: bool = False
    tensor_parallel_size: int = 1
    drafter: str = ""
    cache: Path | None = None
    """Folder that remembers compiled graphs. None: each start compiles all of them."""
    times: NeuronTimes = field(default_factory=lambda: times_of(DEFAULT_MODEL))

    def graphs(self, *, drafting: bool) -> list[str]:
        """Names of the graphs that a start compiles: one per prefill bucket, and per pair of batch and context
        bucket one, or three with speculation (target with drafts, target without, head)."""
        kinds = ("", "_spec", "_draft") if drafting else ("",)
        pairs = [(batch, context) for batch in self.batch_buckets for context in self.context_buckets]
        decode = [f"decode_b{batch}_c{context}{kind}" for batch, context in pairs for kind in kinds]
        return [*(f"prefill_s{tokens}" for tokens in self.prefill_buckets), *decode]

    def decode_graph(self, batch: int, context: int) -> str:
        """The graph of a decode step of so many requests, the longest of which has so many tokens."""
        return f"decode_b{bucket_of(self.batch_buckets, batch)}_c{bucket_of(self.context_buckets, context)}"


def bucket_of(buckets: Sequence[int], size: int) -> int:
    """The smallest bucket that holds `size`; the last one holds everything that may come."""
    return next((bucket for bucket in buckets if bucket >= size), buckets[-1])


def worst_case_streams(num_blocks: int, block_size: int, max_model_len: int) -> int:
    """Requests that are admitted at once, each counted as if it grew to max_model_len."""
    return num_blocks // -(-max_model_len // block_size)


def neuron_settings(
    additional: Any, limits: Limits, *, tensor_parallel_size: int, drafter: str, cache: Path | None, times: str
) -> NeuronSettings:
    """Settings of `--additional-config`. Raises `ValueError` for other names and for segments of another size."""
    given = AdditionalConfig.model_validate(additional).neuron_config
    segment = limits.max_num_batched_tokens
    if given.kv_segment_size_buckets not in ([], [segment]):
        raise ValueError(
            f"kv_segment_size_buckets {given.kv_segment_size_buckets} must be [{segment}], "
            "the same as --max-num-batched-tokens"
        )
    segmented = limits.prefix_caching or segment < limits.max_model_len or bool(given.kv_segment_size_buckets)
    prefill = [segment] if segmented else _powers(SMALLEST_PREFILL_BUCKET, limits.max_model_len)
    return NeuronSettings(
        prefill_buckets=tuple(given.num_batched_tokens_buckets or prefill),
        batch_buckets=tuple(given.num_seqs_buckets or _powers(1, limits.max_num_seqs)),
        context_buckets=(*(given.decode_context_length_buckets or ()), limits.max_model_len),
        sampling=given.sampling,
        structured_outputs=given.enable_structured_outputs,
        tensor_parallel_size=tensor_parallel_size,
        drafter=drafter,
        cache=cache,
        times=times_of(times),
    )


def _powers(first: int, last: int) -> list[int]:
    """Powers of 2 from `first`, and `last` at the end."""
    powers = []
    while first < last:
        powers.append(first)
        first *= 2
    return [*powers, last]


class _Structured(msgspec.Struct, frozen=True):
    structured_outputs: object = None
    response_format: object = None


_STRUCTURED = msgspec.json.Decoder(_Structured)


def refuse(neuron: NeuronSettings, asked: CompletionRequest, body: bytes) -> None:
    """Raise `Refused` for a request that the compiled graphs cannot answer.

    No temperature means 1, as in vLLM. The wording is our own: the documents have none.
    """
    if neuron.sampling == "greedy" and asked.temperature != 0:
        message = "Sampling is compiled in as greedy (all_greedy); set temperature to 0."
        raise Refused(message, param="temperature")
    if neuron.structured_outputs:
        return
    given = _STRUCTURED.decode(body)
    for name in ("structured_outputs", "response_format"):
        if getattr(given, name) not in (None, {"type": "text"}):
            message = "Structured outputs are off; start with neuron_config.enable_structured_outputs: true."
            raise Refused(message, param=name)


def graph_key(values: dict[str, Any]) -> str:
    """The name under which a compiled graph is remembered: other values, another graph."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]
