"""Prompts and answers are in the log only when somebody asks for them, and never those that are not stored."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
import structlog

from paceline import log
from paceline.config import Log
from paceline_agents.types import StorePolicy


@pytest.mark.parametrize("content", [False, True])
async def test_content_is_logged_on_request_only(
    emulator: Callable[..., Any], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, content: bool
) -> None:
    written = StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    log.configure(Log(format="json", content=content))
    try:
        engine = emulator("--time-scale=0")
        await engine.script({"reply": "a marked answer"})
        async with run(engine.url, log={"content": content}) as paceline:
            workflow = await paceline.client.create_workflow()
            await workflow.step("a marked question")
            secret = await paceline.client.create_workflow(store=StorePolicy.NONE)
            await secret.step("a secret question")
    finally:
        structlog.reset_defaults()
    lines = [json.loads(line) for line in written.getvalue().splitlines() if line.startswith("{")]
    assert any(line["event"] == "step" for line in lines)
    told = [line for line in lines if line["event"] == "step_content"]
    assert len(told) == content
    assert ("marked" in json.dumps(lines)) == content
    assert "secret" not in json.dumps(lines)
    if content:
        assert told[0]["messages"][0]["content"] == "a marked question"
        assert told[0]["output"]["content"] == "a marked answer"
