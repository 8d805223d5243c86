"""A real vLLM under the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.launcher.conftest import PARENT, wait_until_gone

from paceline import config

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_a_real_engine_becomes_ready_and_leaves_nothing_behind(tmp_path: Path) -> None:
    engine = config.Engine(
        model="m",
        platform="cpu",
        python=os.environ["PACELINE_TEST_ENGINE_PYTHON"],
        max_model_len=2048,
        kv_cache_gib=0.5,
        start_timeout_seconds=400,
    )
    speculation = config.Speculation(method="ngram")
    arguments = [engine.model_dump_json(), speculation.model_dump_json(), os.environ["PACELINE_TEST_MODEL"]]
    command = [sys.executable, "-c", PARENT, *arguments, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        lines = []
        for line in parent.stdout:
            lines.append(line.strip())
            if line.startswith(("ready", "failed")):
                break
        processes = [process.pid for process in psutil.Process(parent.pid).children(recursive=True)]

        parent.send_signal(signal.SIGKILL)
        parent.wait()

    assert lines[-1].startswith("ready"), (lines, (tmp_path / "one.log").read_text()[-4000:])
    assert "loading: loading weights, 100 %" in lines
    assert len(processes) >= 4  # guardian, API server, engine core, worker
    assert wait_until_gone(processes) == []
