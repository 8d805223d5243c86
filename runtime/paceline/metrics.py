"""Prometheus metrics: every name is here and in `metrics_neuron.py`.

Served on loopback over HTTP; no label holds an id or content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from paceline.errors import ConfigError
from paceline.routing.placement import ReplicaLoad, ReplicaPhase
from paceline.workflow.canary import CanaryReport
from paceline.workflow.ports import StepReport
from paceline.workflow.stepclass import CONTEXTS, context_bucket

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counts the steps that ended and shows the load now. An `Observer` of steps."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        step = ("model", "replica", "state")
        where = ("model", "replica")
        self._steps = Counter("paceline_steps", "Attempts that ended.", step, registry=self.registry)
        self._tokens = Counter(
            "paceline_tokens", "Tokens by kind, as far as reported.", (*where, "kind"), registry=self.registry
        )
        self._cost = Counter(
            "paceline_list_cost_usd", "List cost of attempts, in USD.", where, registry=self.registry
        )
        self._accelerator = Counter(
            "paceline_accelerator_seconds", "Busy time of replicas, in seconds.", where, registry=self.registry
        )
        self._canary_steps = Counter(
            "paceline_canary_steps",
            "Steps picked by the canary.",
            ("model", "profile", "result"),
            registry=self.registry,
        )
        self._canary_tokens = Counter(
            "paceline_canary_tokens",
            "Tokens of replays, as far as known.",
            (*where, "kind"),
            registry=self.registry,
        )
        self._canary_accelerator = Counter(
            "paceline_canary_accelerator_seconds",
            "Share of replays in replicas' time.",
            where,
            registry=self.registry,
        )
        self._queue = Histogram(
            "paceline_queue_seconds", "Arrival to dispatch.", where, buckets=_SECONDS, registry=self.registry
        )
        self._first = Histogram(
            "paceline_first_token_seconds",
            "Dispatch to first token.",
            where,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._total = Histogram(
            "paceline_step_seconds", "Arrival to end.", where, buckets=_SECONDS, registry=self.registry
        )
        drafts = ("model", "profile", "class", "context")
        self._drafts = Counter(
            "paceline_speculation_tokens",
            "Drafted and accepted tokens, as far as reported.",
            (*drafts, "kind"),
            registry=self.registry,
        )
        self._checks = Counter(
            "paceline_speculation_checks",
            "Verifications of drafts, as far as reported.",
            drafts,
            registry=self.registry,
        )
        self._alarms = Gauge(
            "paceline_speculation_alarm",
            "1 while a pool's speculation does not do its work.",
            ("model", "profile", "alarm"),
            registry=self.registry,
        )
        self._ready = Gauge(
            "paceline_replica_ready", "1 if the replica takes steps.", where, registry=self.registry
        )

    def watch(self, running: Callable[[], int], queued: Callable[[], int], kept: Callable[[], int]) -> None:
        """Show these counts whenever the metrics are read."""
        gauges = (
            ("paceline_steps_running", "Steps under way.", running),
            ("paceline_steps_queued", "Steps that wait for a place on a replica.", queued),
            ("paceline_ledger_writes_kept", "Closes that wait for the database.", kept),
        )
        for name, text, read in gauges:
            Gauge(name, text, registry=self.registry).set_function(read)

    def watch_replica(self, load: ReplicaLoad) -> None:
        """Show whether a replica is ready."""
        gauge = self._ready.labels(load.model, load.name)
        gauge.set_function(lambda: float(load.phase is ReplicaPhase.READY))

    def step_ended(self, report: StepReport) -> None:
        """Count one attempt."""
        end, where = report.end, (report.model, report.end.replica)
        self._steps.labels(*where, end.state).inc()
        for kind, count in _counts(report):
            if count:
                self._tokens.labels(*where, kind).inc(count)
        self._count_drafts(report)
        self._cost.labels(*where).inc((end.cost.list_nanos or 0) / 1e9)
        self._accelerator.labels(*where).inc(end.accelerator_seconds)
        self._queue.labels(*where).observe(end.timings.queue)
        self._total.labels(*where).observe(end.timings.total)
        if end.timings.first_token is not None:
            self._first.labels(*where).observe(end.timings.first_token)

    def _count_drafts(self, report: StepReport) -> None:
        """Count what a report tells of; a reported 0 makes a series, nothing reported does not."""
        speculation = report.end.speculation
        context = CONTEXTS[context_bucket(report.prompt_tokens)]
        what = (report.model, speculation.profile, report.end.step_class or "", context)
        for kind, count in (("drafted", speculation.drafted), ("accepted", speculation.accepted)):
            if count is not None:
                self._drafts.labels(*what, kind).inc(count)
        if speculation.draft_steps is not None:
            self._checks.labels(*what).inc(speculation.draft_steps)

    def show_alarm(self, model: str, profile: str, alarm: str, *, raised: bool) -> None:
        """Show the state of an alarm of a pool."""
        self._alarms.labels(model, profile, alarm).set(raised)

    def canary_ended(self, report: CanaryReport) -> None:
        """Count one sample of the canary."""
        self._canary_steps.labels(report.model, report.profile, report.verdict).inc()
        if not report.replica:
            return
        where, use = (report.model, report.replica), report.use
        for kind, count in (
            ("uncached_prompt", use.uncached_prompt),
            ("cached_prompt", use.cached_prompt),
            ("output", use.output),
        ):
            self._canary_tokens.labels(*where, kind).inc(count)
        self._canary_accelerator.labels(*where).inc(use.accelerator_seconds)

    def serve(self, host: str, port: int) -> tuple[WSGIServer, int]:
        """Serve /metrics; returns the server to shut down and its port. Raises `ConfigError`."""
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise ConfigError(
                f"server.metrics_listen: cannot listen on {host}:{port} ({error.strerror}); choose another port",
                field="server.metrics_listen",
            ) from None
        return server, int(server.server_port)


def _counts(report: StepReport) -> Iterable[tuple[str, int | None]]:
    usage, speculation = report.end.usage, report.end.speculation
    yield "uncached_prompt", usage.uncached_prompt
    yield "cached_prompt", usage.cached_prompt
    yield "output", usage.output
    yield "drafted", speculation.drafted
    yield "accepted", speculation.accepted
