"""Run a command with limits of time, memory and output; whatever it started is killed at the end.

The command gets a session of its own. On Linux processes that left the session are found by a mark in their
environment. This contains mistakes of generated code; it is no defence against code that wants to do harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

API_KEY = "PACELINE_API_KEY"
"""Environment variable with the key of the server."""
MARK = "PACELINE_SANDBOX"
_MIB = 1 << 20
_CHUNK = 65536
_LAST_WORDS = 0.05
"""Seconds to wait for output that the command wrote just before its end."""
_KILL_SECONDS = 5.0
"""Longest wait for killed processes to vanish."""
_SET_LIMITS = (
    "import os, resource, sys\n"
    "memory, file_size = int(sys.argv[1]), int(sys.argv[2])\n"
    "resource.setrlimit(resource.RLIMIT_AS, (memory, memory))\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))\n"
    "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    "os.execvp(sys.argv[3], sys.argv[3:])\n"
)

End = Literal["exit", "timeout", "output_limit"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one command."""

    seconds: float = 20.0
    """Wall-clock time."""
    memory_bytes: int = 1024 * _MIB
    """Address space of each process."""
    output_bytes: int = _MIB
    """Standard output and standard error together."""
    file_bytes: int = 64 * _MIB
    """Largest file that a process may write."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of a command."""

    end: End
    """`exit`: it ended by itself. Else the limit that it met."""
    exit_code: int
    """Its exit code; negative: the signal that ended it."""
    output: str
    """Standard output and standard error, as they came, up to the limit."""
    seconds: float
    """Wall-clock time."""

    @property
    def passed(self) -> bool:
        """It ended by itself with exit code 0."""
        return self.end == "exit" and self.exit_code == 0


async def run_limited(
    command: Sequence[str], *, cwd: Path, limits: Limits, env: Mapping[str, str] | None = None
) -> RunResult:
    """Run `command` in `cwd` without standard input.

    `env` is its environment; None: that of this process without the API key.

    Raises OSError when the folder does not exist; a program that does not exist ends with exit code 1 and a
    message in the output.
    """
    mark = uuid.uuid4().hex
    started = time.monotonic()
    reader, write_end, pipe = await _open_pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", "-c", _SET_LIMITS, str(limits.memory_bytes), str(limits.file_bytes)),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            cwd=cwd,
            env={**(_own_environment() if env is None else env), MARK: mark},
            start_new_session=True,
        )
    except BaseException:
        pipe.close()
        raise
    finally:
        os.close(write_end)
    output = bytearray()
    end: End = "exit"
    try:
        async with asyncio.timeout(limits.seconds):
            if not await _read_output(reader, process, output, limits.output_bytes):
                end = "output_limit"
    except TimeoutError:
        end = "timeout"
    finally:
        await _kill_tree(process, mark)
        pipe.close()
    text = output[: limits.output_bytes].decode(errors="replace")
    return RunResult(end, await process.wait(), text, time.monotonic() - started)


def _own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != API_KEY}


async def _open_pipe() -> tuple[asyncio.StreamReader, int, asyncio.ReadTransport]:
    """A pipe of our own: asyncio's process would wait for whatever in the background holds its pipes open."""
    read_end, write_end = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
    )
    return reader, write_end, transport


async def _read_output(
    reader: asyncio.StreamReader, process: asyncio.subprocess.Process, output: bytearray, limit: int
) -> bool:
    """Read until the command has ended; False when there is more than `limit` bytes."""
    ended = asyncio.ensure_future(process.wait())
    chunk = asyncio.ensure_future(reader.read(_CHUNK))
    try:
        while True:
            await asyncio.wait({chunk, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not chunk.done():
                await asyncio.wait({chunk}, timeout=_LAST_WORDS)
            if not chunk.done() or not chunk.result():
                await ended
                return True
            output += chunk.result()
            if len(output) > limit:
                return False
            chunk = asyncio.ensure_future(reader.read(_CHUNK))
    finally:
        ended.cancel()
        chunk.cancel()


async def _kill_tree(process: asyncio.subprocess.Process, mark: str) -> None:
    """Kill the session's process group, then every marked process until none is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    needle = f"{MARK}={mark}".encode()
    give_up = time.monotonic() + _KILL_SECONDS
    while (marked := _processes_with(needle)) and time.monotonic() < give_up:
        for pid in marked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.01)  # the kernel takes them down


def _processes_with(needle: bytes) -> list[int]:
    """Live processes whose environment contains `needle`; none where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or it is somebody else's
            if needle in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found
