"""The use case: run a step once per request id, whoever asks how often, and account for it on every end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import structlog

from paceline.errors import (
    ClientGone,
    InternalError,
    InvalidArgument,
    PacelineError,
    RequestIdReused,
    ShuttingDown,
    StepCancelled,
    StepNotFound,
    WorkflowBusy,
    WorkflowFinished,
)
from paceline.transcript.chainhash import ChainHash
from paceline.transcript.volatile import VolatileBlocks
from paceline.workflow import outcome
from paceline.workflow.commands import ForkWorkflow, OnBusy, RunStep
from paceline.workflow.dispatch import Dispatcher
from paceline.workflow.events import Event, Phase
from paceline.workflow.finding import Finder, Made
from paceline.workflow.identity import new_id, step_hash, workflow_hash
from paceline.workflow.model import Page, Step, StepState, Workflow
from paceline.workflow.ports import Ledger
from paceline.workflow.run import StepRun
from paceline.workflow.turns import Turns, turn_of
from paceline.workflow.validation import check_page, check_run_step
from paceline.workflow.workflows import Workflows

ELSEWHERE_POLL_SECONDS = 0.5
"""How often a step that runs in another process is looked up."""

log = structlog.get_logger()


class Steps:
    """Runs, finds and cancels steps. One per process."""

    def __init__(
        self,
        ledger: Ledger,
        workflows: Workflows,
        dispatcher: Dispatcher,
        volatile: VolatileBlocks,
        turns: Turns,
    ) -> None:
        self._ledger = ledger
        self._workflows = workflows
        self._dispatcher = dispatcher
        self._turns = turns
        self._finder = Finder(ledger, workflows, volatile, self._busy)
        self._runs: dict[tuple[str, str], StepRun] = {}
        self._closing = False

    def running(self) -> int:
        """How many steps are under way in this process."""
        return len(self._runs)

    async def run(self, command: RunStep) -> AsyncGenerator[Event, None]:
        """Yield the events of the step; closing the iterator is one reader gone.

        A request id seen before attaches to the running step, replays the finished one, or runs one again that
        ended in a retryable way. Where the client names neither workflow nor request, so does the same request as
        that of a step which nobody reads or which got no answer. Raises any `PacelineError`.
        """
        if command.tools or command.response_format:  # schemas that were never seen take milliseconds each
            await asyncio.to_thread(check_run_step, command)
        else:
            check_run_step(command)
        digest = step_hash(command)
        chain = None if command.workflow_id else await self._finder.chain(command)
        if not command.request_id:
            again = await self._retried(command, digest, chain) if chain else None
            command = replace(command, request_id=again or new_id("rq"))
        run, attached = await self._join(command, digest, chain)
        async with aclosing(run.read(command.detach_grace, attached=attached)) as events:
            async for event in events:
                yield event

    async def cancel(self, tenant: str, *, step_id: str = "", request_id: str = "") -> Step:
        """Abort a running step and return it, ended. A step of another process is left running there."""
        _check_key(step_id, request_id)
        run = self._find_run(tenant, step_id, request_id)
        if run is None:
            return await self.get(tenant, step_id=step_id, request_id=request_id)
        run.abort(StepCancelled())
        await run.ended()
        stored = await self._ledger.find_step(tenant, run.command.request_id)
        return stored or run.unstored(StepState.CANCELLED, StepCancelled.reason)

    async def get(self, tenant: str, *, step_id: str = "", request_id: str = "") -> Step:
        """Return one step by either id."""
        _check_key(step_id, request_id)
        if step_id:
            return await self._ledger.get_step(tenant, step_id)
        step = await self._ledger.find_step(tenant, request_id)
        if step is None:
            raise StepNotFound(f"no step with request_id {request_id}", request_id=request_id)
        return step

    async def list(self, tenant: str, workflow_id: str, page_size: int, page_token: str) -> Page[Step]:
        """The steps of a workflow, oldest first."""
        size = check_page(page_size, page_token)
        await self._ledger.get_workflow(tenant, workflow_id)
        return await self._ledger.list_steps(tenant, workflow_id, size, page_token)

    async def close(self, grace: float) -> None:
        """Take no more steps, let the running ones go on for `grace` seconds or until this is cancelled, then
        abort them and wait for their ends."""
        self._closing = True
        ends = [asyncio.create_task(run.ended()) for run in self._runs.values()]
        if not ends:
            return
        try:
            await asyncio.wait(ends, timeout=grace)
        finally:
            for run in list(self._runs.values()):
                run.abort(ShuttingDown())
            await asyncio.wait(ends)

    async def _retried(self, command: RunStep, digest: str, chain: ChainHash) -> str | None:
        """The id of the request that this one, which has none, repeats: one that nobody reads, or that has no
        answer."""
        own = (run for (owner, _), run in self._runs.items() if owner == command.tenant)
        same = (run for run in own if run.chain and (run.chain.whole, run.request_hash) == (chain.whole, digest))
        if unread := next((run for run in same if run.unread), None):
            return unread.command.request_id
        found = await self._finder.retried(command, chain, digest)
        return None if (command.tenant, found) in self._runs else found

    async def _join(self, command: RunStep, digest: str, chain: ChainHash | None) -> tuple[StepRun, bool]:
        """The run of this request, and whether it was there before. One that ends because its readers are gone
        is waited for, and the step then runs again."""
        key = (command.tenant, command.request_id)
        while run := self._runs.get(key):
            _check_same(command, digest, run.request_hash)
            if not isinstance(run.why, ClientGone):
                return run, True
            await run.ended()
        if self._closing:
            raise ShuttingDown
        run = self._runs[key] = StepRun(command, digest, chain)
        run.start(self._guarded(run))
        return run, False

    def _find_run(self, tenant: str, step_id: str, request_id: str) -> StepRun | None:
        if request_id:
            return self._runs.get((tenant, request_id))
        own = (run for (owner, _), run in self._runs.items() if owner == tenant)
        return next((run for run in own if run.step_id == step_id), None)

    async def _guarded(self, run: StepRun) -> None:
        """Run the step; whatever happens, the readers learn of it and the run leaves the registry."""
        error: PacelineError | None = None
        try:
            await self._drive(run)
        except PacelineError as failure:
            error = failure
        except asyncio.CancelledError:
            error = run.why or ShuttingDown()
        except Exception:  # a bug must not leave readers hanging; clients see a fixed message
            log.exception("step_crashed", step_id=run.step_id, request_id=run.command.request_id)
            error = InternalError()
        finally:
            run.quiet()
            del self._runs[run.command.tenant, run.command.request_id]
            run.log.close(error)

    async def _drive(self, run: StepRun) -> None:
        """The usual case, a new request for a workflow that is not busy, takes one look into the ledger."""
        command = run.command
        turn = turn_of(command.tenant, command.workflow_id)
        if command.workflow_id and not self._turns.busy(turn):
            async with self._turns.take(turn):
                workflow = await self._ledger.workflow_for(command.tenant, command.workflow_id, command.request_id)
                if workflow:
                    await self._execute(run, workflow, new_id("st"), None)
                    return
        await self._drive_any(run)

    async def _drive_any(self, run: StepRun) -> None:
        stored = await self._settled(run)
        if stored is None and run.chain:
            await self._drive_found(run, run.chain)
            return
        run.match = stored.match if stored else None
        if stored and stored.state is StepState.FINISHED:
            events = outcome.replay_of(stored)
            run.identify(stored.step_id, stored.workflow_id)
            run.begin(replayed=True)
            for event in events:
                run.log.add(event)
            return
        if stored and not outcome.retryable(stored.error_reason):
            raise outcome.error_of(stored)
        workflow_id = await self._when_busy(run, stored)
        step_id = stored.step_id if stored else new_id("st")
        turn = turn_of(run.command.tenant, workflow_id)
        if self._turns.busy(turn):
            run.identify(step_id, workflow_id)
            run.begin()
            run.show(Phase.WORKFLOW_BUSY)
        async with self._turns.take(turn):
            await self._execute(run, await self._workflow(run, workflow_id), step_id, stored)

    async def _drive_found(self, run: StepRun, chain: ChainHash) -> None:
        """A new request that names no workflow."""
        tenant = run.command.tenant
        async with self._finder.find(run.command, chain) as found:
            run.match, run.made = found.match, found.made
            async with self._turns.take(turn_of(tenant, found.workflow_id)):
                await self._execute(run, await self._workflow(run, found.workflow_id), new_id("st"), None)

    async def _workflow(self, run: StepRun, workflow_id: str) -> Workflow:
        """The workflow to run in, which the ledger may not have yet."""
        return run.made.workflow if run.made else await self._ledger.get_workflow(run.command.tenant, workflow_id)

    async def _execute(self, run: StepRun, workflow: Workflow, step_id: str, stored: Step | None) -> None:
        _check_open(workflow)
        _check_model(run.command, workflow)
        run.identify(step_id, workflow.workflow_id)
        await self._dispatcher.execute(run, workflow, stored)

    def _busy(self, tenant: str, workflow_id: str) -> bool:
        return self._turns.busy(turn_of(tenant, workflow_id))

    async def _when_busy(self, run: StepRun, stored: Step | None) -> str:
        """The workflow to run in: a fork of it when it is busy and the client asked for one."""
        command = run.command
        workflow_id = stored.workflow_id if stored else command.workflow_id
        if self._busy(command.tenant, workflow_id):
            if command.on_busy is OnBusy.FAIL:
                raise WorkflowBusy(
                    f"workflow {workflow_id} is running another step; wait for it or fork", workflow_id=workflow_id
                )
            if command.on_busy is OnBusy.FORK and stored is None:
                fork = ForkWorkflow(command.tenant, workflow_id, command.parent_step_id)
                run.made = Made(await self._workflows.planned_fork(fork), workflow_hash(fork))
                return run.made.workflow.workflow_id
        return workflow_id

    async def _settled(self, run: StepRun) -> Step | None:
        """The stored step of this request id once it is not running anywhere; None for a new request."""
        while stored := await self._ledger.find_step(run.command.tenant, run.command.request_id):
            _check_same(run.command, run.request_hash, stored.request_hash)
            if stored.state.ended:
                return stored
            run.identify(stored.step_id, stored.workflow_id)
            run.begin(attached=True)
            run.show(Phase.WORKFLOW_BUSY)
            await asyncio.sleep(ELSEWHERE_POLL_SECONDS)
        return None


def _check_key(step_id: str, request_id: str) -> None:
    if bool(step_id) == bool(request_id):
        raise InvalidArgument("set exactly one of step_id and request_id", field="step_id")


def _check_same(command: RunStep, digest: str, known: str) -> None:
    if digest != known:
        raise RequestIdReused(
            f"request_id {command.request_id} was used for another request; choose a new one",
            request_id=command.request_id,
        )


def _check_open(workflow: Workflow) -> None:
    if workflow.outcome:
        raise WorkflowFinished(
            f"workflow {workflow.workflow_id} is finished ({workflow.outcome.kind}); fork it to go on",
            workflow_id=workflow.workflow_id,
        )


def _check_model(command: RunStep, workflow: Workflow) -> None:
    if command.workflow_id and command.model not in {"", workflow.model}:
        raise InvalidArgument(
            f"model: workflow {workflow.workflow_id} has the model {workflow.model}, not {command.model}; "
            "leave it out, or name another workflow",
            field="model",
            model=workflow.model,
        )
