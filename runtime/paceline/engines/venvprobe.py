"""What vLLM and torch see, told as one JSON object on standard output. Run as a file by an engine's Python.

Nothing is put on a device: a process that opens NeuronCores takes them from the others. What fails is told, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Print the object. Whatever else is printed meanwhile goes to standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    errors: dict[str, str] = {}
    found = {}
    for name, package, read in (
        ("torch_neuronx", "torch_neuronx", _torch_neuronx),
        ("accelerator", "torch", _accelerator),
        ("platform", "vllm", _platform),
    ):
        if importlib.util.find_spec(package):
            found[name] = _attempt(name, read, errors)
    os.write(answer, json.dumps({**found, "errors": errors}).encode())


def _attempt(name: str, read: Callable[[], Any], errors: dict[str, str]) -> Any:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - whatever foreign code raises is what is to be told
        errors[name] = f"{type(error).__name__}: {error}"
        return None


def _torch_neuronx() -> bool:
    import torch_neuronx  # noqa: F401, PLC0415 - in engine venvs only, and may fail

    return True


def _accelerator() -> dict[str, Any] | None:
    import torch  # noqa: PLC0415 - in engine venvs only, and may fail

    if not torch.accelerator.is_available():
        return None
    return {"type": torch.accelerator.current_accelerator().type, "count": torch.accelerator.device_count()}


def _platform() -> str:
    from vllm.platforms import current_platform  # noqa: PLC0415 - in engine venvs only, and may fail

    return getattr(current_platform, "device_name", "") or getattr(current_platform, "device_type", "")


if __name__ == "__main__":
    main()
