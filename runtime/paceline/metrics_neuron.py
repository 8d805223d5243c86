"""Prometheus metrics of NeuronCores, from neuron-monitor. Only where engines run on them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from paceline.engines.neuron_report import NeuronSample, NeuronUse


class NeuronMetrics:
    """Shows the last report and adds up its counts. The label `replica` is empty for processes of others."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._up = Gauge("paceline_neuron_monitor_up", "1 while neuron-monitor reports.", registry=registry)
        self._utilization = Gauge(
            "paceline_neuroncore_utilization_ratio",
            "Utilization of a logical NeuronCore in the last period, 0 to 1.",
            ("replica", "core"),
            registry=registry,
        )
        self._memory = Gauge(
            "paceline_neuron_memory_bytes",
            "Memory that a replica's processes use.",
            ("replica", "where"),
            registry=registry,
        )
        self._core_seconds = Counter(
            "paceline_neuroncore_seconds",
            "Utilization of NeuronCores over time, in core seconds.",
            ("replica",),
            registry=registry,
        )
        self._errors = Counter(
            "paceline_neuron_execution_errors", "Errors by kind.", ("replica", "kind"), registry=registry
        )
        self._executions = Counter(
            "paceline_neuron_executions", "Executions by result.", ("replica", "result"), registry=registry
        )

    def neuron_seen(self, sample: NeuronSample) -> None:
        """Show one report; what it does not name is no longer there."""
        self._forget()
        self._up.set(1)
        for replica, use in sample.uses.items():
            self._show(replica, use)

    def neuron_lost(self) -> None:
        """Show that nothing is known now."""
        self._forget()
        self._up.set(0)

    def _forget(self) -> None:
        self._utilization.clear()
        self._memory.clear()

    def _show(self, replica: str, use: NeuronUse) -> None:
        for core, ratio in use.utilization.items():
            self._utilization.labels(replica, core).set(ratio)
        self._memory.labels(replica, "device").set(use.device_bytes)
        self._memory.labels(replica, "host").set(use.host_bytes)
        self._core_seconds.labels(replica).inc(use.core_seconds)
        for kind, count in use.errors.items():
            self._errors.labels(replica, kind).inc(count)
        for result, count in use.executions.items():
            self._executions.labels(replica, result).inc(count)
