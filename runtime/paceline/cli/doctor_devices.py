"""What `paceline doctor` looks at in the machine's processor, GPUs and Neuron devices."""

from __future__ import annotations

import os
from collections.abc import Iterator

from paceline import config, disk
from paceline.cli.findings import Finding
from paceline.config_neuron import Neuron
from paceline.platforms import cpu, detect

SHOWN_PROCESSES = 4


def processor(_settings: config.Settings) -> Iterator[Finding]:
    """CPU, and what it means for a CPU engine."""
    features = cpu.features()
    bfloat16 = ", ".join(sorted(features & cpu.BFLOAT16_FEATURES)) or "no bfloat16 instructions"
    yield Finding(
        "CPU", "ok", f"{os.cpu_count()} cores, {bfloat16}: CPU engines use {cpu.default_dtype(features)}"
    )


def gpus(settings: config.Settings) -> Iterator[Finding]:
    """GPUs: name, memory and driver."""
    wanted = any(engine.platform == "cuda" for engine in settings.engines.values())
    remedy = "install the driver, or change `platform`"
    try:
        found = detect.gpus()
    except detect.ToolFailed as error:
        yield Finding("GPU", "problem" if wanted else "warning", str(error), remedy if wanted else "")
        return
    if wanted and not found:
        yield Finding("GPU", "problem", "none, but an engine wants cuda", remedy)
    else:
        yield Finding("GPU", "ok", "; ".join(found) or "none")


def neuron(settings: config.Settings) -> Iterator[Finding]:
    """Neuron device files, what neuron-ls says of them, and whether the configured engines fit."""
    engines = {
        name: engine.neuron
        for name, engine in settings.engines.items()
        if engine.platform == "neuron" and engine.neuron
    }
    files = detect.neuron_files()
    if engines and not files:
        remedy = "take a Trainium instance with AWS's driver (aws-neuronx-dkms), or change `platform`"
        yield Finding("Neuron", "problem", "no device files, but an engine wants neuron", remedy)
    else:
        remedy = 'see docs/trainium.md for an engine with `platform = "neuron"`' if files and not engines else ""
        yield Finding("Neuron", "ok", _named(files), remedy)
    tool = detect.neuron_tool("neuron-ls")
    if tool:
        yield from _listed(tool, len(files), engines)
    elif files:
        remedy = "install aws-neuronx-tools, which has it and neuron-monitor"
        yield Finding("neuron-ls", "warning", "not installed: cores and memory are unknown", remedy)


def _named(files: list[str]) -> str:
    if not files:
        return "none"
    return files[0] if len(files) == 1 else f"{len(files)} device files, {files[0]} to {files[-1]}"


def _listed(tool: str, files: int, engines: dict[str, Neuron]) -> Iterator[Finding]:
    try:
        devices = detect.neuron_devices(tool)
    except detect.ToolFailed as error:
        remedy = "run it yourself; driver and tools must be of one Neuron SDK"
        yield Finding("neuron-ls", "problem" if engines else "warning", str(error), remedy)
        return
    alike = len(devices) == files
    text = "; ".join(_groups(devices)) or "no devices"
    yield Finding(
        "neuron-ls",
        "ok" if alike else "warning",
        text if alike else f"{text}, but {files} device files",
        "" if alike else "a container is given devices by its runtime; else reload the driver",
    )
    if users := _users(devices):
        yield Finding("Neuron processes", "ok", users)
    for name, engine in engines.items():
        yield from _fit(name, engine, devices)


def _groups(devices: list[detect.NeuronDevice]) -> Iterator[str]:
    """Devices that are alike, told once."""
    kinds: dict[tuple[int, int, int | None], int] = {}
    for one in devices:
        kind = (one.nc_count, one.memory_size, one.logical_neuroncore_config)
        kinds[kind] = kinds.get(kind, 0) + 1
    for (cores, size, joined), count in kinds.items():
        lnc = f" (LNC {joined})" if joined else ""
        plural = "s" if count > 1 else ""
        yield f"{count} device{plural}, each {cores} cores{lnc} and {size / disk.GIB:.0f} GiB"


def _users(devices: list[detect.NeuronDevice]) -> str:
    processes = {process.pid: process for device in devices for process in device.neuron_processes}
    shown = [
        f"{process.pid} (runtime {process.neuron_runtime_version or 'unknown'})"
        for process in list(processes.values())[:SHOWN_PROCESSES]
    ]
    more = len(processes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _fit(name: str, engine: Neuron, devices: list[detect.NeuronDevice]) -> Iterator[Finding]:
    """What of an engine's settings the devices contradict."""
    subject, cores = f"engine {name}, cores", sum(one.nc_count for one in devices)
    if max(engine.core_ids) >= cores:
        yield Finding(
            subject,
            "problem",
            f"core {max(engine.core_ids)} is wanted; there are {cores}, from 0",
            "correct `cores` or `tensor_parallel_size` in `[engines.NAME.neuron]`",
        )
    told = {one.logical_neuroncore_config for one in devices} - {None}
    if told and told != {engine.logical_nc_config}:
        yield Finding(
            subject,
            "problem",
            f"logical_nc_config is {engine.logical_nc_config}, the devices have {', '.join(map(str, told))}",
            "set both alike: compiled graphs must match",
        )
