"""Stand-ins for what a machine with accelerators has: its tools, its device files and an engine's venv."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

GIB = 1 << 30


def device(index: int, **changes: Any) -> dict[str, Any]:
    """An entry of `neuron-ls --json-output` as AWS's documents show it for trn2; None leaves a field out."""
    entry: dict[str, Any] = {
        "neuron_device": index,
        "bdf": f"{index:02x}:00.0",
        "cpu_affinity": "48-95,144-191",
        "numa_node": "1",
        "connected_to": [12, 3, 4, 1],
        "nc_count": 4,
        "logical_neuroncore_config": 2,
        "memory_size": 96 * GIB,
        "neuroncore_ids": [index * 4 + core for core in range(4)],
        "neuron_processes": [],
    }
    return {name: value for name, value in (entry | changes).items() if value is not None}


class Machine:
    """A folder of tools and a folder of device files."""

    def __init__(self, folder: Path) -> None:
        self.tools, self.dev = folder / "tools", folder / "dev"
        self.tools.mkdir()
        self.dev.mkdir()

    def tool(self, name: str, script: str) -> None:
        """A tool that runs a shell script."""
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def prints(self, name: str, text: str, *, arguments: str) -> None:
        """A tool that prints the text if called with exactly these arguments, else fails."""
        answer = self.tools / f"{name}.out"
        answer.write_text(text)
        self.tool(name, f'[ "$*" = "{arguments}" ] || exit 64\nexec cat {answer}')

    def neuron(self, *devices: dict[str, Any]) -> None:
        """Neuron devices with their files, listed by neuron-ls."""
        for number in range(len(devices)):
            (self.dev / f"neuron{number}").touch()
        self.prints("neuron-ls", json.dumps(devices), arguments="--json-output")


def venv(folder: Path, packages: dict[str, str], modules: dict[str, str]) -> str:
    """The Python of a new venv: distributions with their versions, and the source of importable modules."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name, version in packages.items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for module, source in modules.items():
        path = site / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    return str(folder / "bin/python")
