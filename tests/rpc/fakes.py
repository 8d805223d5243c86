"""Use cases in memory, scripted by the test, behind the real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import grpc

from paceline.config import Server
from paceline.errors import PacelineError, StepNotFound, Unauthenticated, WorkflowNotFound
from paceline.ledger.keys import ApiKey
from paceline.rpc.server import RpcServer, create_server
from paceline.workflow import events
from paceline.workflow.commands import CreateWorkflow, ForkWorkflow, RunStep
from paceline.workflow.costs import CostFilter, CostSummary
from paceline.workflow.model import (
    Cost,
    FinishReason,
    Message,
    Outcome,
    Page,
    Reuse,
    Role,
    Speculation,
    Step,
    StepState,
    Timings,
    Usage,
    Workflow,
)
from paceline.workflow.ports import WorkflowFilter

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
KEY = "pl_good"
KEY_TENANT = "team-a"

STARTED = events.Started("step-0001", "workflow-1", "request-1")
FINISHED = events.Finished(
    message=Message(Role.ASSISTANT, "Hello"),
    finish_reason=FinishReason.STOP,
    usage=Usage(uncached_prompt=4, cached_prompt=16, output=2),
    reuse=Reuse(20, 16, 4, None, 2, 5, 6, 1),
    speculation=Speculation("ngram", 3, 1, 1.5, 2),
    timings=Timings(0.001, 0.02, 0.3, 0.321),
    cost=Cost(1234, 56, "book", example_price=True),
    malformed_tool_calls=1,
    replica="a",
)


@dataclass
class FakeSteps:
    """Plays `script`: yields events, raises errors, waits at an `asyncio.Event`, and for ever at None."""

    script: Sequence[events.Event | BaseException | asyncio.Event | None] = (STARTED, FINISHED)
    error: Exception | None = None
    commands: list[RunStep] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    streams: list[AsyncGenerator[events.Event, None]] = field(default_factory=list)
    """Held here, so that only an explicit close ends them, never the garbage collector."""

    def run(self, command: RunStep) -> AsyncGenerator[events.Event, None]:
        self.commands.append(command)
        self.streams.append(self._play())
        return self.streams[-1]

    async def _play(self) -> AsyncGenerator[events.Event, None]:
        self.started.set()
        try:
            for item in self.script:
                if item is None:
                    await asyncio.Event().wait()
                elif isinstance(item, asyncio.Event):
                    await item.wait()
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            self.closed.set()

    async def cancel(self, tenant: str, *, step_id: str = "", request_id: str = "") -> Step:
        return await self.get(tenant, step_id=step_id, request_id=request_id)

    async def get(self, tenant: str, *, step_id: str = "", request_id: str = "") -> Step:
        if self.error:
            raise self.error
        if step_id == "missing0":
            raise StepNotFound(f"step {step_id}: no such step", step_id=step_id)
        return Step(
            step_id or "step-0001",
            "workflow-1",
            tenant,
            request_id or "request-1",
            "",
            StepState.FAILED,
            (Message(Role.USER, "Hi"),),
            error_reason="ENGINE_LOST",
            error_message="gone",
        )

    async def list(self, tenant: str, workflow_id: str, page_size: int, page_token: str) -> Page[Step]:
        return Page([await self.get(tenant)], f"{workflow_id}/{page_size}/{page_token}")


@dataclass
class FakeWorkflows:
    """Keeps workflows in a dict by tenant and id."""

    known: dict[tuple[str, str], Workflow] = field(default_factory=dict)

    async def create(self, command: CreateWorkflow) -> Workflow:
        workflow = Workflow(
            command.workflow_id or "workflow-1",
            command.tenant,
            command.model,
            command.system,
            command.tools,
            command.sampling,
            command.labels,
            command.budget,
            command.transcript_policy,
            command.store,
            command.retention_seconds,
            parent_workflow_id=command.parent_workflow_id,
            created_at=NOW,
        )
        return self._keep(workflow)

    async def get(self, tenant: str, workflow_id: str) -> Workflow:
        try:
            return self.known[tenant, workflow_id]
        except KeyError:
            raise WorkflowNotFound(f"workflow {workflow_id}: not found", workflow_id=workflow_id) from None

    async def list(self, tenant: str, where: WorkflowFilter, page_size: int, page_token: str) -> Page[Workflow]:
        return Page([w for (owner, _), w in self.known.items() if owner == tenant and w.labels == where.labels])

    async def finish(self, tenant: str, workflow_id: str, outcome: Outcome) -> Workflow:
        workflow = await self.get(tenant, workflow_id)
        return self._keep(Workflow(workflow.workflow_id, tenant, workflow.model, outcome=outcome))

    async def fork(self, command: ForkWorkflow) -> Workflow:
        source = await self.get(command.tenant, command.workflow_id)
        return self._keep(
            Workflow(
                command.new_workflow_id,
                command.tenant,
                source.model,
                labels=source.labels | command.labels,
                parent_workflow_id=source.workflow_id,
                forked_step_id=command.step_id,
            )
        )

    async def delete_content(self, tenant: str, workflow_id: str) -> Workflow:
        workflow = await self.get(tenant, workflow_id)
        return self._keep(replace(workflow, system="", tools=(), content_deleted_at=NOW))

    def _keep(self, workflow: Workflow) -> Workflow:
        self.known[workflow.tenant, workflow.workflow_id] = workflow
        return workflow


@dataclass
class FakeCosts:
    """Answers each query with one summary and keeps what was asked."""

    asked: list[object] = field(default_factory=list)

    async def workflow_cost(self, tenant: str, workflow_id: str, *, include_children: bool) -> CostSummary:
        self.asked.append((tenant, workflow_id, include_children))
        return CostSummary(workflows=1, list_nanos=7)

    async def query(
        self, tenant: str, group_by: tuple[str, ...], where: CostFilter, page_size: int, page_token: str
    ) -> Page[CostSummary]:
        self.asked.append((tenant, group_by, where, page_size, page_token))
        return Page([CostSummary(group=("m",), cost_per_success_nanos=0)], "next")


class FakeKeys:
    """Knows one key."""

    async def verify(self, key: str) -> ApiKey:
        if key != KEY:
            raise Unauthenticated
        return ApiKey("key-1", KEY_TENANT, "", NOW, None)


@dataclass
class Served:
    """A running server, its use cases and a channel to it."""

    server: RpcServer
    channel: grpc.aio.Channel
    steps: FakeSteps
    workflows: FakeWorkflows
    costs: FakeCosts


async def make_server(settings: Server, steps: FakeSteps | None = None) -> RpcServer:
    """Make a server over fakes."""
    return await create_server(
        settings, steps=steps or FakeSteps(), workflows=FakeWorkflows(), costs=FakeCosts(), keys=FakeKeys()
    )


@asynccontextmanager
async def serving(
    settings: Server | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    options: Sequence[tuple[str, object]] = (),
) -> AsyncIterator[Served]:
    """Serve fakes on a free loopback port."""
    settings = settings or Server(listen="127.0.0.1:0")
    steps, workflows, costs = FakeSteps(), FakeWorkflows(), FakeCosts()
    server = await create_server(settings, steps=steps, workflows=workflows, costs=costs, keys=FakeKeys())
    await server.start()
    await server.set_serving(True)
    target = f"localhost:{server.port}" if credentials else f"127.0.0.1:{server.port}"
    try:
        async with (
            grpc.aio.secure_channel(target, credentials, options=options)
            if credentials
            else grpc.aio.insecure_channel(target, options=options)
        ) as channel:
            yield Served(server, channel, steps, workflows, costs)
    finally:
        await server.stop(0)


def every_error_class() -> list[type[PacelineError]]:
    """Return all error classes of the product, the root left out."""
    found: list[type[PacelineError]] = []
    pending = [PacelineError]
    while pending:
        subclasses = [c for c in pending.pop().__subclasses__() if c.__module__ == "paceline.errors"]
        found += subclasses
        pending += subclasses
    return found
