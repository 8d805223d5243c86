"""One running step: its task, its events and its readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from paceline.errors import ClientGone, PacelineError
from paceline.transcript.chainhash import ChainHash
from paceline.workflow.commands import RunStep
from paceline.workflow.eventlog import EventLog
from paceline.workflow.events import Event, Phase, Progress, Started
from paceline.workflow.finding import Made
from paceline.workflow.model import Step, StepState, WorkflowMatch

KEEPALIVE_SECONDS = 10.0
"""A step that has nothing to show yet says so at least this often."""


class StepRun:
    """Owns the task that runs a step. The task ends by itself, or by `abort` with the reason for it."""

    def __init__(self, command: RunStep, request_hash: str, chain: ChainHash | None = None) -> None:
        self.command = command
        self.request_hash = request_hash
        self.chain = chain
        """Of the conversation; None when the client names the workflow."""
        self.match: WorkflowMatch | None = None
        """How the workflow was found; None when the client named it, and before."""
        self.made: Made | None = None
        """The workflow, if it is to be made with the step."""
        self.step_id = ""
        self.workflow_id = ""
        self.arrived = time.monotonic()
        self.log = EventLog()
        self.why: PacelineError | None = None
        """Why the task was cancelled."""
        self._task: asyncio.Task[None] | None = None
        self._begun = False
        self._readers = 0
        self._grace = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start the task. It must not raise."""
        self._task = asyncio.create_task(work, name=f"step {self.command.request_id}")

    def identify(self, step_id: str, workflow_id: str) -> None:
        """Note which step this is."""
        self.step_id, self.workflow_id = step_id, workflow_id

    def begin(self, *, replayed: bool = False, attached: bool = False) -> None:
        """Tell the readers which step this is; only the first call does."""
        if not self._begun:
            self._begun = True
            ids = self.step_id, self.workflow_id, self.command.request_id
            self.log.add(Started(*ids, replayed, attached, self.match))

    @property
    def unread(self) -> bool:
        """Whether nobody reads it, and it runs on or was let go for that."""
        return not self._readers and (self.why is None or isinstance(self.why, ClientGone))

    def abort(self, error: PacelineError) -> None:
        """Cancel the task; its readers get `error`. Does nothing to one that has ended or is ending."""
        if self._task and not self._task.done() and self.why is None:
            self.why = error
            # In the next round of the loop: a task that is cancelled before it began never runs its `finally`.
            asyncio.get_running_loop().call_soon(self._task.cancel)

    async def ended(self) -> None:
        """Wait until the task has ended."""
        if self._task:
            await asyncio.wait([self._task])

    def unstored(self, state: StepState, reason: str) -> Step:
        """The step, when it ended before the ledger had it."""
        return Step(
            step_id=self.step_id,
            workflow_id=self.workflow_id or self.command.workflow_id,
            tenant=self.command.tenant,
            request_id=self.command.request_id,
            request_hash=self.request_hash,
            state=state,
            input=(),
            error_reason=reason,
        )

    def show(self, phase: Phase, position: int = 0) -> None:
        """Tell the readers the phase now, and again every 10 s until `quiet`."""
        self.quiet()
        self.log.add(Progress(phase, position, time.monotonic() - self.arrived))
        self._beat = asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, self.show, phase, position)

    def quiet(self) -> None:
        """No more progress events: there is something to show, or it is over."""
        if self._beat:
            self._beat.cancel()
            self._beat = None

    async def read(self, detach_grace: float, *, attached: bool) -> AsyncGenerator[Event, None]:
        """Yield the step's events from the first on. When the last reader stops, the step is aborted after the
        longest grace that any reader asked for, in seconds."""
        self._readers += 1
        self._grace = max(self._grace, detach_grace)
        if self._timer:
            self._timer.cancel()
        try:
            async with aclosing(self.log.read()) as events:
                async for event in events:
                    yield replace(event, attached=True) if attached and isinstance(event, Started) else event
        finally:
            self._readers -= 1
            if self._readers == 0:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._grace, self.abort, ClientGone())
