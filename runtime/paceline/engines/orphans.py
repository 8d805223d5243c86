"""Ends engine processes that lost both Paceline and their guardian. Linux only, like the guardian."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

TAG = "_PACELINE_ENGINE"
"""Variable that marks every process of one launched server: NAMESPACE-OWNER-OWNER_START-RANDOM."""


def new_tag() -> str:
    """A tag that names this process as the owner, safe against reused process ids and other containers."""
    return f"{_namespace()}-{os.getpid()}-{_start_ticks(os.getpid())}-{uuid.uuid4().hex}"


def kill_tagged(tag: str) -> None:
    """Kill what a killed guardian could not: every process with this tag."""
    for process, found in _tagged_processes():
        if found == tag:
            _kill(process)


def kill_ownerless() -> None:
    """Kill every tagged process of this process-id namespace whose owner is gone."""
    for process, tag in _tagged_processes():
        namespace, owner, start, _ = tag.split("-")
        if namespace == _namespace() and _start_ticks(int(owner)) != start:
            _kill(process)


def _tagged_processes() -> Iterator[tuple[psutil.Process, str]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if tag := process.environ().get(TAG):
                yield process, tag


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.kill()


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _start_ticks(pid: int) -> str:
    """When the process began, in clock ticks since boot; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
