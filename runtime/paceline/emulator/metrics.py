"""The engine's counters as Prometheus text, under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.emulator.engine import EmulatedEngine

_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class EngineCollector(Collector):
    """Reads one engine when it is scraped."""

    def __init__(self, engine: EmulatedEngine) -> None:
        self._engine = engine
        self._labels = {"engine": "0", "model_name": engine.settings.model_name}

    def collect(self) -> Iterable[Metric]:
        """All families."""
        engine, totals = self._engine, self._engine.totals
        yield self._gauge("vllm:num_requests_running", len(engine.running))
        yield self._gauge("vllm:num_requests_waiting", len(engine.waiting))
        yield self._gauge("vllm:kv_cache_usage_perc", engine.cache.usage)
        yield self._counter("vllm:prompt_tokens", totals.prompt_tokens)
        yield self._counter("vllm:generation_tokens", totals.generation_tokens)
        yield self._counter("vllm:prefix_cache_queries", totals.cache_queries)
        yield self._counter("vllm:prefix_cache_hits", totals.cache_hits)
        yield self._counter("vllm:num_preemptions", totals.preemptions)
        yield self._finished()
        if engine.drafter:
            yield from self._speculation()
        yield self._cache_config()

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, "Emulated, no model ran.", labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, value: float) -> Metric:
        family = CounterMetricFamily(name, "Emulated, no model ran.", labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _finished(self) -> Metric:
        """Aborted requests are not counted, as in vLLM."""
        name = "vllm:request_success"
        family = CounterMetricFamily(name, "Emulated, no model ran.", labels=[*self._labels, "finished_reason"])
        for reason in _FINISH_REASONS:
            family.add_metric([*self._labels.values(), reason], self._engine.totals.finished.get(reason, 0))
        return family

    def _speculation(self) -> Iterator[Metric]:
        drafts = self._engine.totals.drafts
        yield self._counter("vllm:spec_decode_num_drafts", drafts.steps)
        yield self._counter("vllm:spec_decode_num_draft_tokens", drafts.drafted)
        yield self._counter("vllm:spec_decode_num_accepted_tokens", drafts.accepted)
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        family = CounterMetricFamily(name, "Emulated, no model ran.", labels=[*self._labels, "position"])
        for position in range(len(drafts.histogram) - 1):
            family.add_metric([*self._labels.values(), str(position)], sum(drafts.histogram[position + 1 :]))
        yield family

    def _cache_config(self) -> Metric:
        settings = self._engine.settings
        info = {
            "block_size": str(settings.block_size),
            "enable_prefix_caching": str(settings.prefix_caching),
            "engine": "0",
            "kv_cache_size_tokens": str(settings.num_blocks * settings.block_size),
            "num_gpu_blocks": str(settings.num_blocks),
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "Emulated, no model ran.", labels=list(info))
        family.add_metric(list(info.values()), 1)
        return family


def render_metrics(engine: EmulatedEngine) -> bytes:
    """The text of /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (EngineCollector(engine), *engine.more_metrics):
        registry.register(collector)
    return generate_latest(registry)
