"""Where compiled graphs lie: one folder for each set of settings that compiles anew."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

KEY_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Compiled:
    """Everything that forces a recompilation, or that vLLM's own key was seen to forget (K)."""

    plugin: str
    """Version, which also stands for compiler and model code."""
    model: str
    """Path or hub id."""
    dtype: str
    tensor_parallel_size: int
    logical_nc_config: int
    block_size: int
    num_gpu_blocks: int | None
    """The size of the KV cache is compiled in."""
    max_model_len: int | None
    max_num_seqs: int
    segment_size: int
    prefix_caching: bool
    num_batched_tokens_buckets: tuple[int, ...]
    num_seqs_buckets: tuple[int, ...]
    decode_context_length_buckets: tuple[int, ...]
    sampling: str
    structured_outputs: bool
    method: str
    drafter: str
    num_speculative_tokens: int
    extra_args: tuple[str, ...]
    """May change anything, such as the optimisation level or quantisation."""


def cache_key(compiled: Compiled) -> str:
    """A short name for exactly these settings."""
    values = json.dumps(dataclasses.asdict(compiled), sort_keys=True)
    return hashlib.sha256(values.encode()).hexdigest()[:KEY_DIGITS]


def folder(compiled: Compiled) -> PurePosixPath:
    """The relative folder: plugin, model, then method with K and the key."""
    model = re.sub(r"[^a-z0-9.]+", "-", PurePosixPath(compiled.model).name.lower()) or "model"
    drafts = f"{compiled.method}-k{compiled.num_speculative_tokens}" if compiled.method != "none" else "plain"
    return PurePosixPath(compiled.plugin, model, f"{drafts}-{cache_key(compiled)}")
