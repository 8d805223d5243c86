"""What an engine's Python has and sees, for people who look for the reason why it does not start."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pydantic import BaseModel, ValidationError

from paceline.engines import venvprobe
from paceline.errors import EngineStartError

TIMEOUT_SECONDS = 180.0
"""vLLM's import is slow from a cold disk."""
PLACEHOLDERS = {
    "vllm-neuron": "0.1.0",
    "torch-neuronx": "1.0",
    "neuronx-cc": "1.0.post1",
    "libneuronxla": "1.0",
    "libtorch-neuronx-lite": "0.0.1",
}
"""Packages that PyPI has by name only; AWS publishes the real ones in its own index."""


class Accelerator(BaseModel):
    """What `torch.accelerator` tells."""

    type: str
    count: int


class Seen(BaseModel):
    """What the packages of a venv see of the machine. None: not installed, or it failed."""

    platform: str | None = None
    """vLLM's name for the device, such as `cpu`, `cuda` or `neuron`; empty when it found none."""
    accelerator: Accelerator | None = None
    torch_neuronx: bool | None = None
    """Whether torch_neuronx can be imported."""
    errors: dict[str, str]
    """What could not be told, and why."""


def look(python: Path) -> Seen:
    """Import vLLM and torch by an engine's Python, and ask them. Raises `EngineStartError`."""
    command = [str(python), "-I", venvprobe.__file__]
    try:
        result = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise EngineStartError(
            f"{python} did not import vLLM within {TIMEOUT_SECONDS:g} s", python=python
        ) from None
    if result.returncode != 0:
        said = result.stderr.strip().splitlines()
        raise EngineStartError(
            f"{python} ended with {result.returncode} while it imported vLLM: {said[-1] if said else ''}",
            python=python,
        )
    try:
        return Seen.model_validate_json(result.stdout)
    except ValidationError:
        raise EngineStartError(
            f"{python} printed something else than expected: {result.stdout[:80]!r}", python=python
        ) from None


def placeholders(versions: dict[str, str]) -> list[str]:
    """Those of the packages that are PyPI's placeholders."""
    return [name for name, version in versions.items() if PLACEHOLDERS.get(name) == version]
