"""Alarms: a pool whose drafter proposes nothing, or whose acceptance collapses with the length of the context.

A pool is the replicas of one model with one speculation profile. Only steps that report their counts are looked
at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import structlog

from paceline.workflow.ports import StepReport
from paceline.workflow.stepclass import CONTEXTS, context_bucket

SILENT_STEPS = 20
SILENT_TOKENS = 2000
"""Without a draft for so many steps and output tokens in a row, a drafter is taken to be broken: a draft model
drafts at every token, and even ngram finds a repeated pair of tokens in any text of that length."""
WINDOW_STEPS = 200
"""Steps of one context bucket that its acceptance is measured over, the newest ones."""
ENOUGH_STEPS = 20
ENOUGH_CHECKS = 300
ENOUGH_ACCEPTED = 50
"""What a mean has to rest on: several texts, several hundred verifications, and in the shortest bucket an
acceptance whose half can be told from chance (50 accepted tokens vary by about 15 %)."""
COLLAPSED = 0.5
"""Accepted tokens per verification, relative to the shortest bucket: longer contexts cost some, not the half."""
RECOVERED = 0.6
"""A raised alarm is cleared from here on, so that it does not come and go at the threshold."""

log = structlog.get_logger()


class Alarm(StrEnum):
    """What is wrong with a pool."""

    PROPOSES_NOTHING = "proposes_nothing"
    ACCEPTANCE_COLLAPSE = "acceptance_collapse"


@dataclass(frozen=True, slots=True)
class Drafts:
    """What one step reported. `context` is the place in `CONTEXTS`; `checks` is None where it is not reported."""

    context: int
    output: int
    drafted: int
    accepted: int
    checks: int | None


@dataclass(slots=True)
class _Silence:
    """Steps and output tokens since the last draft."""

    steps: int = 0
    output: int = 0

    def add(self, step: Drafts) -> None:
        if step.drafted:
            self.steps = self.output = 0
        else:
            self.steps += 1
            self.output += step.output

    @property
    def suspicious(self) -> bool:
        return self.steps >= SILENT_STEPS and self.output >= SILENT_TOKENS


class _Window:
    """Accepted tokens and verifications of the newest steps that had any."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque()
        self.accepted = 0
        self.checks = 0

    def add(self, accepted: int, checks: int) -> None:
        self._steps.append((accepted, checks))
        self.accepted += accepted
        self.checks += checks
        if len(self._steps) > WINDOW_STEPS:
            accepted, checks = self._steps.popleft()
            self.accepted -= accepted
            self.checks -= checks

    @property
    def enough(self) -> bool:
        return len(self._steps) >= ENOUGH_STEPS and self.checks >= ENOUGH_CHECKS

    @property
    def per_check(self) -> float:
        return self.accepted / self.checks


class PoolWatch:
    """The alarms of one pool. Pure: the same steps in the same order raise the same alarms."""

    def __init__(self) -> None:
        self._silences = [_Silence() for _ in CONTEXTS]
        self._windows = [_Window() for _ in CONTEXTS]
        self.raised: Mapping[Alarm, Mapping[str, object]] = {}
        """The alarms that stand, each with what it was last seen by."""

    def add(self, step: Drafts) -> None:
        """Look at one more step."""
        self._silences[step.context].add(step)
        if step.checks:
            self._windows[step.context].add(step.accepted, step.checks)
        found = {Alarm.PROPOSES_NOTHING: self._silent(), Alarm.ACCEPTANCE_COLLAPSE: self._collapsed()}
        self.raised = {alarm: facts for alarm, facts in found.items() if facts}

    def _silent(self) -> Mapping[str, object]:
        for context, silence in zip(CONTEXTS, self._silences, strict=True):
            if silence.suspicious:
                return {"context": context, "steps": silence.steps, "output_tokens": silence.output}
        return {}

    def _collapsed(self) -> Mapping[str, object]:
        measured = [place for place, window in enumerate(self._windows) if window.enough]
        if not measured or self._windows[measured[0]].accepted < ENOUGH_ACCEPTED:
            return {}
        shortest = self._windows[measured[0]].per_check
        least = RECOVERED if Alarm.ACCEPTANCE_COLLAPSE in self.raised else COLLAPSED
        for place in measured[1:]:
            if self._windows[place].per_check < least * shortest:
                return {
                    "context": CONTEXTS[place],
                    "accepted_per_check": round(self._windows[place].per_check, 3),
                    "shortest_context": CONTEXTS[measured[0]],
                    "shortest_accepted_per_check": round(shortest, 3),
                }
        return {}


class ShowAlarm(Protocol):
    """Shows the state of an alarm of a pool."""

    def __call__(self, model: str, profile: str, alarm: str, *, raised: bool) -> None: ...


class SpeculationAlarms:
    """Watches every pool that drafts. An `Observer` of steps: logs an alarm once when it is raised and once when
    it is cleared, and shows its state."""

    def __init__(self, show: ShowAlarm) -> None:
        self._show = show
        self._pools: dict[tuple[str, str], PoolWatch] = {}

    def step_ended(self, report: StepReport) -> None:
        """Look at one attempt."""
        speculation = report.end.speculation
        if not report.draft_limit or speculation.drafted is None:
            return
        pool = report.model, speculation.profile
        watch = self._pools.setdefault(pool, PoolWatch())
        before = watch.raised
        watch.add(
            Drafts(
                context=context_bucket(report.prompt_tokens),
                output=report.end.usage.output or 0,
                drafted=speculation.drafted,
                accepted=speculation.accepted or 0,
                checks=speculation.draft_steps,
            )
        )
        for alarm in Alarm:
            self._tell(pool, alarm, before.get(alarm), watch.raised.get(alarm))

    def _tell(
        self,
        pool: tuple[str, str],
        alarm: Alarm,
        before: Mapping[str, object] | None,
        now: Mapping[str, object] | None,
    ) -> None:
        model, profile = pool
        self._show(model, profile, alarm, raised=now is not None)
        if now and not before:
            log.warning("speculation_alarm", model=model, profile=profile, alarm=alarm, **now)
        elif before and not now:
            log.info("speculation_alarm_cleared", model=model, profile=profile, alarm=alarm)
