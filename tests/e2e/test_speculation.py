"""What speculation did, from an engine's report to the ledger, the client, the metrics and the reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.conftest import Emulator
from tests.e2e.servers import FAST, Server, installed

from paceline.speculation.alarms import SILENT_STEPS, SILENT_TOKENS
from paceline_agents import types as t
from paceline_agents.aio import AsyncClient

pytestmark = pytest.mark.slow

CALL = '<tool_call>\n{"name": "look", "arguments": {"path": "a.py"}}\n</tool_call>'
EDIT = "Here:\n```python\n" + "x = x + 1\n" * 40 + "```"
TOOL = t.Tool("look", "Look at a file.", '{"type":"object","properties":{"path":{"type":"string"}}}')
MUTE = "--speculative-config=" + json.dumps(
    {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 5000, "prompt_lookup_max": 5000}
)
"""Looks up repetitions so long that there are none."""


@dataclass
class Setup:
    """A running server, and the engine of its model `m`."""

    server: Server
    engine: Emulator


@pytest.fixture
def setup(tmp_path: Path, emulator: Callable[..., Emulator]) -> Iterator[Setup]:
    """A server with an engine that drafts and tells, and one whose drafter never proposes anything."""
    drafting = emulator(*FAST)
    mute = emulator(*FAST, "--reply-tokens=200", MUTE)
    settings = {
        "engines": {
            "good": {"model": "m", "url": drafting.url, "speculation": "k4"},
            "mute": {"model": "n", "url": mute.url, "speculation": "k4"},
        },
        "speculation": {"k4": {"method": "ngram", "num_speculative_tokens": 4}},
        "log": {"format": "json"},
    }
    with installed(tmp_path / "paceline", settings) as one:
        yield Setup(one.start(), drafting)


async def test_counts_and_classes_from_the_engine_to_the_reports(setup: Setup) -> None:
    server, engine = setup.server, setup.engine
    await engine.script(
        {"contains": "edit it", "reply": EDIT, "times": 1},
        {"contains": "look at it", "reply": CALL, "times": 1},
        {"contains": "say it", "reply": "Well, well, well, well, well, well.", "times": 1},
        {"contains": "edit it", "reply": EDIT, "times": 1},
    )
    async with AsyncClient(server.target) as client:
        workflow = await client.create_workflow(model="m", tools=[TOOL])
        answers = [
            await workflow.step(text) for text in ("edit it", "look at it", "say it", "edit it" + " now" * 400)
        ]
        kept = [await client.get_step(step_id=answer.step_id) for answer in answers]
        cost = await workflow.cost()
    assert [step.step_class for step in kept] == ["code edit", "tool call", "free text", "code edit"]
    for answer, step in zip(answers, kept, strict=True):
        assert step.answer
        assert step.answer.speculation == answer.speculation
        assert answer.speculation.draft_steps is not None
        assert 0 < answer.speculation.draft_steps <= (answer.speculation.drafted or 0)

    told = [row for row in await engine.counts() if row["drafted"]]
    assert sum(row["drafted"] for row in told) == sum(answer.speculation.drafted or 0 for answer in answers)
    counts = [answer.speculation for answer in answers]
    accepted, checks = (sum(getattr(one, name) or 0 for one in counts) for name in ("accepted", "draft_steps"))
    assert cost.mean_acceptance_length == pytest.approx(1 + accepted / checks)

    edits = [one.speculation for one in (answers[0], answers[3])]
    groups = _report(server, "class")
    assert set(groups) == {"code edit", "tool call", "free text"}
    _is_sum(groups["code edit"], edits)
    assert groups["code edit"]["step_count"] == 2
    assert groups["code edit"]["workflow_count"] is None
    _is_sum(_report(server, "pool")["m+k4"], counts)
    by_context = _report(server, "context")
    assert list(by_context) == ["<=1024", "<=4096"]
    _is_sum(by_context["<=4096"], [answers[3].speculation])
    shown = server.run("workflow", "show", workflow.workflow_id, "--json").stdout
    assert [step["step_class"] for step in json.loads(shown)["steps"]] == [step.step_class for step in kept]

    metrics = _metrics(server)
    for kind in ("drafted", "accepted"):
        assert metrics["paceline_speculation_tokens_total", "m", "k4", "code edit", kind] == sum(
            getattr(one, kind) for one in edits
        )
    checks = sum(one.draft_steps or 0 for one in edits)
    assert metrics["paceline_speculation_checks_total", "m", "k4", "code edit", ""] == checks
    assert metrics["paceline_speculation_alarm", "m", "k4", "", ""] == 0


async def test_a_drafter_that_proposes_nothing_raises_an_alarm(setup: Setup) -> None:
    server = setup.server
    async with AsyncClient(server.target) as client:
        for _ in range(SILENT_STEPS):
            workflow = await client.create_workflow(model="n")
            answer = await workflow.step("go on", max_output_tokens=SILENT_TOKENS // SILENT_STEPS)
            assert (answer.speculation.drafted, answer.speculation.draft_steps) == (0, 0)
            assert answer.speculation.mean_acceptance_length is None
    alarms = server.events("speculation_alarm")
    assert [(one["model"], one["profile"], one["alarm"]) for one in alarms] == [("n", "k4", "proposes_nothing")]
    assert _metrics(server)["paceline_speculation_alarm", "n", "k4", "", ""] == 1
    assert _report(server, "pool")["n+k4"]["mean_acceptance_length"] is None


def _report(server: Server, key: str) -> dict[str, dict[str, Any]]:
    groups = json.loads(server.run("report", "--by", key, "--json").stdout)["groups"]
    return {group[key]: group for group in groups}


def _is_sum(group: dict[str, Any], counts: list[t.Speculation]) -> None:
    drafted, accepted, checks = (
        sum(getattr(one, name) for one in counts) for name in ("drafted", "accepted", "draft_steps")
    )
    found = [group[name] for name in ("drafted_token_count", "accepted_draft_token_count", "draft_step_count")]
    assert found == [drafted, accepted, checks]
    assert group["draft_report_count"] == len(counts)
    assert group["mean_acceptance_length"] == pytest.approx(1 + accepted / checks)
    assert group["acceptance_rate"] == pytest.approx(accepted / drafted)


def _metrics(server: Server) -> dict[tuple[str, ...], float]:
    """Sums of what tells of speculation by name, model, profile, class and kind."""
    with urlopen(f"http://127.0.0.1:{server.facts['metrics_port']}/metrics", timeout=10) as page:
        text = page.read().decode()
    sums: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            names = ("model", "profile", "class", "kind")
            key = (sample.name, *(sample.labels.get(name, "") for name in names))
            sums[key] = sums.get(key, 0) + sample.value
    return sums
