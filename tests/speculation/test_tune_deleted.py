"""Recorded steps whose content is deleted are not replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from paceline.errors import ConfigError
from paceline.speculation.tune.sample import finished_steps, of_steps
from paceline.transcript.context import pack
from paceline.workflow.model import Message, Page, Role, Segments, Step, StepState, Workflow

BASE = Step("s1", "w", "t", "r", "h", StepState.FINISHED, (Message(Role.USER, "hi"),))


def step(step_id: str, *, carried: int = 0) -> Step:
    segments = Segments(carried, pack([1, 2]), pack([3]), "tokenizer", "template")
    return replace(BASE, step_id=step_id, output=Message(Role.ASSISTANT, "x"), segments=segments)


def gone(step_id: str) -> Step:
    return replace(BASE, step_id=step_id, input=())


class Steps:
    """A ledger with one chain."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)

    async def list_steps(self, tenant: str, workflow_id: str, page_size: int, page_token: str) -> Page[Step]:
        return Page(self.steps)

    async def load_chain(self, tenant: str, step_id: str) -> list[Step]:
        place = next(place for place, step in enumerate(self.steps) if step.step_id == step_id)
        return self.steps[: place + 1]


async def test_only_what_is_whole_is_replayed() -> None:
    whole = Steps(step("s1"), step("s2", carried=3))
    assert [one.step_id for one in await of_steps(cast("Any", whole), whole.steps, "tokenizer", 9, 9)] == [
        "s1",
        "s2",
    ]
    lost = Steps(gone("s1"), step("s2", carried=3))
    ((_, found),) = await finished_steps(cast("Any", lost), [Workflow("w", "t", "m")])
    assert len(found) == 2
    with pytest.raises(ConfigError, match="their content is deleted"):
        await of_steps(cast("Any", lost), found, "tokenizer", 9, 9)
