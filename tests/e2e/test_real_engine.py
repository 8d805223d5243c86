"""The main job on a real vLLM that the runtime starts itself: ids kept, cache hit, drafts counted, rows right."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
from tests.e2e.conftest import Paceline
from tests.transcript.models import template

from paceline import config
from paceline.app import open_runtime
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.transcript.context import unpack
from paceline_agents import types as t
from paceline_agents.aio import AsyncClient

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

DRAFTS = 6
TALK_TOKENS = 80
SYSTEM = "You are a careful coding agent. Think first: write <thought>, two sentences, then </thought>."
CODE = """
def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(value)
"""
TAGGED = "Which line is wrong? Answer in the form <thought>your thoughts</thought> your answer."
ASK = f"Answer with the whole corrected function in a Python code block, nothing else.\n```python{CODE}```"


def settings(ledger: Path, engine: dict[str, Any], **model: Any) -> config.Settings:
    """The test model, named by the environment, on one engine."""
    return config.parse(
        {
            "server": {"listen": "127.0.0.1:0", "metrics_listen": ""},
            "ledger": {"url": f"sqlite:///{ledger}"},
            "models": {"coder": {"path": os.environ["PACELINE_TEST_MODEL"], **model}},
            "engines": {"cpu": {"model": "coder", "speculation": "ngram", "max_concurrent_steps": 2, **engine}},
            "speculation": {"ngram": {"method": "ngram", "num_speculative_tokens": DRAFTS}},
            "prices": {"coder": {"input": "0.10", "cached_input": "0.02", "output": "0.40"}},
        },
        "test",
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def paceline(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Paceline]:
    """A runtime with an engine that it started, which is gone afterwards."""
    ledger = tmp_path_factory.mktemp("real") / "ledger.db"
    engine = {
        "platform": "cpu",
        "python": os.environ["PACELINE_TEST_ENGINE_PYTHON"],
        "max_model_len": 4096,
        "kv_cache_gib": 1,
        "extra_args": ["--trust-request-chat-template"],
    }
    async with (
        open_runtime(settings(ledger, engine)) as runtime,
        AsyncClient(f"127.0.0.1:{runtime.port}") as client,
    ):
        await runtime.ready.wait()
        yield Paceline(runtime, client, ledger)
        children = psutil.Process().children(recursive=True)
    assert children
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def engine_of(paceline: Paceline) -> tuple[str, int]:
    """Address and block size of its engine."""
    (replica,) = paceline.runtime.replicas.all()
    assert isinstance(replica.engine, VllmHttpEngine)
    assert replica.info
    assert replica.info.block_size
    return replica.engine.base_url, replica.info.block_size


async def test_a_workflow_on_a_real_engine(paceline: Paceline) -> None:
    workflow = await paceline.client.create_workflow(system="You repair Python code.", temperature=0.0)
    first = await workflow.step(ASK, max_output_tokens=80)
    again = await workflow.step("Now add type annotations. Answer the same way.", max_output_tokens=80)
    cut = await workflow.step("Explain the defect.", max_output_tokens=5)
    last = await workflow.step("Thank you, stop here.", max_output_tokens=16)
    await _cancelled(workflow, paceline.client)
    own = {"id": workflow.workflow_id}
    rows = paceline.sql(
        "select * from steps where state = 'finished' and workflow_id = :id order by created_at", **own
    )
    attempts = paceline.sql("select * from attempts where workflow_id = :id order by dispatched_at", **own)
    _, block = engine_of(paceline)

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


@pytest.mark.parametrize("qwen3", [False, True], ids=["pieces of a tag", "thinking off"])
async def test_ids_find_in_the_cache_what_text_history_loses(
    paceline: Paceline, tmp_path: Path, qwen3: bool
) -> None:
    """A tag that was sampled in other pieces than its text has; a template that drops its own empty reasoning."""
    url, block = engine_of(paceline)
    question = f"{CODE}\n{'What does it do?' if qwen3 else TAGGED}"
    if qwen3:
        async with _as_qwen3(url, tmp_path) as client:
            first, second = await _talk(client, question)
    else:
        first, second = await _talk(paceline.client, question)
    by_text, by_text_again = await _talk_as_text(url, question, template("qwen3") if qwen3 else "")

    prompt, output = _prompt(first), first.usage.output or 0
    assert (by_text["prompt_tokens"], by_text["completion_tokens"]) == (prompt, output)
    fewest = (prompt + output - 1 - DRAFTS) // block * block
    assert fewest > prompt
    assert (second.usage.cached_prompt or 0) >= fewest
    assert by_text_again["prompt_tokens_details"]["cached_tokens"] <= prompt
    assert second.reuse.break_reason in ("", "unclosed_turn")


@asynccontextmanager
async def _as_qwen3(url: str, folder: Path) -> AsyncIterator[AsyncClient]:
    """A second runtime on the same engine, under Qwen3's template."""
    file = folder / "qwen3.jinja"
    file.write_text(template("qwen3"))
    model = {"template": str(file), "template_arguments": {"enable_thinking": False}}
    async with (
        open_runtime(settings(folder / "ledger.db", {"url": url}, **model)) as runtime,
        AsyncClient(f"127.0.0.1:{runtime.port}") as client,
    ):
        yield client


def _prompt(answer: t.Answer) -> int:
    return (answer.usage.uncached_prompt or 0) + (answer.usage.cached_prompt or 0)


async def _talk(client: AsyncClient, question: str) -> tuple[t.Answer, t.Answer]:
    """Two turns of a client that sends everything."""
    workflow = await client.create_workflow(temperature=0.0, max_output_tokens=TALK_TOKENS)
    said = [t.Message(t.Role.SYSTEM, SYSTEM), t.Message(t.Role.USER, question)]
    first = await workflow.step(said, whole_conversation=True)
    said += [t.Message(t.Role.ASSISTANT, first.text), t.Message(t.Role.USER, "Go on.")]
    return first, await workflow.step(said, whole_conversation=True)


async def _talk_as_text(url: str, question: str, chat_template: str) -> list[dict[str, Any]]:
    """The same over the engine's chat API: the usage of both turns."""
    said, used = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}], []
    body: dict[str, Any] = {"temperature": 0, "max_tokens": TALK_TOKENS, "cache_salt": "text", "messages": said}
    if chat_template:
        body |= {"chat_template": chat_template, "chat_template_kwargs": {"enable_thinking": False}}
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
                answer = await reply.json()
            said += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
            used.append(answer["usage"])
    return used
