"""neuron-monitor beside the engines: stand-ins that print what AWS documents, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from paceline.engines import neuron_monitor, neuron_report
from paceline.engines.neuron_monitor import NeuronMonitor
from paceline.engines.neuron_report import BadReport, NeuronSample
from paceline.metrics_neuron import NeuronMetrics

REPLICAS = frozenset({"one", "two"})
PERCENTILES = {"p0": 0.01, "p50": 0.011, "p100": 0.012}


def process(tag: str, cores: dict[str, float], **changes: Any) -> dict[str, Any]:
    """An entry of `neuron_runtime_data`, as AWS's documents show it for trn2; `changes` go into the report."""
    report = {
        "neuroncore_counters": {
            "period": 5.0,
            "neuroncores_in_use": {
                core: {
                    "neuroncore_utilization": percent,
                    "flops": 1234567891011,
                    "v3d": {"nc_v3.0": {"neuroncore_utilization": percent}},
                }
                for core, percent in cores.items()
            },
            "error": "",
        },
        "execution_stats": {
            "period": 5.0,
            "error_summary": {"generic": 1, "numerical": 0, "hardware": 0},
            "execution_summary": {"completed": 123, "timed_out": 2},
            "latency_stats": {"total_latency": PERCENTILES, "device_latency": None},
            "error": "",
        },
        "memory_used": {
            "period": 5.0,
            "neuron_runtime_used_bytes": {
                "host": 1000,
                "neuron_device": 7000,
                "usage_breakdown": {"host": {}, "neuroncore_memory_usage": {"0": {"tensors": 20971520}}},
            },
            "loaded_models": [{"name": "neff", "model_id": 10005, "subgraphs": {}}],
            "error": "",
        },
        "neuron_runtime_vcpu_usage": {"period": 5.0, "vcpu_usage": {"user": 42.01, "system": 12.34}, "error": ""},
    }
    return {
        "pid": 1,
        "address": "",
        "neuron_runtime_tag": tag,
        "error": "",
        "report": {name: value for name, value in (report | changes).items() if value is not None},
    }


def report(*processes: dict[str, Any], **changes: Any) -> str:
    """A line of neuron-monitor."""
    whole = {
        "neuron_runtime_data": list(processes),
        "system_data": {"neuron_hw_counters": {"period": 5.0, "neuron_devices": None, "error": ""}},
        "instance_info": {"instance_type": "trn2.48xlarge", "error": ""},
        "neuron_hardware_info": {
            "neuron_device_type": "trainium2",
            "neuron_device_count": 16,
            "neuroncore_per_device_count": 4,
            "logical_neuroncore_config": 2,
            "error": "",
        },
    }
    return json.dumps(whole | changes)


class Seen:
    """The metrics, and what they were told."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = NeuronMetrics(self.registry)
        self.events: asyncio.Queue[NeuronSample | None] = asyncio.Queue()

    def neuron_seen(self, sample: NeuronSample) -> None:
        self.metrics.neuron_seen(sample)
        self.events.put_nowait(sample)

    def neuron_lost(self) -> None:
        self.metrics.neuron_lost()
        self.events.put_nowait(None)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"paceline_{name}", labels)

    def neuroncores(self) -> dict[tuple[str, str], float]:
        samples = [sample for family in self.registry.collect() for sample in family.samples]
        return {
            (sample.labels["replica"], sample.labels["core"]): sample.value
            for sample in samples
            if sample.name == "paceline_neuroncore_utilization_ratio"
        }


MakeTool = Callable[..., str]


@pytest.fixture
def tool(tmp_path: Path) -> MakeTool:
    """Makes a tool that runs a shell script."""

    def make(script: str, *lines: str) -> str:
        (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
        path = tmp_path / "neuron-monitor"
        path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


@asynccontextmanager
async def running(path: str, seen: Seen, **options: float) -> AsyncIterator[None]:
    monitor = NeuronMonitor(path, REPLICAS, seen, **options)
    task = asyncio.create_task(monitor.run())
    try:
        yield
    finally:
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


def living(folder: Path) -> list[int]:
    """The processes of a tool, which works in its own folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


# -- reports -----------------------------------------------------------------------------------------------------


def test_a_report_is_summed_up_by_replica() -> None:
    line = report(process("one", {"0": 50.0, "1": 25.0}), process("one", {"2": 100}), process("4711", {"9": 10.0}))
    sample = neuron_report.read(line.encode(), REPLICAS)
    one, others = sample.uses["one"], sample.uses[""]
    assert one.utilization == {"0": 0.5, "1": 0.25, "2": 1.0}
    assert one.core_seconds == pytest.approx(1.75 * 5)
    assert (one.device_bytes, one.host_bytes) == (14000, 2000)
    assert one.errors == {"generic": 2, "numerical": 0, "hardware": 0}
    assert one.executions == {"completed": 246, "timed_out": 4}
    assert others.utilization == {"9": 0.1}
    assert (set(sample.uses), sample.problems) == ({"one", ""}, ())


@pytest.mark.parametrize("line", [report(), report(neuron_runtime_data=None), '{"neuron_runtime_data": null}'])
def test_nothing_runs(line: str) -> None:
    assert neuron_report.read(line.encode(), REPLICAS) == NeuronSample({})


def test_groups_that_failed_or_are_missing_are_left_out() -> None:
    failed = {"period": 5.0, "neuroncores_in_use": {"0": {"neuroncore_utilization": 9}}, "error": "no counters"}
    line = report(
        process("one", {}, neuroncore_counters=failed, memory_used=None, execution_stats={"error": "no counters"}),
        {"pid": 2, "neuron_runtime_tag": "two", "error": "gone"},
        neuron_hardware_info={"error": "no driver"},
    )
    sample = neuron_report.read(line.encode(), REPLICAS)
    assert set(sample.uses) == {"one", "two"}
    assert (sample.uses["one"].utilization, sample.uses["one"].errors) == ({}, {})
    assert sample.problems == ("no driver", "no counters", "gone")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `neuron_runtime_data`"),
        (report(process("one", {"0": -1.0})), "Expected `float` >= 0.0"),
        (report(process("one", {}, execution_stats={"error_summary": {"generic": "x"}})), "Expected `int`"),
        (report(process("one", {}, neuroncore_counters={"neuroncores_in_use": {"0": {}}})), "missing required"),
    ],
)
def test_another_shape_is_told(line: str, told: str) -> None:
    with pytest.raises(BadReport, match=told):
        neuron_report.read(line.encode(), REPLICAS)


# -- metrics -----------------------------------------------------------------------------------------------------


async def test_the_stream_becomes_metrics(tool: MakeTool, tmp_path: Path) -> None:
    lines = [report(process("one", {"0": 50.0, "1": 50.0})), report(process("one", {"1": 100.0}))]
    seen = Seen()
    async with running(tool("cat lines; exec sleep 600", *lines), seen):
        await seen.events.get()
        await seen.events.get()
        assert seen.value("neuron_monitor_up") == 1
        assert seen.neuroncores() == {("one", "1"): 1.0}
        assert seen.value("neuroncore_seconds_total", replica="one") == pytest.approx(10)
        assert seen.value("neuron_memory_bytes", replica="one", where="device") == 7000
        assert seen.value("neuron_execution_errors_total", replica="one", kind="generic") == 2
        assert seen.value("neuron_executions_total", replica="one", result="completed") == 246
        assert living(tmp_path) != []
    assert living(tmp_path) == []


# -- what goes wrong ---------------------------------------------------------------------------------------------


async def test_it_is_started_again_and_nothing_stale_is_shown(tool: MakeTool) -> None:
    seen = Seen()
    path = tool("cat lines; exit 3", report(process("one", {"0": 50.0})))
    with capture_logs() as logs:
        async with running(path, seen, first_delay=0.01):
            assert [await seen.events.get() is None for _ in range(4)] == [False, True, False, True]
            assert (seen.neuroncores(), seen.value("neuron_monitor_up")) == ({}, 0)
    assert {entry["event"] for entry in logs} == {"neuron_monitor_lost"}
    assert seen.value("neuroncore_seconds_total", replica="one") == pytest.approx(5)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 0", "it ended"),
        ("exec sleep 600", "no report within 0.3 s"),
        ("trap '' TERM; while :; do sleep 600; done", "no report within 0.3 s"),
        ("exec head -c 5000 /dev/zero", "a line of more than 1024 bytes"),
    ],
)
async def test_a_tool_that_does_not_report(
    script: str, reason: str, tool: MakeTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neuron_monitor, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(neuron_monitor, "LINE_BYTES", 1024)
    seen = Seen()
    with capture_logs() as logs:
        async with running(tool(script), seen, silence=0.3, first_delay=600):
            assert await seen.events.get() is None
            assert seen.value("neuron_monitor_up") == 0
            assert living(tmp_path) == []
    (entry,) = logs
    assert entry["reason"].startswith(reason)


async def test_a_tool_that_cannot_be_run(tmp_path: Path) -> None:
    seen = Seen()
    with capture_logs() as logs:
        async with running(str(tmp_path / "nothing"), seen):
            assert await seen.events.get() is None
    assert [entry["reason"] for entry in logs] == ["No such file or directory"]


async def test_unreadable_lines_are_skipped_and_told_once(tool: MakeTool) -> None:
    seen = Seen()
    lines = ["not JSON", "not JSON", report(process("two", {"3": 1.0}))]
    with capture_logs() as logs:
        async with running(tool("cat lines; exec sleep 600", *lines), seen):
            assert await seen.events.get() is not None
            assert seen.neuroncores() == {("two", "3"): 0.01}
    (entry,) = logs
    assert (entry["event"], "unreadable report" in str(entry["problems"])) == ("neuron_monitor_incomplete", True)
