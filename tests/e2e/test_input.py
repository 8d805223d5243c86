"""Bad input: a clear status, and no row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.calls import read, request, stub
from tests.e2e.conftest import Emulator
from tests.e2e.servers import FAST, check_idle

from paceline.errors import ModelNotFound
from paceline.v1.message_pb2 import Message, Role, Sampling, Tool
from paceline.v1.step_service_pb2 import (
    Append,
    RunStepRequest,
    ToolSet,
)

MakeEmulator = Callable[..., Emulator]
Run = Callable[..., Any]
UNKNOWN_ROLE: Any = 99


def appended(workflow_id: str, *messages: Message, **fields: Any) -> RunStepRequest:
    """A step that appends these messages."""
    return RunStepRequest(workflow_id=workflow_id, append=Append(messages=messages), **fields)


HELLO = Message(role=Role.ROLE_USER, content="hello")
BAD = {
    "no messages": (appended("workflow-one"), "INVALID_ARGUMENT", "INVALID_MESSAGE"),
    "no input": (RunStepRequest(workflow_id="workflow-one"), "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
    "unknown role": (
        appended("workflow-one", Message(role=UNKNOWN_ROLE, content="x")),
        "INVALID_ARGUMENT",
        "INVALID_MESSAGE",
    ),
    "invalid tool schema": (
        appended(
            "workflow-one",
            HELLO,
            tools=ToolSet(tools=[Tool(tool_name="t", parameters_json='{"type": "nothing"}')]),
        ),
        "INVALID_ARGUMENT",
        "INVALID_TOOL",
    ),
    "invalid sampling": (
        appended("workflow-one", HELLO, sampling=Sampling(temperature=9)),
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
    ),
    "over-long context": (request("workflow-one", "word " * 600), "INVALID_ARGUMENT", "CONTEXT_TOO_LONG"),
    "oversized message": (request("workflow-one", "x" * (2 << 20)), "RESOURCE_EXHAUSTED", ""),
    "unknown workflow": (request("workflow-none"), "NOT_FOUND", "WORKFLOW_NOT_FOUND"),
    "malformed id": (request("w"), "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
    "unknown parent": (
        request("workflow-one", parent_step_id="st_nobody_knows"),
        "NOT_FOUND",
        "STEP_NOT_FOUND",
    ),
}


async def test_bad_input_has_a_clear_status_and_leaves_no_row(emulator: MakeEmulator, run: Run) -> None:
    engine = emulator(*FAST, "--max-model-len=512")
    async with run(engine.url, server={"max_message_mib": 1}) as paceline, stub(paceline.target) as steps:
        await paceline.client.create_workflow(workflow_id="workflow-one")
        with pytest.raises(ModelNotFound):
            await paceline.client.create_workflow(model="gpt-unknown")
        verdicts = {name: (await read(steps.RunStep(bad))).verdict for name, (bad, _, _) in BAD.items()}
        assert verdicts == {name: (code, reason) for name, (_, code, reason) in BAD.items()}
        assert paceline.sql("select (select count(*) from steps) s, (select count(*) from attempts) a") == [
            {"s": 0, "a": 0}
        ]
        assert await engine.counts() == []
        check_idle(paceline)
        assert (await read(steps.RunStep(request("workflow-one")))).code.name == "OK"
