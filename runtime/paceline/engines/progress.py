"""What an engine's log says: how far the start is, and why it failed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

Phase = Literal["loading", "compiling"]

_STEPS: list[tuple[re.Pattern[str], Phase, str]] = [
    (re.compile(r"Resolved architecture: (\w+)"), "loading", "reading {0}"),
    (re.compile(r"Starting to load model"), "loading", "loading weights"),
    (re.compile(r"Loading \w+ checkpoint shards:\s+(\d+)%"), "loading", "loading weights, {0} %"),
    (re.compile(r"Loading weights took ([\d.]+)"), "loading", "weights loaded in {0} s"),
    (re.compile(r"Loading drafter model"), "loading", "loading the drafter"),
    (re.compile(r"Compiling a graph, (\d+ of \d+)"), "compiling", "compiling, graph {0}"),
    (re.compile(r"torch\.compile takes|Compiling a graph|Dynamo bytecode transform"), "compiling", "compiling"),
    (re.compile(r"[Ww]arming up"), "compiling", "warming up"),
    (re.compile(r"Capturing CUDA graphs?[^:]*:\s+(\d+)%"), "compiling", "capturing CUDA graphs, {0} %"),
    (re.compile(r"KV cache size: ([\d,]+) tokens"), "loading", "KV cache holds {0} tokens"),
    (re.compile(r"Starting vLLM server"), "loading", "opening the port"),
]
_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) )?((INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
_CAUSE = re.compile(r"^\s*[\w.]*(Error|Exception|Interrupt|Exit)\b:? ?|^\S+: error: |: No such file|[Kk]illed")
_SECONDHAND = re.compile(r"Engine core initialization failed|See root cause above")
_TAIL_BYTES = 256 * 1024


def step(line: str) -> tuple[Phase, str] | None:
    """The phase (`loading`, `compiling`) and detail that a log line announces; None for any other line."""
    for pattern, phase, detail in _STEPS:
        if match := pattern.search(line):
            return phase, detail.format(*match.groups())
    return None


def cause(log: Path) -> str:
    """The line of the log that tells best why the engine ended: its last own error, else its last line."""
    lines = [_PREFIX.sub("", line).strip() for line in _tail(log)]
    lines = [line for line in lines if line]
    errors = [line for line in lines if _CAUSE.search(line) and not _SECONDHAND.search(line)]
    return (errors or lines or ["the log is empty"])[-1]


def _tail(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


class LogReader:
    """Reads what was added to a log since the last call."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0

    def new_lines(self) -> list[str]:
        """The added lines; progress bars redraw theirs, so each drawing counts as one."""
        with self._log.open("rb") as file:
            file.seek(self._offset)
            added = file.read()
        self._offset += len(added)
        return added.decode(errors="replace").splitlines()
