"""The platform's rules, applied to an emulated server's own flags."""

from __future__ import annotations

from collections.abc import Sequence

from paceline import config
from paceline.config_neuron import Neuron
from paceline.emulator.settings import Settings
from paceline.rules.case import Case
from paceline.rules.check import findings, require
from paceline.speculation.finding import Finding

EMULATED_METHODS = ("none", "eagle3")
UNLIMITED_SECONDS = 1e9
"""The server does not know how long its start may last."""


def check(settings: Settings) -> Sequence[Finding]:
    """The warnings. Raises `ConfigError` with every rule that the flags violate, `ValueError` for what no server
    has and for a method that is not emulated."""
    speculation = None
    if settings.spec_method != "none" and settings.neuron:
        speculation = config.Speculation.model_validate(
            {
                "method": settings.spec_method,
                "num_speculative_tokens": settings.spec_tokens,
                "drafter": settings.neuron.drafter,
            }
        )
    warnings = require(findings(Case("neuron", _engine(settings), speculation)), "neuron_config")
    if settings.spec_method not in EMULATED_METHODS:
        raise ValueError(
            f"speculative-config: method {settings.spec_method} of the plugin is not emulated; take eagle3"
        )
    return warnings


def _engine(settings: Settings) -> config.Engine:
    neuron = settings.neuron
    if neuron is None:
        raise ValueError("additional-config: needed for these rules")
    section = Neuron(
        plugin=settings.features.version,
        tensor_parallel_size=neuron.tensor_parallel_size,
        prefix_caching=settings.prefix_caching,
        segment_size=settings.max_num_batched_tokens,
        num_batched_tokens_buckets=list(neuron.prefill_buckets),
        num_seqs_buckets=list(neuron.batch_buckets),
        decode_context_length_buckets=list(neuron.context_buckets[:-1]),
        sampling=neuron.sampling,
        num_gpu_blocks_override=settings.num_blocks,
    )
    return config.Engine(
        model=settings.model_name,
        platform="neuron",
        max_model_len=settings.max_model_len,
        block_size=settings.block_size,
        max_concurrent_steps=settings.max_num_seqs,
        structured_outputs=neuron.structured_outputs,
        start_timeout_seconds=UNLIMITED_SECONDS,
        neuron=section,
    )
