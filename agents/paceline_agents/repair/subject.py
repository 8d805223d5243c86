"""What is repaired: a program of a suite, or a file of the user with its test command."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paceline.errors import InvalidArgument
from paceline_agents.repair import prompts
from paceline_agents.repair.localize import rank_lines
from paceline_agents.repair.sandbox import Limits, RunResult, run_limited
from paceline_agents.repair.suite import Program, run_cases

_LONGEST_FILE = 20_000
_LONGEST_OUTPUT = 2_000


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the tests that may be shown say about one version of the program."""

    passed: bool
    failures: str
    """What goes wrong, for a prompt that shows this version."""
    examples: str
    """What must come out, for a prompt that does not."""
    suspects: tuple[int, ...]
    """Line numbers of this version, most suspicious first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all tests say, the hidden ones included."""

    exit_code: int
    """Of the check: 0 when everything passes."""
    note: str

    @property
    def passed(self) -> bool:
        """Everything passes."""
        return self.exit_code == 0


class Subject(Protocol):
    """A program to repair."""

    @property
    def name(self) -> str:
        """What to call it in reports."""

    @property
    def source(self) -> str:
        """Its text before the repair."""

    @property
    def function(self) -> str:
        """The function that is wrong; empty when it is not known."""

    async def diagnose(self, source: str) -> Diagnosis:
        """Run the tests that may be shown on a version."""

    async def judge(self, source: str) -> Verdict:
        """Run all tests on a version."""


class SuiteSubject:
    """A program of a suite. Its hidden tests run only in `judge`, which says no more than how many passed."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @property
    def name(self) -> str:
        """The program's name."""
        return self._program.name

    @property
    def source(self) -> str:
        """The buggy source."""
        return self._program.source

    @property
    def function(self) -> str:
        """The function has the program's name."""
        return self._program.name

    async def diagnose(self, source: str) -> Diagnosis:
        """Run the shown tests with a trace of the executed lines."""
        results = await run_cases(source, self.function, self._program.shown, trace=True)
        return Diagnosis(
            all(result.passed for result in results),
            prompts.failures(self.function, source, results),
            prompts.examples(self.function, results),
            tuple(rank_lines(source, results, self.function)),
        )

    async def judge(self, source: str) -> Verdict:
        """Run the shown and the hidden tests."""
        cases = self._program.shown + self._program.hidden
        results = await run_cases(source, self.function, cases)
        passed = sum(result.passed for result in results)
        return Verdict(int(passed < len(cases)), f"{passed} of {len(cases)} tests pass")


class FileSubject:
    """A file of the user, edited in place because its test command reads it. Made by `open_file`."""

    function = ""

    def __init__(self, file: Path, command: str, limits: Limits) -> None:
        self._file, self._command, self._limits = file, command, limits
        self.source = file.read_text(encoding="utf-8")
        self.name = file.name
        self.keep = False
        """Leave the last version in the file when the repair ends."""

    async def diagnose(self, source: str) -> Diagnosis:
        """Run the test command on a version."""
        run = await self._run(source)
        output = run.output[-_LONGEST_OUTPUT:]
        how = f"exit code {run.exit_code}" if run.end == "exit" else run.end
        text = f"The command `{self._command}` fails ({how}). The end of its output:\n```\n{output}\n```"
        named = [number for number in self._lines_named_in(run.output) if number <= len(source.splitlines())]
        ranked = rank_lines(source, [])
        suspects = dict.fromkeys([*(number for number in reversed(named) if number in ranked), *ranked])
        return Diagnosis(run.passed, text, text, tuple(suspects))

    async def judge(self, source: str) -> Verdict:
        """Run the test command: it is the whole check."""
        run = await self._run(source)
        exit_code = run.exit_code if run.end == "exit" else 1
        self.keep = exit_code == 0
        return Verdict(exit_code, self._command)

    async def _run(self, source: str) -> RunResult:
        self._file.write_text(source, encoding="utf-8")
        return await run_limited(shlex.split(self._command), cwd=Path.cwd(), limits=self._limits)

    def _lines_named_in(self, output: str) -> list[int]:
        pattern = re.escape(self._file.name) + r'(?:", line |:)(\d+)'
        return [int(number) for number in re.findall(pattern, output)]


@contextlib.contextmanager
def open_file(file: Path, command: str, limits: Limits) -> Iterator[FileSubject]:
    """A file under repair. It gets its old text back unless the last judged version passes.

    The old text is in `FILE.orig` meanwhile, for the case that this process is killed. Raises InvalidArgument for
    a file that is too long for a prompt, OSError when it cannot be read or written.
    """
    if file.stat().st_size > _LONGEST_FILE:
        raise InvalidArgument(f"{file} is longer than {_LONGEST_FILE} bytes; name a smaller file", field="file")
    subject = FileSubject(file, command, limits)
    backup = file.with_name(file.name + ".orig")
    if backup.exists():
        raise InvalidArgument(
            f"{backup} is left from a killed run; compare it with {file} and delete it", field="file"
        )
    backup.write_text(subject.source, encoding="utf-8")
    try:
        yield subject
    finally:
        if not subject.keep:
            file.write_text(subject.source, encoding="utf-8")
        backup.unlink()
