"""The metrics that the Neuron plugin adds, under its names (`vllm-neuron/docs/design/vllm/metrics.md`)."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from paceline.emulator.neuron import NeuronSettings, bucket_of
from paceline.emulator.neuron_start import Started

HELP = "Emulated, no model ran."
PADDINGS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
LABELS = ("model_name", "bucket_name", "rank_id")
RANK = "0"
"""All ranks do the same; one is shown."""


class NeuronMetrics:
    """Counts of one engine, and what its start took. Seconds are the model's, before they are scaled."""

    def __init__(self, model_name: str, neuron: NeuronSettings, started: Started) -> None:
        self._model = model_name
        self._neuron = neuron
        self._runs = Counter("vllm_neuron:neff_execution_count", HELP, LABELS, registry=None)
        self._seqs = _histogram("vllm_neuron:num_seqs_padding")
        self._tokens = _histogram("vllm_neuron:num_batched_tokens_padding")
        gauges = {
            "startup_time_seconds": started.load_seconds + started.compile_seconds,
            "compilation_time_seconds": started.compile_seconds,
            "model_load_time_seconds": started.load_seconds,
            "model_load_size_bytes": neuron.times.weights_bytes,
        }
        self.collectors: Sequence[Collector] = (
            self._runs,
            self._seqs,
            self._tokens,
            *(self._gauge(name, value) for name, value in gauges.items()),
        )

    def prefill(self, tokens: int) -> None:
        """A segment of so many tokens is computed."""
        bucket = bucket_of(self._neuron.prefill_buckets, tokens)
        name = f"prefill_s{bucket}"
        self._runs.labels(self._model, name, RANK).inc()
        self._tokens.labels(self._model, name, RANK).observe(bucket - tokens)

    def decode(self, batch: int, longest: int, *, drafting: bool) -> None:
        """A decode step of so many requests runs: with drafts, head and target."""
        graph = self._neuron.decode_graph(batch, longest)
        name = f"{graph}_spec" if drafting else graph
        for run in (name, f"{graph}_draft") if drafting else (name,):
            self._runs.labels(self._model, run, RANK).inc()
        padding = bucket_of(self._neuron.batch_buckets, batch) - batch
        self._seqs.labels(self._model, name, RANK).observe(padding)

    def _gauge(self, name: str, value: float) -> Gauge:
        gauge = Gauge(f"vllm_neuron:{name}", HELP, ("model_name", "rank_id"), registry=None)
        gauge.labels(self._model, RANK).set(value)
        return gauge


def _histogram(name: str) -> Histogram:
    return Histogram(name, HELP, LABELS, buckets=PADDINGS, registry=None)
