"""Alarms: what raises them, what does not, and what is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from paceline.speculation.alarms import (
    COLLAPSED,
    ENOUGH_CHECKS,
    ENOUGH_STEPS,
    RECOVERED,
    SILENT_STEPS,
    SILENT_TOKENS,
    WINDOW_STEPS,
    Alarm,
    Drafts,
    PoolWatch,
    SpeculationAlarms,
)
from paceline.workflow.model import Cost, Speculation, StepState, Timings, Usage
from paceline.workflow.ports import AttemptEnd, StepReport
from paceline.workflow.stepclass import CONTEXTS, context_bucket

SILENT = Drafts(0, SILENT_TOKENS // SILENT_STEPS, 0, 0, 0)
CHECKS = ENOUGH_CHECKS // ENOUGH_STEPS


def alarms(*steps: Drafts) -> set[Alarm]:
    watch = PoolWatch()
    for step in steps:
        watch.add(step)
    return set(watch.raised)


def some(context: int, per_check: float, count: int = ENOUGH_STEPS) -> list[Drafts]:
    """As many steps as are looked at, of which each verification accepts so many tokens on average."""
    accepted = round(CHECKS * per_check)
    assert accepted == pytest.approx(CHECKS * per_check)
    return [Drafts(context, CHECKS + accepted, CHECKS * 4, accepted, CHECKS)] * count


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(0, 0), (1024, 0), (1025, 1), (4096, 1), (4097, 2), (65_536, 3), (65_537, 4)]
)
def test_buckets_of_the_context(tokens: int, bucket: int) -> None:
    assert context_bucket(tokens) == bucket
    assert len(CONTEXTS) == 5


def test_a_drafter_that_proposes_nothing_for_long() -> None:
    assert alarms(*[SILENT] * (SILENT_STEPS - 1)) == set()
    assert alarms(*[SILENT] * SILENT_STEPS) == {Alarm.PROPOSES_NOTHING}


def test_few_tokens_tell_nothing() -> None:
    short = replace(SILENT, output=SILENT.output - 1)
    assert alarms(*[short] * SILENT_STEPS) == set()
    assert alarms(*[short] * (2 * SILENT_STEPS)) == {Alarm.PROPOSES_NOTHING}


def test_one_draft_ends_the_silence_of_its_context_only() -> None:
    silence = [SILENT] * SILENT_STEPS
    assert alarms(*silence, replace(SILENT, drafted=1, checks=1)) == set()
    other = Drafts(1, 100, 40, 30, 10)
    assert alarms(*[one for step in silence for one in (step, other)]) == {Alarm.PROPOSES_NOTHING}


def test_drafts_whose_verifications_are_not_reported_are_drafts() -> None:
    assert alarms(*[Drafts(0, 1000, 40, 30, None)] * SILENT_STEPS) == set()


@pytest.mark.parametrize("longer", range(1, len(CONTEXTS)))
def test_acceptance_that_collapses_with_the_context(longer: int) -> None:
    assert alarms(*some(0, 2.0), *some(longer, 0.8)) == {Alarm.ACCEPTANCE_COLLAPSE}
    assert alarms(*some(0, 2.0), *some(longer, 2.0 * COLLAPSED)) == set()
    assert alarms(*some(0, 0.8), *some(longer, 2.0)) == set()


def test_the_shortest_context_that_was_seen_often_enough_is_the_measure() -> None:
    rare = some(0, 4.0, ENOUGH_STEPS - 1)
    assert alarms(*rare, *some(1, 2.0), *some(2, 1.2)) == set()
    assert alarms(*rare, *some(1, 2.0), *some(2, 0.8)) == {Alarm.ACCEPTANCE_COLLAPSE}


@pytest.mark.parametrize(
    "steps",
    [
        [*some(0, 2.0), *some(3, 0.2, ENOUGH_STEPS - 1)],
        [*some(0, 2.0), *[Drafts(3, 15, 60, 1, CHECKS - 1)] * ENOUGH_STEPS],
        [*some(0, 2.0), Drafts(3, 9000, 36_000, 100, 9000)],
        [*[Drafts(0, 17, 60, 2, CHECKS)] * ENOUGH_STEPS, *some(3, 0.0)],
    ],
    ids=["few steps", "few checks", "one text", "too little acceptance for a half"],
)
def test_what_is_too_little_to_tell(steps: list[Drafts]) -> None:
    assert alarms(*steps) == set()


def test_old_steps_do_not_count_and_the_threshold_is_not_crossed_to_and_fro() -> None:
    watch = PoolWatch()
    for step in [*some(0, 2.0), *some(2, 0.8, WINDOW_STEPS)]:
        watch.add(step)
    assert set(watch.raised) == {Alarm.ACCEPTANCE_COLLAPSE}
    seen = []
    for step in some(2, 2.0, WINDOW_STEPS):
        watch.add(step)
        seen.append(bool(watch.raised))
    cleared = seen.index(False)
    assert not any(seen[cleared:])
    # The mean of the window grows from 0.8 by 1.2 / WINDOW_STEPS with each step.
    assert cleared + 1 == pytest.approx((2.0 * RECOVERED - 0.8) / 1.2 * WINDOW_STEPS, abs=1)


def report(speculation: Speculation, *, limit: int = 4, output: int | None = SILENT.output) -> StepReport:
    end = AttemptEnd(
        attempt_id="at-1",
        step_id="st-1",
        workflow_id="wf-1",
        state=StepState.FINISHED,
        usage=Usage(output=output),
        speculation=speculation,
        timings=Timings(0.0, None, None, 0.0),
        cost=Cost(),
        replica="r",
        ended_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return StepReport(
        tenant="t",
        model="m",
        workflow_id="wf-1",
        step_id="st-1",
        request_id="rq-1",
        attempt_id="at-1",
        attempt=1,
        prompt_tokens=5000,
        draft_limit=limit,
        input=(),
        request=None,
        end=end,
    )


class Board:
    """What was shown last."""

    def __init__(self) -> None:
        self.shown: dict[tuple[str, str, str], bool] = {}

    def __call__(self, model: str, profile: str, alarm: str, *, raised: bool) -> None:
        self.shown[model, profile, alarm] = raised


def test_an_alarm_is_told_once_when_raised_and_once_when_cleared() -> None:
    board = Board()
    watch = SpeculationAlarms(board)
    silent, other = report(Speculation("k4", 0, 0, None, 0)), report(Speculation("k2", 8, 4, 1.5, 8))
    with capture_logs() as lines:
        watch.step_ended(silent)
        assert board.shown == {("m", "k4", alarm): False for alarm in Alarm}
        for _ in range(2 * SILENT_STEPS):
            watch.step_ended(silent)
            watch.step_ended(other)
        assert [pool for pool, raised in board.shown.items() if raised] == [("m", "k4", "proposes_nothing")]
        for _ in range(2):
            watch.step_ended(report(Speculation("k4", 4, 0, 1.0, 1)))
    assert not any(board.shown.values())
    pool = {"model": "m", "profile": "k4", "alarm": "proposes_nothing"}
    facts = {"context": "<=16384", "steps": SILENT_STEPS, "output_tokens": SILENT_TOKENS}
    assert lines == [
        {"event": "speculation_alarm", "log_level": "warning", **pool, **facts},
        {"event": "speculation_alarm_cleared", "log_level": "info", **pool},
    ]


@pytest.mark.parametrize(
    "one",
    [report(Speculation("k4")), report(Speculation("none", 0, 0, None, 0), limit=0)],
    ids=["no counts", "no speculation"],
)
def test_what_says_nothing_about_drafts_is_not_looked_at(one: StepReport) -> None:
    board = Board()
    watch = SpeculationAlarms(board)
    with capture_logs() as lines:
        for _ in range(3 * SILENT_STEPS):
            watch.step_ended(one)
    assert (lines, board.shown) == ([], {})
