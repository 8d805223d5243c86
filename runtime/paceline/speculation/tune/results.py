"""The file of measured cells: one JSON line each, so that a measurement that was cut goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline.errors import ConfigError
from paceline.speculation.tune.drafts import Setting
from paceline.speculation.tune.measure import Cell


class Conditions(msgspec.Struct, frozen=True, tag="conditions"):
    """What all cells of a file have in common."""

    target: str
    platform: str
    sample: str
    """`sample.digest` of the steps."""
    engine_args: tuple[str, ...] = ()
    dtype: str = ""
    """Number format of the engine."""
    machine: str = ""
    """Processor and cores."""
    emulated: bool = False
    """No model ran."""


class ResultFile:
    """Cells on disk. Each is there in full, or not at all."""

    def __init__(self, path: Path, conditions: Conditions) -> None:
        """Open or create. A last line that was cut is dropped.

        Raises `ConfigError` for a file of other conditions, or one that is no result file.
        """
        self.path = path
        self.conditions = conditions
        self.cells: list[Cell] = []
        try:
            content = path.read_bytes() if path.exists() else b""
            self._found, self._size = len(content), content.rfind(b"\n") + 1
            if content:
                self._take(content[: self._size], conditions)
            else:
                self._append(conditions)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"--output {path}: is no result of `paceline spec tune` ({error}); name another file"
            ) from None
        except OSError as error:
            raise ConfigError(f"--output {path}: {error.strerror}; name another file") from None

    def add(self, cell: Cell) -> None:
        """Keep a cell. It is on disk when this returns. Raises `ConfigError` where it cannot be written, where
        somebody else has written to the file, and for a cell of another version of the engine."""
        self.check_engine(cell.engine)
        self._append(cell)
        self.cells.append(cell)

    def check_engine(self, version: str) -> None:
        """Raise `ConfigError` unless all cells are of this version."""
        versions = {other.engine for other in self.cells} - {version}
        if versions:
            raise ConfigError(
                f"--output {self.path}: was measured with version {versions.pop()} of the engine, this is "
                f"{version}; name another file"
            )

    def missing(self, setting: Setting, concurrencies: Sequence[int], repeat: int) -> list[int]:
        """Of these numbers of steps at once, those without a cell."""
        done = {cell.place for cell in self.cells}
        return [one for one in concurrencies if (setting, one, repeat) not in done]

    def _take(self, content: bytes, conditions: Conditions) -> None:
        first, _, rest = content.partition(b"\n")
        found = msgspec.json.decode(first, type=Conditions)
        names = [name for name in found.__struct_fields__ if getattr(found, name) != getattr(conditions, name)]
        if names:
            other = ", ".join(names)
            raise ConfigError(f"--output {self.path}: was measured with another {other}; name another file")
        self.cells = [msgspec.json.decode(line, type=Cell) for line in rest.splitlines()]

    def _append(self, line: Conditions | Cell) -> None:
        content = msgspec.json.encode(line) + b"\n"
        try:
            self._write(content)
        except OSError as error:
            raise ConfigError(
                f"--output {self.path}: {error.strerror}; make room, or name another file (what it has is kept)"
            ) from None
        self._size += len(content)
        self._found = self._size

    def _write(self, content: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            if file.seek(0, os.SEEK_END) != self._found:
                raise ConfigError(f"--output {self.path}: another `spec tune` writes to it; run one at a time")
            file.seek(self._size)
            file.truncate()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
