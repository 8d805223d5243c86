"""Which forms of an answer are refused, and by which name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from paceline import config, platforms
from paceline.engines.base import Engine, EngineInfo
from paceline.errors import EngineRefused, InvalidArgument
from paceline.routing.placement import ReplicaLoad
from paceline.transcript import chat
from paceline.workflow.answerform import callable_tools, form_of
from paceline.workflow.commands import Append, ResponseFormat, RunStep, ToolChoice, ToolChoiceMode
from paceline.workflow.model import Message, Role, Tool
from paceline.workflow.replicas import Replica
from paceline.workflow.validation import check_run_step

RUN = RunStep("t", "workflow-1", "", Append((Message(Role.USER, "Hi"),)))
TOOLS = (Tool("read"), Tool("write"))
REQUIRED, NONE = ToolChoice(ToolChoiceMode.REQUIRED), ToolChoice(ToolChoiceMode.NONE)
JSON = ResponseFormat('{"type": "object"}')


def named(name: str) -> ToolChoice:
    """The choice of one tool."""
    return ToolChoice(ToolChoiceMode.NAMED, name)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tool_choice": named("")}, "tool_choice.tool_name"),
        ({"tool_choice": ToolChoice(ToolChoiceMode.REQUIRED, "read")}, "tool_choice.tool_name"),
        ({"tool_choice": ToolChoice(tool_name="read")}, "tool_choice.tool_name"),
        ({"tool_choice": REQUIRED, "response_format": JSON}, "response_format"),
        ({"tool_choice": named("read"), "response_format": JSON}, "response_format"),
        ({"response_format": ResponseFormat("[]")}, "response_format.json_schema"),
        ({"response_format": ResponseFormat('{"type": "nothing"}')}, "response_format.json_schema"),
        ({"response_format": ResponseFormat('{"$ref": "http://x/"}')}, "response_format.json_schema"),
    ],
)
def test_what_cannot_be_wanted_at_all(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_run_step(replace(RUN, **change))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "change", [{"tool_choice": NONE}, {"tool_choice": named("read")}, {"response_format": JSON}]
)
def test_what_can_be_wanted(change: dict[str, Any]) -> None:
    check_run_step(replace(RUN, **change))


@pytest.mark.parametrize(
    ("change", "tools", "field"),
    [
        ({"tool_choice": REQUIRED}, (), "tool_choice"),
        ({"tool_choice": named("read")}, (), "tool_choice"),
        ({"tool_choice": named("other")}, TOOLS, "tool_choice.tool_name"),
        ({"response_format": JSON}, TOOLS, "response_format"),
    ],
)
async def test_what_does_not_fit_the_tools(change: dict[str, Any], tools: tuple[Tool, ...], field: str) -> None:
    model = await chat.load("emulated")
    with pytest.raises(InvalidArgument) as caught:
        await form_of(replace(RUN, **change), tools, model)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("change", "tools", "field"),
    [
        ({}, TOOLS, None),
        ({"tool_choice": NONE}, TOOLS, None),
        ({"tool_choice": REQUIRED}, TOOLS, "tool_choice"),
        ({"tool_choice": named("write")}, TOOLS, "tool_choice"),
        ({"tool_choice": NONE, "response_format": JSON}, TOOLS, "response_format"),
        ({"response_format": ResponseFormat()}, (), "response_format"),
    ],
)
async def test_forms(change: dict[str, Any], tools: tuple[Tool, ...], field: str | None) -> None:
    form = await form_of(replace(RUN, **change), tools, await chat.load("emulated"))
    assert (form.field if form else None) == field


async def test_a_named_tool_is_the_only_one() -> None:
    form = await form_of(replace(RUN, tool_choice=named("write")), TOOLS, await chat.load("emulated"))
    assert form
    assert '"write' in str(form.structured_outputs).replace("\\\\", "").replace("\\", "")
    assert "read" not in str(form.structured_outputs)


def test_without_choice_no_call_is_looked_for() -> None:
    assert callable_tools(replace(RUN, tool_choice=NONE), TOOLS) == ()
    assert callable_tools(RUN, TOOLS) == TOOLS


async def test_only_a_replica_with_structured_outputs_is_asked() -> None:
    form = await form_of(replace(RUN, tool_choice=REQUIRED), TOOLS, await chat.load("emulated"))
    assert form
    replica = Replica(ReplicaLoad("a", "m", 1), cast("Engine", None))
    with pytest.raises(EngineRefused, match="tool_choice: replica a has no structured outputs"):
        form.check(replica)
    replica.info = EngineInfo("0", "m", 100, 16, True, False, structured_outputs=True)
    form.check(replica)
    replica.may_enforce = False
    with pytest.raises(EngineRefused):
        form.check(replica)


@pytest.mark.parametrize(
    ("engine", "may"),
    [
        ({"platform": "cpu"}, True),
        ({"url": "http://127.0.0.1:1", "structured_outputs": False}, False),
        ({"platform": "cpu", "extra_args": ["--reasoning-parser", "qwen3"]}, False),
        ({"platform": "cpu", "extra_args": ["--reasoning-parser=qwen3"]}, False),
    ],
)
def test_which_servers_may_be_asked(engine: dict[str, Any], may: bool) -> None:
    assert platforms.may_enforce(config.Engine.model_validate({"model": "m", **engine})) is may
