"""Repairs as workflows of a Paceline server: one workflow a program, finished with its true outcome."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.errors import PacelineError
from paceline_agents.aio import AsyncClient, AsyncWorkflowHandle
from paceline_agents.repair.loop import Repair, TurnReport, repair
from paceline_agents.repair.prompts import SYSTEM
from paceline_agents.repair.report import ProgramReport
from paceline_agents.repair.subject import Subject
from paceline_agents.types import Answer, Finished, OutcomeKind, OutcomeSource, Progress, SamplingOptions

_STEP_SECONDS = 900.0
_FINISH_SECONDS = 5.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to repair."""

    turns: int = 8
    """Most questions a program."""
    model: str = ""
    """Model name; empty: the server's only one."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the workflows; `agent` and `program` are added."""
    workers: int = 1
    """Programs at a time."""


async def run_all(
    client: AsyncClient, subjects: Sequence[Subject], options: RunOptions, say: Say
) -> list[tuple[ProgramReport, str]]:
    """Repair all programs; returns the report and the last version of each, in their order."""
    places = asyncio.Semaphore(options.workers)

    async def one(subject: Subject) -> tuple[ProgramReport, str]:
        async with places:
            return await run_one(client, subject, options, say)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(subject)) for subject in subjects]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]


async def run_one(
    client: AsyncClient, subject: Subject, options: RunOptions, say: Say
) -> tuple[ProgramReport, str]:
    """Repair one program in a workflow of its own; returns the report and the last version.

    A step that fails for good abandons the workflow, which is reported and not raised. Raises PacelineError when
    the workflow cannot be created, or not be finished.
    """
    labels = {**options.labels, "agent": "paceline-agent", "program": subject.name}
    workflow = await client.create_workflow(model=options.model, system=SYSTEM, labels=labels)
    asker = _Asker(workflow, subject.name, say)
    started = time.monotonic()
    try:
        result = await repair(subject, asker, turns=options.turns, on_turn=asker.report)
    except PacelineError as error:
        await workflow.finish(OutcomeKind.ABANDONED, note=f"{error.reason}: {error}"[:1000])
        return await _report(workflow, asker, started, "abandoned", str(error)), subject.source
    except BaseException:
        await _abandon(workflow)
        raise
    await _finish(workflow, result)
    outcome = "repaired" if result.verdict.passed else "failed"
    return await _report(workflow, asker, started, outcome, result.verdict.note), result.source


class _Asker:
    """Asks in a workflow and says what happens."""

    def __init__(self, workflow: AsyncWorkflowHandle, name: str, say: Say) -> None:
        self._workflow, self._name, self._say = workflow, name, say
        self.answers: list[Answer] = []

    async def __call__(self, prompt: str, sampling: SamplingOptions, *, fresh: bool) -> Answer:
        """Run one step. A fresh conversation stays in the workflow: a branch from its root."""
        stream = self._workflow.step(prompt, whole_conversation=fresh, timeout=_STEP_SECONDS, **sampling)
        phase = ""
        async with stream:
            async for event in stream:
                if isinstance(event, Progress) and event.phase not in {phase, "prefill"}:
                    phase = event.phase
                    self._say(f"{self._name}: waits ({phase.replace('_', ' ')})")
                if isinstance(event, Finished):
                    self.answers.append(event.answer)
            return await stream.result()

    def report(self, turn: TurnReport) -> None:
        """Say what became of a turn."""
        usage = turn.answer.usage
        counts = f"{_count(usage.output)} tokens in {turn.answer.timings.total:.1f} s"
        self._say(f"{self._name}: turn {turn.number}: {counts}, {turn.what}")


def _count(value: int | None) -> str:
    return "?" if value is None else str(value)


async def _finish(workflow: AsyncWorkflowHandle, result: Repair) -> None:
    await workflow.finish(
        OutcomeKind.SUCCEEDED if result.verdict.passed else OutcomeKind.FAILED,
        source=OutcomeSource.CHECK_COMMAND,
        note=result.verdict.note[:1000],
        check_exit_code=result.verdict.exit_code,
    )


async def _abandon(workflow: AsyncWorkflowHandle) -> None:
    """Say that the workflow was given up, if the server can still be reached within a moment."""
    with contextlib.suppress(PacelineError, TimeoutError):
        async with asyncio.timeout(_FINISH_SECONDS):
            await workflow.finish(OutcomeKind.ABANDONED, note="the agent was stopped")


async def _report(
    workflow: AsyncWorkflowHandle, asker: _Asker, started: float, outcome: str, note: str
) -> ProgramReport:
    cost = await workflow.cost()
    name = workflow.info.labels.get("program", "")
    seconds = time.monotonic() - started
    return ProgramReport.of(
        name=name,
        workflow_id=workflow.workflow_id,
        outcome=outcome,
        note=note,
        answers=asker.answers,
        cost=cost,
        seconds=seconds,
    )
