"""What a successful workflow would cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.speculation.tune.drafts import OFF, Setting
from paceline.speculation.tune.measure import Cell, StepRun
from paceline.speculation.tune.points import studies_of
from paceline.speculation.tune.success import Recorded, recorded, usd_per_success
from paceline.workflow.model import (
    Message,
    Outcome,
    OutcomeKind,
    OutcomeSource,
    Role,
    Step,
    StepState,
    Timings,
    Usage,
    Workflow,
)


def step(text: str, tokens: int, first: float | None) -> Step:
    return Step(
        "s",
        "w",
        "t",
        "r",
        "h",
        StepState.FINISHED,
        (),
        output=Message(Role.ASSISTANT, text),
        usage=Usage(output=tokens),
        timings=Timings(0.0, first, 1.0, 2.0),
    )


def workflow(kind: OutcomeKind | None) -> Workflow:
    return Workflow("w", "t", "m", outcome=Outcome(kind, OutcomeSource.CLIENT) if kind else None)


def test_the_record_is_that_of_the_workflows_with_an_outcome() -> None:
    edit, talk = step("```\nx\n```", 30, 0.5), step("words", 7, None)
    found = recorded(
        [
            (workflow(OutcomeKind.SUCCEEDED), [edit, talk]),
            (workflow(OutcomeKind.FAILED), [edit]),
            (workflow(OutcomeKind.UNKNOWN), [edit]),
            (workflow(None), [talk]),
        ]
    )
    gone = replace(edit, output=None, step_class="code edit")
    assert recorded([(workflow(OutcomeKind.FAILED), [gone])]).output == {"code edit": 30}
    assert found == Recorded(4, 2, 1, 1.0, {"code edit": 60, "free text": 7})


def test_output_costs_by_the_speed_of_its_class() -> None:
    edit = StepRun("a", "code edit", 10, 100, 10.0)
    talk = StepRun("b", "free text", 10, 100, 50.0)
    cells = [Cell(OFF, 2, 0, (edit, talk), 30.0), Cell(Setting("ngram", 4), 2, 0, (edit,), 5.0)]
    (study,) = studies_of(cells, ["ngram"])
    found = Recorded(3, 3, 2, 36.0, {"code edit": 1000, "free text": 200})
    off = (36.0 + 1000 / (10 * 2) + 200 / (2 * 2)) / 3600 * 5 / 2
    assert usd_per_success(found, study, OFF, 5) == pytest.approx(off)
    drafted = (36.0 + 1200 / (10 * 2)) / 3600 * 5 / 2
    assert usd_per_success(found, study, Setting("ngram", 4), 5) == pytest.approx(drafted)
    assert usd_per_success(replace(found, succeeded=0), study, OFF, 5) is None
    assert usd_per_success(found, study, Setting("ngram", 9), 5) is None
