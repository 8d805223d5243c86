"""The main job on a real vLLM that the runtime starts itself: ids kept, cache hit, drafts counted, rows right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.conftest import Paceline

from paceline import config
from paceline.app import open_runtime
from paceline.transcript.context import unpack
from paceline_agents import types as t
from paceline_agents.aio import AsyncClient

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

DRAFTS = 6
CODE = """
def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(value)
"""
ASK = f"Answer with the whole corrected function in a Python code block, nothing else.\n```python{CODE}```"


def settings(ledger: Path) -> config.Settings:
    """The test model on the test engine; both are named by the environment."""
    python, model = os.environ["PACELINE_TEST_ENGINE_PYTHON"], os.environ["PACELINE_TEST_MODEL"]
    return config.parse(
        {
            "server": {"listen": "127.0.0.1:0", "metrics_listen": ""},
            "ledger": {"url": f"sqlite:///{ledger}"},
            "models": {"coder": {"path": model}},
            "engines": {
                "cpu": {
                    "model": "coder",
                    "platform": "cpu",
                    "python": python,
                    "speculation": "ngram",
                    "max_model_len": 4096,
                    "kv_cache_gib": 1,
                    "max_concurrent_steps": 2,
                }
            },
            "speculation": {"ngram": {"method": "ngram", "num_speculative_tokens": DRAFTS}},
            "prices": {"coder": {"input": "0.10", "cached_input": "0.02", "output": "0.40"}},
        },
        "test",
    )


async def test_a_workflow_on_a_real_engine(ledger: Path) -> None:
    async with open_runtime(settings(ledger)) as runtime, AsyncClient(f"127.0.0.1:{runtime.port}") as client:
        paceline = Paceline(runtime, client, ledger)
        workflow = await client.create_workflow(system="You repair Python code.", temperature=0.0)
        first = await workflow.step(ASK, max_output_tokens=80)
        again = await workflow.step("Now add type annotations. Answer the same way.", max_output_tokens=80)
        cut = await workflow.step("Explain the defect.", max_output_tokens=5)
        last = await workflow.step("Thank you, stop here.", max_output_tokens=16)
        (replica,) = runtime.replicas.all()
        block = replica.info.block_size if replica.info else None
        await _cancelled(workflow, client)
        rows = paceline.sql("select * from steps where state = 'finished' order by created_at")
        attempts = paceline.sql("select * from attempts order by dispatched_at")
        children = psutil.Process().children(recursive=True)

    assert block
    assert "def mean" in first.text
    context, before = 0, ""
    for answer, row in zip((first, again, cut, last), rows, strict=True):
        assert row["carried_tokens"] == context
        if context:  # whole blocks; those that the last verification filled are not hashed yet
            fewest, most = ((context - 1 - drafts) // block * block for drafts in (DRAFTS, 0))
            assert answer.usage.cached_prompt is not None
            assert fewest <= answer.usage.cached_prompt <= most
            assert answer.reuse.break_reason == ("unclosed_turn" if before == "length" else "")
        context += len(unpack(row["rendered_ids"])) + len(unpack(row["generated_ids"]))
        before = answer.finish_reason
        assert answer.usage.prompt_source == answer.usage.output_source == "engine"
    assert cut.finish_reason == "length"
    assert again.speculation.drafted
    assert again.speculation.accepted is not None
    assert again.speculation.accepted > 0
    assert [row["state"] for row in attempts] == ["finished"] * 4 + ["cancelled"]
    assert attempts[-1]["output_tokens"] > 0
    assert all(row["list_nanos"] > 0 for row in attempts)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


READ = t.Tool(
    "read_file",
    "Read a file.",
    '{"type": "object", "properties": {"path": {"type": "string", "enum": ["b.py"]}}, "required": ["path"]}',
)
VERDICT = (
    '{"type": "object", "properties": {"found": {"type": "boolean"}, "line": {"type": "integer", "maximum": 99}}, '
    '"required": ["found", "line"], "additionalProperties": false}'
)


async def test_an_answer_has_the_form_that_was_asked_for(paceline: Paceline) -> None:
    workflow = await paceline.client.create_workflow(tools=[READ], temperature=0.0)
    called = await workflow.step("Say hello.", tool_choice="read_file", max_output_tokens=60)
    result = t.Message(t.Role.TOOL, "total / len(value)", tool_call_id=called.tool_calls[0].tool_call_id)
    formed = await workflow.step(
        [result, t.Message(t.Role.USER, "Say hello.")],
        tool_choice=t.ToolChoice.NONE,
        response_format=VERDICT,
        max_output_tokens=60,
    )
    again = await workflow.step("Bye.", tool_choice=t.ToolChoice.REQUIRED, max_output_tokens=60)
    for answer in (called, again):
        assert [(call.tool_name, call.defect) for call in answer.tool_calls][:1] == [("read_file", "")]
        assert (answer.text, answer.output_flags, answer.finish_reason) == ("", (), "tool_calls")
    assert len(called.tool_calls) == 1
    assert json.loads(called.tool_calls[0].arguments_json) == {"path": "b.py"}
    assert json.loads(formed.text).keys() == {"found", "line"}
    assert formed.finish_reason == "stop"
    assert formed.reuse.carried_tokens == called.reuse.prompt_tokens + (called.usage.output or 0)


async def _cancelled(workflow: Any, client: AsyncClient) -> None:
    """Start a long step and cancel it after its first text."""
    stream = workflow.step("Write a very long story.", request_id="request-long", max_output_tokens=1000)
    async for event in stream:
        if isinstance(event, t.TextDelta):
            break
    step = await client.cancel_step(request_id="request-long")
    assert step.state == "cancelled"
    await stream.close()
