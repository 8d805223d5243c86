"""Which accelerators this machine has, as its own tools tell it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

DEV = Path("/dev")
NEURON_TOOLS = Path("/opt/aws/neuron/bin")
"""Where AWS's packages put the tools; often not on the search path."""
TIMEOUT_SECONDS = 20.0


class ToolFailed(Exception):
    """A tool is there and does not tell what it should; the message names the tool."""


class NeuronProcess(BaseModel):
    """A process that uses a Neuron device."""

    pid: int
    command: str = ""
    neuron_runtime_version: str = ""


class NeuronDevice(BaseModel):
    """One entry of `neuron-ls --json-output`, as AWS documents it."""

    neuron_device: int
    nc_count: int
    """Its NeuronCores: logical ones, where cores are joined."""
    memory_size: int
    """In bytes."""
    logical_neuroncore_config: int | None = None
    """Physical cores that are joined to a logical one; Trainium2 and later only."""
    neuroncore_ids: list[int] = []
    neuron_processes: list[NeuronProcess] = []


def gpus() -> list[str]:
    """One line per NVIDIA GPU: name, memory, driver. Empty without nvidia-smi.

    Raises `ToolFailed` when it fails, as it does without a driver.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    return _output([tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]).splitlines()


def neuron_files() -> list[str]:
    """The names of the Neuron device files, by number."""
    names = [path.name for path in DEV.glob("neuron*") if path.name.removeprefix("neuron").isdigit()]
    return sorted(names, key=lambda name: int(name.removeprefix("neuron")))


def neuron_tool(name: str) -> str | None:
    """The path of one of the Neuron tools: on the search path, else where AWS's packages put it."""
    return shutil.which(name) or shutil.which(name, path=str(NEURON_TOOLS))


def neuron_devices(tool: str) -> list[NeuronDevice]:
    """What neuron-ls, at the path `tool`, lists. Raises `ToolFailed`."""
    text = _output([tool, "--json-output"])
    try:
        return TypeAdapter(list[NeuronDevice]).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "output"
        raise ToolFailed(f"{tool} printed something else than expected: {where}: {first['msg']}") from None


def _output(command: Sequence[str]) -> str:
    """Standard output of a tool. Raises `ToolFailed`."""
    try:
        result = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ToolFailed(f"{command[0]} did not end within {TIMEOUT_SECONDS:g} s") from None
    except OSError as error:
        raise ToolFailed(f"{command[0]}: {error.strerror}") from None
    if result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise ToolFailed(f"{command[0]} failed ({result.returncode}): {said[-1] if said else 'it says nothing'}")
    return result.stdout.strip()
