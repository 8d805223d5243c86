"""The repair of one program: ask, edit, test, feed back, until its tests pass or the turns are used up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paceline_agents.repair.edits import EditError, fingerprint
from paceline_agents.repair.plan import Tried, Turn, next_turn
from paceline_agents.repair.subject import Diagnosis, Subject, Verdict
from paceline_agents.types import Answer, SamplingOptions


class Ask(Protocol):
    """One question to the model."""

    async def __call__(self, prompt: str, sampling: SamplingOptions, parent_step_id: str) -> Answer:
        """Ask in the context of a step; empty: of the last one."""


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What became of one turn, for people who watch."""

    number: int
    answer: Answer
    what: str


OnTurn = Callable[[TurnReport], None]


@dataclass(frozen=True, slots=True)
class Repair:
    """The end of a repair: the last version that passed what was shown, else the program as it was."""

    source: str
    verdict: Verdict
    answers: tuple[Answer, ...]


async def repair(subject: Subject, ask: Ask, *, turns: int, on_turn: OnTurn = lambda _: None) -> Repair:
    """Repair a program in at most `turns` questions.

    The first version that passes the tests that may be shown ends the repair; all tests then judge it, once.
    Errors of `ask` pass through.
    """
    diagnosis = await subject.diagnose(subject.source)
    history: list[Tried] = []
    answers: list[Answer] = []
    seen = {fingerprint(subject.source)}
    while len(answers) < turns:
        turn = next_turn(subject.source, subject.function, diagnosis, history)
        answer = await ask(turn.prompt, turn.sampling, turn.parent_step_id)
        answers.append(answer)
        versions, problem = _new_versions(turn, answer.text, seen)
        passing, failed = await _try_out(subject, versions)
        on_turn(TurnReport(len(answers), answer, problem or _summary(passing, failed)))
        if passing is not None:
            return Repair(passing, await subject.judge(passing), tuple(answers))
        history.append(Tried(turn, answer.step_id, tuple(failed)))
    return Repair(subject.source, await subject.judge(subject.source), tuple(answers))


def _new_versions(turn: Turn, text: str, seen: set[str]) -> tuple[list[str], str]:
    """The versions in an answer that were not tried before, and what to say when there is none."""
    try:
        versions = turn.read(text)
    except EditError as error:
        return [], f"no usable edit: {error}"
    fresh = []
    for version in versions:
        mark = fingerprint(version)
        if mark not in seen:
            seen.add(mark)
            fresh.append(version)
    return fresh, "" if fresh else "nothing that was not tried before"


async def _try_out(subject: Subject, versions: list[str]) -> tuple[str | None, list[tuple[str, Diagnosis]]]:
    """The first version that passes, if any, and the failed ones before it."""
    failed: list[tuple[str, Diagnosis]] = []
    for version in versions:
        diagnosis = await subject.diagnose(version)
        if diagnosis.passed:
            return version, failed
        failed.append((version, diagnosis))
    return None, failed


def _summary(passing: str | None, failed: list[tuple[str, Diagnosis]]) -> str:
    tried = len(failed) + (passing is not None)
    versions = "1 new version" if tried == 1 else f"{tried} new versions"
    return f"{versions}, {'one passes' if passing is not None else 'none passes'} the shown tests"
