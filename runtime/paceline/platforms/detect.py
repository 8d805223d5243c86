"""Which accelerators this machine has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def gpus() -> list[str]:
    """One line per NVIDIA GPU: name, memory, driver. Empty without a working driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, check=False, timeout=20
        )
    except subprocess.TimeoutExpired:
        return []
    return result.stdout.strip().splitlines() if result.returncode == 0 else []


def neuron_devices(dev: Path = Path("/dev")) -> list[str]:
    """The names of the Neuron device files."""
    return sorted(path.name for path in dev.glob("neuron[0-9]*"))
