"""The repair loop with a model that says what the test wrote, and the command against a real server."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from tests.agents.scripted import Failure, Served, finished, started

from paceline.errors import EngineUnavailable, InvalidArgument
from paceline.v1 import workflow_pb2
from paceline_agents import Answer
from paceline_agents.repair.loop import TurnReport, repair
from paceline_agents.repair.sandbox import Limits
from paceline_agents.repair.subject import SuiteSubject, open_file
from paceline_agents.repair.suite import Case, Program
from paceline_agents.types import SamplingOptions

BUGGY = 'def add(a, b):\n    """Add."""\n    total = a - b\n    return total\n'
FIXED = "```python\ndef add(a, b):\n    total = a + b\n    return total\n```"
SAME = f"```python\n{BUGGY}```"
WRONG = "```python\ndef add(a, b):\n    return a * b\n```"

PROGRAM = Program(
    "add", BUGGY, shown=(Case((1, 2), 3), Case((5, 0), 5)), hidden=(Case((7777, 1), 7778), Case((0, 0), 0))
)


@dataclass
class Model:
    """Answers in order and keeps the questions."""

    answers: list[str]
    asked: list[tuple[str, SamplingOptions, bool]] = field(default_factory=list)

    async def __call__(self, prompt: str, sampling: SamplingOptions, *, fresh: bool) -> Answer:
        self.asked.append((prompt, sampling, fresh))
        return Answer(f"step-{len(self.asked)}", self.answers.pop(0), "stop")


async def test_a_right_answer_ends_the_repair() -> None:
    model = Model([FIXED])

    result = await repair(SuiteSubject(PROGRAM), model, turns=8)

    assert result.verdict.passed
    assert "a + b" in result.source
    assert len(result.answers) == 1
    (prompt, sampling, _) = model.asked[0]
    assert "add(1, 2)" in prompt
    assert "should give `3` but gives `-1`" in prompt
    assert BUGGY.strip() in prompt
    assert sampling["temperature"] == 0.0


async def test_a_wrong_edit_is_fed_back_with_its_own_failures() -> None:
    model = Model([WRONG, FIXED])

    result = await repair(SuiteSubject(PROGRAM), model, turns=8)

    assert result.verdict.passed
    assert "should give `3` but gives `2`" in model.asked[1][0]
    assert [fresh for _, _, fresh in model.asked] == [True, False]


async def test_a_repeated_program_leads_to_gaps_in_fresh_conversations() -> None:
    still_a_gap = "```python\ndef add(a, b):\n    return ____\n```"
    other_sum = "```python\ndef add(a, b):\n    total = b - a\n    return total\n```"
    model = Model([SAME, other_sum, still_a_gap, SAME, SAME, FIXED])
    seen: list[TurnReport] = []

    result = await repair(SuiteSubject(PROGRAM), model, turns=8, on_turn=seen.append)

    assert result.verdict.passed
    assert all(fresh for _, _, fresh in model.asked)
    assert ["    ____\n" in prompt for prompt, _, _ in model.asked] == [False, True, False, True, False, True]
    assert ["return ____" in prompt for prompt, _, _ in model.asked] == [False, False, True, False, True, False]
    assert "a - b" not in model.asked[1][0]
    assert "Wrong in its place: `total = a - b`, `total = b - a`." in model.asked[3][0]
    temperatures = [sampling["temperature"] or 0.0 for _, sampling, _ in model.asked]
    assert temperatures[:5] == [0.0] * 5
    assert temperatures[5] > 0.5
    assert [report.number for report in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[0].what == "a version that was tried before"
    assert seen[1].what == "a new version, still wrong"
    assert "still has the gap" in seen[2].what
    assert seen[5].what == "the shown tests pass"


async def test_the_turns_are_a_limit_and_the_program_stays_as_it_was() -> None:
    model = Model([WRONG, "no code at all", SAME])

    result = await repair(SuiteSubject(PROGRAM), model, turns=3)

    assert not result.verdict.passed
    assert (result.verdict.exit_code, result.verdict.note) == (1, "2 of 4 tests pass")
    assert result.source == BUGGY
    assert model.answers == []


async def test_hidden_tests_judge_and_are_never_shown() -> None:
    cheat = "```python\ndef add(a, b):\n    return 3 if a == 1 else 5\n```"
    model = Model([WRONG, cheat])

    result = await repair(SuiteSubject(PROGRAM), model, turns=8)

    assert not result.verdict.passed
    assert result.verdict.note == "2 of 4 tests pass"
    assert model.answers == []
    assert not any("7777" in prompt for prompt, _, _ in model.asked)


async def test_a_program_whose_shown_tests_pass_already_is_asked_about_all_the_same() -> None:
    program = Program("add", BUGGY, shown=(Case((5, 0), 5),), hidden=(Case((1, 2), 3),))
    model = Model([FIXED])

    result = await repair(SuiteSubject(program), model, turns=2)

    assert result.verdict.passed


@pytest.fixture
def project(tmp_path: Path) -> tuple[Path, str]:
    """A file of the user, and a command that tests it."""
    file = tmp_path / "adder.py"
    file.write_text(BUGGY)
    check = tmp_path / "check.py"
    check.write_text("import adder\nassert adder.add(2, 3) == 5, 'sum is wrong'\n")
    return file, f"{sys.executable} -B {check}"


async def test_a_file_is_repaired_in_place(project: tuple[Path, str]) -> None:
    file, command = project
    model = Model([FIXED])
    with open_file(file, command, Limits()) as subject:
        result = await repair(subject, model, turns=2)

    assert result.verdict.exit_code == 0
    assert "a + b" in file.read_text()
    assert sorted(path.name for path in file.parent.glob("adder.py*")) == ["adder.py"]
    assert "sum is wrong" in model.asked[0][0]


async def test_a_file_that_stays_broken_gets_its_text_back(project: tuple[Path, str]) -> None:
    file, command = project
    with open_file(file, command, Limits()) as subject:
        result = await repair(subject, Model([WRONG]), turns=1)

    assert result.verdict.exit_code == 1
    assert file.read_text() == BUGGY


async def test_a_file_gets_its_text_back_when_the_model_is_lost(project: tuple[Path, str]) -> None:
    file, command = project

    async def answers_once(prompt: str, sampling: SamplingOptions, *, fresh: bool) -> Answer:
        if "still wrong" in prompt:
            assert "a * b" in file.read_text()
            raise EngineUnavailable
        return Answer("step-0001", WRONG, "stop")

    with open_file(file, command, Limits()) as subject, pytest.raises(EngineUnavailable):
        await repair(subject, answers_once, turns=8)

    assert file.read_text() == BUGGY


async def test_the_lines_of_a_traceback_come_first(project: tuple[Path, str]) -> None:
    file, command = project
    file.write_text("def add(a, b):\n    total = [a + b, a - b, a * b][0]\n    return total.value\n")
    with open_file(file, command, Limits()) as subject:
        diagnosis = await subject.diagnose(subject.source)

    assert diagnosis.suspects == (3, 2)


def test_a_backup_of_a_killed_run_is_not_overwritten(project: tuple[Path, str]) -> None:
    file, command = project
    backup = file.with_name("adder.py.orig")
    backup.write_text("precious")

    with pytest.raises(InvalidArgument, match="killed run"), open_file(file, command, Limits()):
        pass

    assert backup.read_text() == "precious"


async def agent(*arguments: str) -> tuple[int, str, str]:
    """Run the command as a process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", "from paceline_agents.cli import main; main()", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def outcome(served: Served) -> workflow_pb2.Outcome:
    """The outcome that the server was told last."""
    told: workflow_pb2.Outcome = next(
        request.outcome for request in reversed(served.script.requests) if hasattr(request, "outcome")
    )
    return told


async def test_the_command_repairs_a_file_and_finishes_its_workflow(
    served: Served, project: tuple[Path, str], tmp_path: Path
) -> None:
    file, command = project
    served.script.runs = [[started(), finished(SAME)], [started(), finished(FIXED)]]
    report = tmp_path / "report.json"

    code, out, err = await agent(
        *("repair", "--file", str(file), "--tests", command, "--target", served.target),
        *("--label", "team=a", "--json", str(report)),
    )

    assert (code, err) == (0, "")
    assert "a + b" in file.read_text()
    assert "+    total = a + b" in out
    told = outcome(served)
    assert (told.kind, told.source) == (
        workflow_pb2.OUTCOME_KIND_SUCCEEDED,
        workflow_pb2.OUTCOME_SOURCE_CHECK_COMMAND,
    )
    assert (told.HasField("check_exit_code"), told.check_exit_code) == (True, 0)
    create = served.script.requests[0]
    assert create.labels == {"team": "a", "agent": "paceline-agent", "program": "adder.py"}
    assert "____" in served.script.requests[2].conversation.messages[0].content
    (row,) = json.loads(report.read_text())["programs"]
    assert (row["outcome"], row["steps"], row["cost_nanos"]) == ("repaired", 2, 42)
    assert row["cached_tokens"] is None
    assert row["drafted_tokens"] is None
    assert "EXAMPLE" in out


async def test_every_program_of_a_suite_is_listed_also_one_that_was_given_up(
    served: Served, tmp_path: Path
) -> None:
    tests = [[[1, 2], 3], [[2, 2], 4]]
    suite = tmp_path / "suite.jsonl"
    records = [{"name": "add", "buggy_source": BUGGY, "tests": tests} for _ in range(3)]
    suite.write_text("\n".join(map(json.dumps, records)))
    served.script.runs = [
        [started(), finished(FIXED)],
        [started(), Failure(grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_TOO_LONG")],
        [started(), finished(SAME)],
    ]
    report = tmp_path / "report.json"

    code, out, err = await agent(
        *("repair", "--suite", str(suite), "--turns", "1", "--target", served.target, "--json", str(report))
    )

    assert (code, err) == (1, "")
    written = json.loads(report.read_text())
    assert [row["outcome"] for row in written["programs"]] == ["repaired", "abandoned", "failed"]
    assert written["summary"]["repaired"] == 1
    assert written["summary"]["known_outcomes"] == 2
    assert written["summary"]["cost_per_repaired_nanos"] == 3 * 42
    assert "1 of 3 repaired" in out
    assert "CONTEXT_TOO_LONG" in out
    assert outcome(served).kind == workflow_pb2.OUTCOME_KIND_FAILED


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["repair"], "one of the arguments"),
        (["repair", "--file", "x.py"], "--tests"),
        (["repair", "--suite", "missing.jsonl"], "missing.jsonl"),
        (["repair", "--demo", "--label", "x"], "K=V"),
        (["repair", "--demo", "--turns", "0"], "above 0"),
    ],
)
async def test_wrong_usage_is_named(arguments: list[str], complaint: str) -> None:
    code, _, err = await agent(*arguments)

    assert code == 2
    assert complaint in err
    assert "Traceback" not in err
