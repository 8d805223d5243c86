"""Runs AWS's neuron-monitor beside the engines and hands on what it reports."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import structlog

from paceline.engines import neuron_report
from paceline.engines.neuron_report import BadReport, NeuronSample

SILENCE_SECONDS = 60.0
"""A process that reports nothing for so long is started anew; it reports each 5 s by itself."""
FIRST_DELAY = 5.0
MAX_DELAY = 300.0
GRACE_SECONDS = 5.0
LINE_BYTES = 64 << 20
"""Most of a line is about loaded graphs, which are many."""

log = structlog.get_logger()


class Watcher(Protocol):
    """Learns what neuron-monitor reports."""

    def neuron_seen(self, sample: NeuronSample) -> None:
        """One report."""

    def neuron_lost(self) -> None:
        """There are no reports any more, for now."""


class NeuronMonitor:
    """Runs until cancelled. When the process ends or falls silent it is started again, with back-off."""

    def __init__(
        self,
        tool: str,
        replicas: frozenset[str],
        watcher: Watcher,
        *,
        silence: float = SILENCE_SECONDS,
        first_delay: float = FIRST_DELAY,
    ) -> None:
        self._tool = tool
        self._replicas = replicas
        self._watcher = watcher
        self._silence = silence
        self._first_delay = first_delay
        self._told: tuple[str, ...] = ()
        self._reported = False

    async def run(self) -> None:
        """Start it, read it, start it again, for ever."""
        delay = self._first_delay
        while True:
            self._reported = False
            reason = await self._follow()
            self._watcher.neuron_lost()
            if self._reported:
                delay = self._first_delay
            log.warning("neuron_monitor_lost", tool=self._tool, reason=reason, again_seconds=delay)
            await asyncio.sleep(delay)
            delay = min(MAX_DELAY, 2 * delay)

    async def _follow(self) -> str:
        """Read reports until no more come; returns why."""
        try:
            async with self._output() as output:
                while line := await self._next(output):
                    self._take(line)
        except TimeoutError:
            return f"no report within {self._silence:g} s"
        except OSError as error:
            return error.strerror or str(error)
        return "it ended; run it yourself to see why"

    async def _next(self, output: asyncio.StreamReader) -> bytes:
        """The next line; empty at the end."""
        try:
            async with asyncio.timeout(self._silence):
                return await output.readline()
        except ValueError:
            raise OSError(errno.EMSGSIZE, f"a line of more than {LINE_BYTES} bytes") from None

    def _take(self, line: bytes) -> None:
        """Hand a report on; one that is none is told once and skipped."""
        try:
            sample = neuron_report.read(line, self._replicas)
        except BadReport as error:
            self._tell((f"unreadable report: {error}",))
            return
        self._reported = True
        self._tell(sample.problems)
        self._watcher.neuron_seen(sample)

    def _tell(self, problems: tuple[str, ...]) -> None:
        if problems and problems != self._told:
            log.warning("neuron_monitor_incomplete", tool=self._tool, problems=problems)
        self._told = problems

    @asynccontextmanager
    async def _output(self) -> AsyncIterator[asyncio.StreamReader]:
        """Standard output of the running process; on leaving, it is gone.

        The pipe is our own: asyncio's hangs when it is cancelled while it starts a process. A process whose reader
        was killed is ended by its next report.
        """
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb", buffering=0) as source:
            try:
                process = await self._start(write_end)
            finally:
                os.close(write_end)
            try:
                reader = asyncio.StreamReader(limit=LINE_BYTES)
                transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                    lambda: asyncio.StreamReaderProtocol(reader), source
                )
                try:
                    yield reader
                finally:
                    transport.close()
            finally:
                await _end(process)

    async def _start(self, output: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            self._tool,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")},
            start_new_session=True,
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process and what it has started: its group is its own."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
