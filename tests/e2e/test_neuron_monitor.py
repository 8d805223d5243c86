"""`paceline serve` with an engine on NeuronCores: neuron-monitor runs beside it, both by stand-ins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.e2e.servers import Server, installed, until

pytestmark = pytest.mark.slow

REPORT = {
    "neuron_runtime_data": [
        {
            "pid": 1,
            "neuron_runtime_tag": "trn",
            "error": "",
            "report": {
                "neuroncore_counters": {
                    "period": 5.0,
                    "neuroncores_in_use": {"3": {"neuroncore_utilization": 42.0, "flops": 1}},
                    "error": "",
                }
            },
        }
    ]
}
SETTINGS: dict[str, Any] = {
    "model": "m",
    "platform": "neuron",
    "max_model_len": 4096,
    "neuron": {"plugin": "0.29.0.1.2.0", "tensor_parallel_size": 4},
}


def script(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def metrics(server: Server) -> str:
    with urlopen(f"http://127.0.0.1:{server.facts['metrics_port']}/metrics", timeout=10) as response:
        return str(response.read().decode())


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_cores_of_an_engine_are_shown(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    (tmp_path / "report").write_text(json.dumps(REPORT) + "\n")
    script(tmp_path / "tools/neuron-monitor", f"while cat {tmp_path}/report; do sleep 0.2; done")
    python = script(tmp_path / "python", f"echo $NEURON_PROCESS_TAG > {tmp_path}/tag; exec sleep 600")
    with installed(tmp_path / "server", {"engines": {"trn": SETTINGS | {"python": python}}}) as server:
        server.start()
        shown = 'paceline_neuroncore_utilization_ratio{core="3",replica="trn"} 0.42'
        until(lambda: shown in metrics(server))
        assert "paceline_neuron_monitor_up 1.0" in metrics(server)
        until(lambda: (tmp_path / "tag").exists() and (tmp_path / "tag").read_text() == "trn\n")
        if end == "stop":
            server.stop()
            assert server.processes() == []


def test_without_the_tool_or_without_such_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    python = script(tmp_path / "python", "exec sleep 600")
    with installed(tmp_path / "one", {"engines": {"trn": SETTINGS | {"python": python}}}) as server:
        assert "neuron" not in metrics(server.start())
        (told,) = server.events("neuron_monitor_missing")
        assert "aws-neuronx-tools" in told["remedy"]
    script(tmp_path / "tools/neuron-monitor", f"touch {tmp_path}/started; exec sleep 600")
    with installed(tmp_path / "two", {"engines": {"far": {"model": "m", "url": "http://127.0.0.1:9"}}}) as server:
        assert "neuron" not in metrics(server.start())
        server.stop()
    assert not (tmp_path / "started").exists()
