"""The composition root: the only module that knows all the others."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from paceline import background, config, config_references
from paceline.engines.neuron_monitor import NeuronMonitor
from paceline.errors import LedgerUnavailable
from paceline.fleet import Fleet
from paceline.ledger.keys import KeyStore
from paceline.ledger.prices import PriceBook
from paceline.ledger.reports import CostQueries
from paceline.ledger.schema import create_if_missing
from paceline.ledger.store import SqlLedger
from paceline.metrics import Metrics
from paceline.metrics_neuron import NeuronMetrics
from paceline.models.catalog import resolve_model
from paceline.platforms import detect
from paceline.rpc.server import RpcServer, create_server
from paceline.speculation.alarms import SpeculationAlarms
from paceline.steplog import StepLog
from paceline.transcript import chat
from paceline.transcript.volatile import VolatileBlocks, VolatileRule
from paceline.workflow.canary import Canary, Watch
from paceline.workflow.closing import Closer
from paceline.workflow.deletion import Deletion
from paceline.workflow.dispatch import Dispatcher, Served
from paceline.workflow.identity import new_id
from paceline.workflow.model import Sampling
from paceline.workflow.pooling import PoolRouter
from paceline.workflow.ports import Ledger, Retention
from paceline.workflow.prompts import Prompts
from paceline.workflow.replicas import Replicas
from paceline.workflow.steps import Steps
from paceline.workflow.storing import Unstored
from paceline.workflow.turns import Turns
from paceline.workflow.workflows import Workflows

CHECKPOINT_SECONDS = 1.0
IDLE_CHECK_SECONDS = 60.0
RETENTION_CHECK_SECONDS = 60.0
MIB = 1 << 20

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Runtime:
    """A running Paceline."""

    runtime_id: str
    port: int
    """Port of the gRPC server."""
    metrics_port: int | None
    replicas: Replicas
    ready: asyncio.Event
    """Set once the first replica was ready."""


@asynccontextmanager
async def open_runtime(settings: config.Settings) -> AsyncIterator[Runtime]:
    """Start everything, yield, stop everything: health first, then the steps, engines and the database last.

    Raises `ConfigError`, `ModelError`, `LedgerInUse`, `SchemaOutdated` or `LedgerUnavailable` before anything
    listens. Engines become ready later; their steps wait meanwhile.
    """
    runtime_id = new_id("rt")
    prices = PriceBook.from_settings(settings)
    async with AsyncExitStack() as stack:
        paths = {name: resolve_model(model.path) for name, model in settings.models.items()}
        models = {name: await _serve_model(name, path, settings.models[name]) for name, path in paths.items()}
        ledger = await stack.enter_async_context(_open_ledger(settings, runtime_id))
        replicas = Replicas(settings.limits.max_queued_steps)
        closer, metrics, volatile = Closer(), Metrics(), _volatile(settings)
        canary = _canary(settings, replicas, metrics)
        pools = PoolRouter(replicas)
        prompts = Prompts(ledger, settings.limits.transcript_cache_mib * MIB, volatile)
        unstored = Unstored()
        dispatcher = Dispatcher(
            ledger=ledger,
            closer=closer,
            prompts=prompts,
            unstored=unstored,
            replicas=replicas,
            pools=pools,
            models=models,
            prices=prices,
            observers=(
                pools,
                StepLog(content=settings.log.content),
                metrics,
                SpeculationAlarms(metrics.show_alarm),
                canary,
            ),
            runtime_id=runtime_id,
        )
        turns = Turns()
        deletion = Deletion(ledger, turns, (prompts.forget, unstored.forget), _retention(settings.retention))
        workflows = Workflows(ledger, models, deletion, unstored, pools.workflow_ended)
        steps = Steps(ledger, workflows, dispatcher, volatile, turns)
        stack.push_async_callback(closer.retry)
        _maintain(stack, settings.ledger, dispatcher, closer, deletion, ledger=ledger, runtime_id=runtime_id)
        fleet = Fleet(settings, paths, replicas, config.data_dir() / "logs")
        await fleet.start(stack)
        background.start(stack, "canary", canary.run())
        _watch(metrics, steps, replicas, closer)
        _watch_neuron(stack, settings, metrics)
        metrics_port = _serve_metrics(stack, metrics, settings.server.metrics_listen)
        server = await create_server(
            settings.server, steps=steps, workflows=workflows, costs=CostQueries(ledger), keys=KeyStore(ledger)
        )
        await server.start()
        stack.push_async_callback(_stop_serving, server, steps, settings.server.shutdown_grace_seconds)
        background.start(stack, "health", _report_health(server, fleet))
        log.info("runtime_started", runtime_id=runtime_id, port=server.port, metrics_port=metrics_port)
        yield Runtime(runtime_id, server.port, metrics_port, replicas, fleet.ready)
        log.info("runtime_stopping", running=steps.running())


def _volatile(settings: config.Settings) -> VolatileBlocks:
    rules = settings.volatile.values()
    return VolatileBlocks([VolatileRule(rule.pattern, rule.action == "move") for rule in rules])


def _retention(settings: config.Retention) -> Retention:
    default = None if settings.hours is None else settings.hours * 3600
    return Retention(default, {tenant: hours * 3600 for tenant, hours in settings.tenants.items()})


def _canary(settings: config.Settings, replicas: Replicas, metrics: Metrics) -> Canary:
    watches = {
        model: Watch(
            canary.share,
            canary.max_output_tokens,
            canary.near_tie_logprob,
            config_references.plain_engines(settings, model),
        )
        for model, canary in settings.canary.items()
    }
    profiles = config_references.drafting_profiles(settings)
    return Canary(watches, profiles, replicas, metrics.canary_ended, random.Random())  # noqa: S311 - picks samples


async def _serve_model(name: str, path: str, settings: config.Model) -> Served:
    model = await chat.load(path, settings.template, settings.template_arguments)
    if not model.appendable:
        reasons = [f"{verdict.probe}: {verdict.reason}" for verdict in model.unsafe]
        log.warning(
            "template_cannot_be_continued", model=name, reasons=reasons, effect="every step renders in full"
        )
    return Served(
        name, model, Sampling(settings.sampling_temperature, max_output_tokens=settings.max_output_tokens)
    )


@asynccontextmanager
async def _open_ledger(settings: config.Settings, runtime_id: str) -> AsyncIterator[SqlLedger]:
    url = settings.ledger_url
    await asyncio.to_thread(create_if_missing, url)
    ledger = await SqlLedger.open(url, write_timeout=settings.ledger.write_timeout_seconds, holder=runtime_id)
    try:
        lease = settings.ledger.lease_seconds
        await ledger.register_runtime(runtime_id, socket.gethostname(), os.getpid(), lease)
        orphans = await ledger.close_orphans(runtime_id)
        if orphans:
            log.warning("orphans_closed", count=orphans)
        yield ledger
    finally:
        await ledger.close()


def _maintain(
    stack: AsyncExitStack,
    settings: config.Ledger,
    dispatcher: Dispatcher,
    closer: Closer,
    deletion: Deletion,
    *,
    ledger: Ledger,
    runtime_id: str,
) -> None:
    lease = settings.lease_seconds

    async def renew() -> None:
        await ledger.renew_lease(runtime_id, lease)
        await ledger.close_orphans(runtime_id)

    async def close_idle() -> None:
        await ledger.close_idle(settings.idle_close_hours * 3600)

    async def delete_expired() -> None:
        if count := await deletion.delete_expired():
            log.info("content_expired", workflows=count)

    for name, seconds, work in (
        ("checkpoint", CHECKPOINT_SECONDS, dispatcher.checkpoint),
        ("closes", CHECKPOINT_SECONDS, closer.retry),
        ("lease", lease / 3, renew),
        ("idle", IDLE_CHECK_SECONDS, close_idle),
        ("retention", RETENTION_CHECK_SECONDS, delete_expired),
    ):
        background.start(stack, name, _every(seconds, work))


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` again and again; what fails is tried again at the next turn."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except LedgerUnavailable as error:
            log.warning("ledger_unavailable", error=error.message)
        except Exception:  # a defect; a lease that is no longer renewed would make it worse
            log.exception("maintenance_failed")


def _watch(metrics: Metrics, steps: Steps, replicas: Replicas, closer: Closer) -> None:
    metrics.watch(steps.running, replicas.queued, closer.kept)
    for replica in replicas.all():
        metrics.watch_replica(replica.load)


def _watch_neuron(stack: AsyncExitStack, settings: config.Settings, metrics: Metrics) -> None:
    """Read neuron-monitor where Paceline starts engines on NeuronCores and the tool is there."""
    names = frozenset(name for name, engine in settings.engines.items() if engine.platform == "neuron")
    if not names:
        return
    if tool := detect.neuron_tool("neuron-monitor"):
        monitor = NeuronMonitor(tool, names, NeuronMetrics(metrics.registry))
        background.start(stack, "neuron-monitor", monitor.run())
    else:
        log.info("neuron_monitor_missing", remedy="install aws-neuronx-tools for metrics of NeuronCores")


def _serve_metrics(stack: AsyncExitStack, metrics: Metrics, address: str) -> int | None:
    if not address:
        return None
    host, _, port = address.rpartition(":")
    server, bound = metrics.serve(host, int(port))
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    return bound


async def _report_health(server: RpcServer, fleet: Fleet) -> None:
    """SERVING while any replica takes steps. A dead engine of one model does not hide the others."""
    while True:
        await fleet.changed.wait()
        fleet.changed.clear()
        await server.set_serving(fleet.any_ready())


async def _stop_serving(server: RpcServer, steps: Steps, grace: float) -> None:
    await asyncio.gather(server.stop(grace + 1), steps.close(grace))
