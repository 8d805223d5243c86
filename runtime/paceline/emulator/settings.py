"""The emulator's settings, and what each vLLM version can do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from paceline.emulator.neuron import NeuronSettings
from paceline.transcript.builtin import NAME


@dataclass(frozen=True, slots=True)
class Features:
    """What differs between the emulated versions."""

    version: str
    session_id: bool
    """Body field `session_id` is in the schema."""
    request_metrics: bool
    """Knows the flags for per-request timing and speculation metrics."""
    zero_cached_tokens: bool
    """Reports `cached_tokens` when it is 0."""
    generate_route: bool
    """`/inference/v1/generate` is open without a flag."""


VERSIONS = {
    "0.24": Features("0.24.0", False, False, False, True),
    "0.29": Features("0.29.0", True, True, True, True),
    "0.32": Features("0.32.0", True, True, True, False),
}


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the work takes, in seconds; all of it times `scale`."""

    prefill_token: float = 0.0002
    """Per uncached prompt token."""
    prefill_fixed: float = 0.01
    """Per request, before its first token."""
    step: float = 0.03
    """Per decode step of a batch of one."""
    step_per_request: float = 0.001
    """Added to a decode step by each further request of the batch."""
    step_per_draft: float = 0.0
    """Added to a decode step by each token that a request of the batch may draft."""
    scale: float = 1.0
    """0: no waiting at all."""

    def decode_step(self, batch: int, drafts: int = 0) -> float:
        """Unscaled seconds of one decode step in which each request drafts at most `drafts` tokens."""
        if not batch:
            return 0.0
        return self.step + self.step_per_request * (batch - 1) + self.step_per_draft * drafts * batch


@dataclass(frozen=True, slots=True)
class Settings:
    """One emulated server."""

    model_name: str
    features: Features
    model_path: str = NAME
    """Folder with the tokenizer of a real model, or `emulated` for the built-in byte-level one."""
    max_model_len: int = 32_768
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 2048
    """Most prompt tokens computed in one step."""
    block_size: int = 32
    num_blocks: int = 4096
    priority_scheduling: bool = False
    prefix_caching: bool = True
    neuron: NeuronSettings | None = None
    """Given: the server follows the Neuron plugin's rules, and its times come from `neuron.times`."""
    spec_method: Literal["none", "ngram", "draft_model", "eagle3"] = "none"
    """`eagle3` belongs to `neuron`."""
    spec_tokens: int = 0
    lookup: tuple[int, int] = (2, 5)
    """Shortest and longest repeated ending that ngram looks up."""
    acceptance: tuple[float, ...] = ()
    """Share of steps that accept at least 1, 2, ... drafted tokens, for `spec_tokens` of them or more. Empty:
    ngram looks up the prompt, each token of a draft model is accepted with probability 0.8 after the one
    before, and eagle3 has the published rates."""
    prompt_tokens_details: bool = False
    force_include_usage: bool = False
    per_request_metrics: bool = False
    spec_metrics: Literal["off", "summary", "detailed"] = "off"
    timing: Timing = field(default_factory=Timing)
    reply_tokens: int = 64
    """Length of a reply without a script, in tokens."""
    seed: int = 0
    counts_file: Path | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for what a real server would not start with."""
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < 1 or self.block_size < 1:
            raise ValueError("max-num-seqs, max-num-batched-tokens and block-size must be at least 1")
        if self.num_blocks * self.block_size < self.max_model_len:
            raise ValueError("num-gpu-blocks-override: too few blocks for one request of max-model-len tokens")
        if self.neuron is None and self.spec_method not in {"none", "ngram", "draft_model"}:
            raise ValueError("speculative-config: method must be ngram or draft_model")
        if self.spec_method != "none" and self.spec_tokens < 1:
            raise ValueError("speculative-config: num_speculative_tokens must be at least 1")
        if self.acceptance and len(self.acceptance) < self.spec_tokens:
            raise ValueError("acceptance: give one rate for each of num_speculative_tokens, or more")
        if self.spec_metrics != "off" and self.spec_method == "none":
            raise ValueError("per-request-spec-decode-metrics needs a speculative-config")
        if (self.spec_metrics != "off" or self.per_request_metrics) and not self.features.request_metrics:
            raise ValueError(f"vLLM {self.features.version} has no per-request metrics")
