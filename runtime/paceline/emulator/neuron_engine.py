"""The Neuron plugin's scheduler in place of vLLM's, by the plugin's documents.

Prefill and decoding are never in one step. While any started request has prompt tokens left, one segment of the
one that started first is computed, padded to its bucket, and everything else waits; the documents leave open
whether decode steps come between two segments, and the model lets none come. Otherwise every request past its
prompt makes one decode step, whose batch is padded to its bucket. A request starts only when all that run, grown
to max_model_len, still fit with it; so blocks never run out and nobody is preempted. K is fixed; from position
max_model_len - K on nothing is drafted. Context buckets name the graph, but change no time: none is published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client.registry import Collector

from paceline.emulator.engine import EmulatedEngine, Request
from paceline.emulator.kvcache import CachedSequence
from paceline.emulator.neuron import NeuronSettings, bucket_of, worst_case_streams
from paceline.emulator.neuron_metrics import NeuronMetrics
from paceline.emulator.neuron_start import Started
from paceline.emulator.settings import Settings
from paceline.emulator.speculation import AcceptanceCurve, Drafter


class NeuronEngine(EmulatedEngine):
    """Runs requests by the plugin's rules."""

    def __init__(
        self, settings: Settings, neuron: NeuronSettings, on_end: Callable[[Request], None], started: Started
    ) -> None:
        super().__init__(settings, on_end)
        self._neuron = neuron
        self._metrics = NeuronMetrics(settings.model_name, neuron, started)
        admitted = worst_case_streams(settings.num_blocks, settings.block_size, settings.max_model_len)
        self._most_running = min(settings.max_num_seqs, admitted)

    @property
    def more_metrics(self) -> Sequence[Collector]:
        """The plugin's own metrics."""
        return self._metrics.collectors

    def _can_admit(self) -> bool:
        return bool(self.waiting) and len(self.running) < self._most_running

    def _next_step(self) -> list[tuple[Request, int]]:
        self._sweep()
        self._admit()
        ready = [request for request in self.running if not request.held]
        prefill = next((request for request in ready if request.prefilling), None)
        if prefill:
            tokens = min(prefill.pending, self._neuron.prefill_buckets[-1])
            self._metrics.prefill(tokens)
            return [(prefill, tokens)]
        if ready:
            longest = max(request.sequence.tokens for request in ready if request.sequence)
            self._metrics.decode(len(ready), longest, drafting=bool(self._drafts(ready)))
        return [(request, 1) for request in ready]

    def _seconds(self, step: list[tuple[Request, int]]) -> float:
        first, tokens = step[0]
        times = self._neuron.times
        if first.prefilling:
            padded = bucket_of(self._neuron.prefill_buckets, tokens)
            return times.prefill(padded, drafting=self.drafter is not None)
        batch = bucket_of(self._neuron.batch_buckets, len(step))
        return times.decode(batch, self._drafts([request for request, _ in step]))

    def _drafts(self, requests: Sequence[Request]) -> int:
        """Tokens that each request of a decode step drafts; 0 only if none may."""
        if self.drafter is None or not any(self._may_draft(one.sequence) for one in requests if one.sequence):
            return 0
        return self.drafter.most

    def _may_draft(self, sequence: CachedSequence) -> bool:
        return self.drafter is not None and sequence.tokens < self.settings.max_model_len - self.drafter.most

    def _accept(self, request: Request, sequence: CachedSequence) -> int:
        return super()._accept(request, sequence) if self._may_draft(sequence) else 0

    def _scripted(self, rates: tuple[float, ...], drafter: Drafter) -> Drafter:
        """A script's rates; K tokens are drafted all the same."""
        return AcceptanceCurve((*rates, *[0.0] * (drafter.most - len(rates))))
