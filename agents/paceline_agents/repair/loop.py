"""The repair of one program: ask, edit, test, feed back, until its tests pass or the turns are used up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paceline.errors import EngineRefused
from paceline_agents.repair.edits import EditError, fingerprint
from paceline_agents.repair.plan import Planner, Tried
from paceline_agents.repair.subject import Diagnosis, Subject, Verdict
from paceline_agents.types import Answer, SamplingOptions


class Ask(Protocol):
    """One question to the model."""

    async def __call__(self, prompt: str, sampling: SamplingOptions, *, fresh: bool) -> Answer:
        """Ask in a fresh conversation, or in the one of the last question."""


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What became of one turn, for people who watch."""

    number: int
    answer: Answer
    what: str


OnTurn = Callable[[TurnReport], None]


@dataclass(frozen=True, slots=True)
class Repair:
    """The end of a repair: the version that passed what was shown, else the program as it was."""

    source: str
    verdict: Verdict
    answers: tuple[Answer, ...]


async def repair(subject: Subject, ask: Ask, *, turns: int, on_turn: OnTurn = lambda _: None) -> Repair:
    """Repair a program in at most `turns` questions.

    The first version that passes the tests that may be shown ends the repair; all tests then judge it, once.
    Errors of `ask` pass through, but a refused sampled turn ends the repair.
    """
    planner = Planner(subject.source, subject.function, await subject.diagnose(subject.source))
    history: list[Tried] = []
    answers: list[Answer] = []
    seen = {fingerprint(subject.source)}
    while len(answers) < turns:
        turn = planner.next_turn(history)
        try:
            answer = await ask(turn.prompt, turn.sampling, fresh=turn.fresh)
        except EngineRefused:
            if not turn.sampling.get("temperature"):
                raise
            break  # an engine that only takes greedy steps, and all greedy questions have been asked
        answers.append(answer)
        version, what, diagnosis = await _try_out(subject, turn.read, answer.text, seen)
        on_turn(TurnReport(len(answers), answer, what))
        if diagnosis is not None and diagnosis.passed:
            return Repair(version, await subject.judge(version), tuple(answers))
        history.append(Tried(turn, version, diagnosis))
    return Repair(subject.source, await subject.judge(subject.source), tuple(answers))


async def _try_out(
    subject: Subject, read: Callable[[str], str], text: str, seen: set[str]
) -> tuple[str, str, Diagnosis | None]:
    """The version in an answer, what to say about it, and its diagnosis if it is new."""
    try:
        version = read(text)
    except EditError as error:
        return "", f"no usable edit: {error}", None
    mark = fingerprint(version)
    if mark in seen:
        return version, "a version that was tried before", None
    seen.add(mark)
    diagnosis = await subject.diagnose(version)
    return version, "the shown tests pass" if diagnosis.passed else "a new version, still wrong", diagnosis
