"""What neuron-monitor reports, one JSON object per period, read as AWS documents it and summed up per engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


@dataclass(slots=True)
class NeuronUse:
    """What one engine's processes did within one period."""

    utilization: dict[str, float] = field(default_factory=dict)
    """By logical core, 0 to 1."""
    core_seconds: float = 0.0
    """Utilization times period, over all cores."""
    device_bytes: int = 0
    host_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Errors by kind."""
    executions: dict[str, int] = field(default_factory=dict)
    """Executions by result."""


@dataclass(frozen=True, slots=True)
class NeuronSample:
    """One report. A replica's name is the tag of its processes; empty: all other processes."""

    uses: dict[str, NeuronUse]
    problems: tuple[str, ...] = ()
    """What neuron-monitor itself could not read."""


class BadReport(ValueError):
    """The line is not what the documents describe; the message says where."""


class _Core(msgspec.Struct):
    neuroncore_utilization: Amount


class _Cores(msgspec.Struct):
    period: Amount = 0.0
    neuroncores_in_use: dict[str, _Core] | None = None
    error: str = ""


class _Bytes(msgspec.Struct):
    host: Count = 0
    neuron_device: Count = 0


class _Memory(msgspec.Struct):
    neuron_runtime_used_bytes: _Bytes | None = None
    error: str = ""


class _Executions(msgspec.Struct):
    error_summary: dict[str, Count] | None = None
    execution_summary: dict[str, Count] | None = None
    error: str = ""


class _Report(msgspec.Struct):
    neuroncore_counters: _Cores | None = None
    memory_used: _Memory | None = None
    execution_stats: _Executions | None = None


class _Process(msgspec.Struct):
    neuron_runtime_tag: str = ""
    error: str = ""
    report: _Report | None = None


class _Hardware(msgspec.Struct):
    error: str = ""


class _Line(msgspec.Struct):
    neuron_runtime_data: list[_Process] | None
    neuron_hardware_info: _Hardware | None = None


_DECODER = msgspec.json.Decoder(_Line)


def read(line: bytes, replicas: frozenset[str]) -> NeuronSample:
    """One line of neuron-monitor. Fields that are not used may have any shape. Raises `BadReport`."""
    try:
        report = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReport(str(error)) from None
    uses: dict[str, NeuronUse] = {}
    for process in report.neuron_runtime_data or ():
        tag = process.neuron_runtime_tag
        use = uses.setdefault(tag if tag in replicas else "", NeuronUse())
        if process.report:
            _add(use, process.report)
    return NeuronSample(uses, tuple(dict.fromkeys(filter(None, _problems(report)))))


def _problems(report: _Line) -> Iterator[str]:
    if report.neuron_hardware_info:
        yield report.neuron_hardware_info.error
    for process in report.neuron_runtime_data or ():
        yield process.error
        if found := process.report:
            for group in (found.neuroncore_counters, found.memory_used, found.execution_stats):
                yield group.error if group else ""


def _add(use: NeuronUse, report: _Report) -> None:
    """Groups that failed are left out."""
    if (cores := report.neuroncore_counters) and not cores.error:
        for name, core in (cores.neuroncores_in_use or {}).items():
            share = core.neuroncore_utilization / 100
            use.utilization[name] = max(share, use.utilization.get(name, 0.0))
            use.core_seconds += share * cores.period
    if (memory := report.memory_used) and memory.neuron_runtime_used_bytes and not memory.error:
        use.device_bytes += memory.neuron_runtime_used_bytes.neuron_device
        use.host_bytes += memory.neuron_runtime_used_bytes.host
    if (stats := report.execution_stats) and not stats.error:
        _sum(use.errors, stats.error_summary)
        _sum(use.executions, stats.execution_summary)


def _sum(total: dict[str, int], counts: dict[str, int] | None) -> None:
    for name, count in (counts or {}).items():
        total[name] = total.get(name, 0) + count
