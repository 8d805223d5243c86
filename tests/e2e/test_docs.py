"""The README's example and `docs/operations.md`, held against a running server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from paceline.metrics_neuron import NeuronMetrics

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs/operations.md").read_text()


async def test_the_example_of_the_readme_runs(
    emulator: Callable[..., Any], run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    engine = emulator("--time-scale=0")
    await engine.script({"contains": "avoid it", "reply": "Look first."}, {"reply": "It is empty."})
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    with capture_logs():
        async with run(engine.url) as paceline:
            code = found.group(1).replace("127.0.0.1:7450", paceline.target)
            await asyncio.to_thread(exec, code, {})
            first, second = paceline.sql("select * from attempts order by dispatched_at")
            (outcome,) = paceline.sql("select outcome_kind from workflows")

    said, cached, cost = capsys.readouterr().out.splitlines()
    assert said.startswith(
        f"It is empty. Usage(uncached_prompt={first['uncached_prompt_tokens']}, cached_prompt=0,"
    )
    assert cached == f"{second['cached_prompt_tokens']} prompt tokens came from the cache"
    assert second["cached_prompt_tokens"] > 0
    assert f"list_nanos={first['list_nanos'] + second['list_nanos']}," in cost
    assert outcome["outcome_kind"] == "succeeded"


async def test_each_metric_is_named(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    async with run(emulator("--time-scale=0").url) as paceline:
        workflow = await paceline.client.create_workflow()
        await workflow.step("Hello.")
        url = f"http://127.0.0.1:{paceline.runtime.metrics_port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as reply:
            shown = await reply.text()
    on_neuron = CollectorRegistry()
    NeuronMetrics(on_neuron)
    shown += generate_latest(on_neuron).decode()
    names = {name for name in re.findall(r"# TYPE (paceline_\w+) ", shown) if not name.endswith("_created")}
    assert names == set(re.findall(r"`(paceline_\w+)` \|", OPERATIONS))


async def test_each_field_of_the_step_line_is_named(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    with capture_logs() as lines:
        async with run(emulator("--time-scale=0").url) as paceline:
            workflow = await paceline.client.create_workflow()
            await workflow.step("Hello.")
    (step,) = [line for line in lines if line["event"] == "step"]
    table = OPERATIONS.partition("**The step line.**")[2].partition("Other events")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert named == step.keys() - {"event", "log_level"}
