"""Seen from outside: the log, the metrics and the events say what the ledger says, and nothing more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.calls import Ended, read, request, stub
from tests.e2e.conftest import Emulator
from tests.e2e.servers import Server, free_port, installed

from paceline.v1.step_service_pb2 import CancelStepRequest, RunStepResponse, StepPhase
from paceline_agents import types as t
from paceline_agents.aio import AsyncClient

pytestmark = pytest.mark.slow

MakeEmulator = Callable[..., Emulator]
SECRET = "quokka"
"""Stands in every text that a client or a model writes here."""
CALL = '<tool_call>\n{"name": "look", "arguments": {"path": "quokka.py"}}\n</tool_call>'
FLAGS = ("--step-seconds=0.005", "--prefill-fixed-seconds=0", "--reply-tokens=400")
TOOL = t.Tool("look", f"Look at a {SECRET}", '{"type":"object","properties":{"path":{"type":"string"}}}')
COUNTS = {
    "uncached_prompt_tokens": "uncached_prompt_tokens",
    "cached_prompt_tokens": "cached_prompt_tokens",
    "output_tokens": "output_tokens",
    "drafted_tokens": "drafted_tokens",
    "accepted_draft_tokens": "accepted_tokens",
    "draft_steps": "draft_steps",
    "step_class": "step_class",
    "list_cost_usd_nanos": "list_nanos",
    "infrastructure_cost_usd_nanos": "infrastructure_nanos",
}
"""Fields of the log line and the columns that they repeat."""


async def _live(server: Server, engine: Emulator) -> None:
    """Finish, call a tool, cancel, fail, be refused: whatever a step can do."""
    await engine.script(
        {"contains": "say it", "reply": f"A {SECRET}!", "times": 1},
        {"contains": "use the tool", "reply": CALL, "times": 1},
    )
    async with AsyncClient(server.target) as client, stub(server.target) as steps:
        workflow = await client.create_workflow(model="m", system=f"You are a {SECRET}.", tools=[TOOL])
        await workflow.step(f"say it, {SECRET}")
        await workflow.step(f"now use the tool, {SECRET}")
        await workflow.step([t.Message(t.Role.TOOL, SECRET, tool_name="look")], whole_conversation=False)
        seen: list[RunStepResponse] = []
        ask = request(workflow.workflow_id, f"a long story of a {SECRET}", request_id="request-long")
        long = asyncio.create_task(read(steps.RunStep(ask), seen))
        while not any(one.HasField("text_delta") for one in seen):
            await asyncio.sleep(0.01)
        await steps.CancelStep(CancelStepRequest(request_id="request-long"))
        assert (await long).verdict == ("CANCELLED", "STEP_CANCELLED")
        await engine.fault(kind="drop", after_tokens=7)
        lost = await read(steps.RunStep(request(workflow.workflow_id, f"{SECRET} again")))
        assert lost.verdict == ("UNAVAILABLE", "ENGINE_LOST")
        await engine.fault(kind="refuse", status=400)
        refused = await read(steps.RunStep(request(workflow.workflow_id, f"{SECRET} again")))
        assert refused.verdict == ("FAILED_PRECONDITION", "ENGINE_REFUSED")
        long_one = await read(steps.RunStep(request(workflow.workflow_id, f"{SECRET} " * 5000)))
        assert long_one.verdict == ("INVALID_ARGUMENT", "CONTEXT_TOO_LONG")


@pytest.fixture
async def lived(tmp_path: Path, emulator: MakeEmulator) -> Any:
    """A server whose log is as talkative as can be, with every kind of step behind it."""
    engine = emulator(*FLAGS)
    settings = {
        "engines": {"far": {"model": "m", "url": engine.url, "instance_type": "box", "speculation": "k4"}},
        "accelerators": {"box": {"usd_per_hour": 3.6}},
        "speculation": {"k4": {"method": "ngram", "num_speculative_tokens": 4}},
        "log": {"level": "debug", "format": "json"},
    }
    with installed(tmp_path / "paceline", settings) as server:
        server.start()
        await _live(server, engine)
        yield server


async def test_the_log_and_the_metrics_say_what_the_ledger_says(lived: Server) -> None:
    rows = {
        row["attempt_id"]: row
        for row in lived.sql(
            "select a.*, s.request_id, s.finish_reason, w.model from attempts a "
            "join steps s using (step_id) join workflows w on w.workflow_id = a.workflow_id"
        )
    }
    lines = {line["attempt_id"]: line for line in lived.events("step")}
    assert set(lines) == set(rows)
    assert sorted(row["state"] for row in rows.values()) == ["cancelled", *["failed"] * 2, *["finished"] * 3]
    for attempt_id, row in rows.items():
        line = lines[attempt_id]
        for name in (
            "tenant",
            "workflow_id",
            "step_id",
            "request_id",
            "model",
            "replica",
            "state",
            "finish_reason",
        ):
            assert line[name] == row[name], name
        assert (line["attempt"], line["error_reason"] or "") == (row["number"], row["error_reason"])
        assert {name: line[name] for name in COUNTS} == {name: row[column] for name, column in COUNTS.items()}
        assert line["total_ms"] == pytest.approx(row["total_us"] / 1000, abs=0.01)

    metrics = _metrics(lived)
    for kind in ("uncached_prompt", "cached_prompt", "output", "drafted"):
        assert metrics.get(("paceline_tokens_total", kind), 0) == sum(
            r[f"{kind}_tokens"] or 0 for r in rows.values()
        )
    for state in ("finished", "failed", "cancelled"):
        assert metrics["paceline_steps_total", state] == sum(r["state"] == state for r in rows.values())
    nanos = sum(row["list_nanos"] or 0 for row in rows.values())
    assert metrics["paceline_list_cost_usd_total", ""] == pytest.approx(nanos / 1e9, rel=1e-9)
    assert (metrics["paceline_steps_running", ""], metrics["paceline_ledger_writes_kept", ""]) == (0, 0)


async def test_no_prompt_and_no_answer_is_in_the_log(lived: Server) -> None:
    assert lived.stop() == 0
    text = lived.log.read_text()
    assert "runtime_stopping" in text
    assert SECRET not in text
    assert all(SECRET.encode() not in path.read_bytes() for path in lived.folder.rglob("*.log"))
    assert any(SECRET in row["input"] for row in lived.sql("select input from steps"))  # where it belongs


def _metrics(server: Server) -> dict[tuple[str, str], float]:
    """Sums by name, and by state or kind."""
    address = f"http://127.0.0.1:{server.facts['metrics_port']}/metrics"
    with urlopen(address, timeout=10) as page:
        text = page.read().decode()
    sums: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, sample.labels.get("state") or sample.labels.get("kind") or ""
            sums[key] = sums.get(key, 0) + sample.value
    return sums


async def test_a_slow_reader_gets_larger_pieces_and_holds_nobody_back(
    emulator: MakeEmulator, run: Callable[..., Any]
) -> None:
    tokens = 20_000
    engine = emulator("--time-scale=0", f"--reply-tokens={tokens}")
    async with run(engine.url) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        call = steps.RunStep(request(workflow.workflow_id))
        first = await anext(aiter(call))
        while not await engine.counts():
            await asyncio.sleep(0.02)
        while paceline.sql("select state from steps") != [{"state": "finished"}]:
            await asyncio.sleep(0.02)
        ended: Ended = await read(call)
        (row,) = paceline.sql("select output, a.output_tokens from steps join attempts a using (step_id)")
    assert first.HasField("started")
    pieces = [one.text_delta.text for one in ended.responses if one.HasField("text_delta")]
    assert row["output_tokens"] == tokens + 1  # with the end of the turn
    assert ended.responses[-1].finished.message.content == "".join(pieces)
    assert max(map(len, pieces)) > 20 * len("".join(pieces)) / tokens
    assert len(pieces) < tokens / 5


async def test_a_waiting_step_gives_a_sign_of_life_every_ten_seconds(run: Callable[..., Any]) -> None:
    async with run(f"http://127.0.0.1:{free_port()}", ready=False) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        begun = time.monotonic()
        call = steps.RunStep(request(workflow.workflow_id))
        signs = []
        async for response in call:
            if response.HasField("progress"):
                signs.append(response.progress)
            if len(signs) == 2:
                break
        call.cancel()
    assert {sign.phase for sign in signs} == {StepPhase.STEP_PHASE_ENGINE_STARTING}
    assert 9.5 < signs[1].waited.ToTimedelta().total_seconds() < 11
    assert time.monotonic() - begun > 9.5
