"""Runs the probe in an engine's Python."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import EngineStartError
from paceline.speculation import estimate
from paceline.speculation.shapes import Shapes

PROBE = Path(estimate.__file__).with_name("probe.py")


class Timings(msgspec.Struct, frozen=True):
    """What the probe found."""

    seconds: dict[str, dict[int, list[float]]]
    """By model and tokens per pass, a number per pass."""
    device_name: str
    threads: int
    torch: str
    matrix_bytes: int
    """Of the matrices that the probe held."""
    model_bytes: int
    """Of those that the models have; where more, matrices were used repeatedly."""


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """How to measure."""

    python: Path
    device: str
    dtype: str
    repeats: int
    memory_bytes: int
    preload: Sequence[Path] = ()
    """Libraries that the engine loads first."""

    def run(self, models: Mapping[str, Shapes], token_counts: Sequence[int]) -> Timings:
        """Time passes of each model over so many tokens. Blocks, for minutes with large models.

        Raises `EngineStartError` where the Python has no torch or no such device.
        """
        wanted: dict[str, Any] = {
            "device": self.device,
            "dtype": self.dtype,
            "repeats": self.repeats,
            "memory_bytes": self.memory_bytes,
            "token_counts": list(token_counts),
            "models": {
                name: [dataclasses.asdict(item) for item in found.products] for name, found in models.items()
            },
        }
        # -I: the folder of the probe has modules that torch would mistake for its own
        command = [str(self.python), "-I", str(PROBE)]
        result = subprocess.run(  # noqa: S603 - our own command
            command, input=msgspec.json.encode(wanted), capture_output=True, check=False, env=self._environment()
        )
        if result.returncode != 0:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"exit code {result.returncode}, perhaps out of memory"
            raise EngineStartError(f"the probe failed in {self.python}: {reason}", python=self.python)
        try:
            return msgspec.json.decode(result.stdout.splitlines()[-1], type=Timings)
        except (IndexError, msgspec.DecodeError) as error:
            raise EngineStartError(f"the probe in {self.python} gave no answer: {error}") from error

    def _environment(self) -> dict[str, str]:
        loaded = [*map(str, self.preload), *os.environ.get("LD_PRELOAD", "").split()]
        return os.environ | ({"LD_PRELOAD": " ".join(loaded)} if loaded else {})
