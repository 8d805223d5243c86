"""Suites: loading, the split, running, and what the demo suite must be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import InvalidArgument
from paceline_agents.cli import DEMO_SUITE
from paceline_agents.repair.localize import rank_lines
from paceline_agents.repair.suite import Case, CaseResult, load_suite, run_cases, same, split


def cases(*pairs: tuple[list[object], object]) -> list[Case]:
    return [Case(tuple(arguments), expected) for arguments, expected in pairs]


def test_every_second_test_is_hidden_and_a_single_one_is_shown() -> None:
    tests = cases(([1], 1), ([2], 2), ([3], 3))

    assert split(tests) == ((tests[0], tests[2]), (tests[1],))
    assert split(tests[:1]) == ((tests[0],), ())


def test_a_suite_is_read_and_split(tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    record = {"name": "f", "buggy_source": "def f(x): ...", "tests": [[[1], 1], [[2], 2]]}
    path.write_text(json.dumps(record) + "\n\n")

    (program,) = load_suite(path)

    assert (program.name, program.source) == ("f", "def f(x): ...")
    assert [case.call("f") for case in program.shown + program.hidden] == ["f(1)", "f(2)"]


@pytest.mark.parametrize("line", ["{", "[]", '{"name": "f"}', '{"name": "f", "buggy_source": "", "tests": []}'])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "suite.jsonl"
    path.write_text(line)

    with pytest.raises(InvalidArgument, match="line 1"):
        load_suite(path)


async def test_values_generators_exceptions_and_endless_loops_are_told_apart() -> None:
    source = (
        "def f(x):\n"
        "    print('noise')\n"
        "    if x == 'gen':\n"
        "        return (i for i in range(3))\n"
        "    if x == 'raise':\n"
        "        raise KeyError('k')\n"
        "    while x == 'loop':\n"
        "        pass\n"
        "    return (1, 2)\n"
    )
    tests = cases((["gen"], [0, 1, 2]), (["raise"], 1), (["loop"], 1), (["x"], [1, 2]), (["x"], [1, 3]))

    gen, raised, loop, value, wrong = await run_cases(source, "f", tests, seconds=0.3)

    assert [result.passed for result in (gen, raised, loop, value, wrong)] == [True, False, False, True, False]
    assert (raised.got, raised.line) == ("KeyError: 'k'", 6)
    assert "endless loop" in loop.got
    assert loop.line in {7, 8}
    assert wrong.got == "(1, 2)"


async def test_a_process_that_dies_keeps_the_results_before() -> None:
    source = "import os\ndef f(x):\n    if x: os._exit(7)\n    return 0\n"

    first, second, third = await run_cases(source, "f", cases(([0], 0), ([1], 0), ([0], 0)))

    assert first.passed
    assert not second.passed
    assert "exit code 7" in second.got
    assert not third.passed


async def test_a_program_that_does_not_load_fails_each_test_with_its_line() -> None:
    results = await run_cases("x = 1\ny = 1 / 0\n", "f", cases(([0], 0), ([1], 0)))

    assert [(result.passed, result.line) for result in results] == [(False, 2), (False, 2)]
    (missing,) = await run_cases("x = 1\n", "f", cases(([0], 0)))
    assert "f" in missing.got


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (0.1 + 0.2, 0.3, True),
        (1, 1.0, True),
        (True, 1, False),
        ([1, [2.0000000000001]], [1, [2]], True),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"b": 1}, False),
        ("a", "b", False),
        (None, None, True),
    ],
)
def test_values_are_compared_as_json(value: object, expected: object, *, equal: bool) -> None:
    assert same(value, expected) is equal


async def test_the_line_that_only_failing_tests_run_is_most_suspicious() -> None:
    source = "def f(x):\n    y = x\n    if x > 1:\n        y = x + 2\n    return y\n"
    results = await run_cases(source, "f", cases(([1], 1), ([2], 3), ([0], 0)), trace=True)

    assert rank_lines(source, results, "f")[0] == 4


def test_without_results_lines_that_compute_more_come_first() -> None:
    source = (
        "import os\n\ndef f(x):\n    '''Text.'''\n    y = x\n    return g(y) + [1][0]\n\ndef g(x):\n    return x\n"
    )

    assert rank_lines(source, [], "f") == [6, 5]
    assert rank_lines(source, []) == [6, 5, 9]
    assert rank_lines("def (", []) == []


def _failing(results: list[CaseResult]) -> int:
    return sum(not result.passed for result in results)


async def test_each_demo_program_fails_shown_and_hidden_tests() -> None:
    programs = load_suite(DEMO_SUITE)

    assert 4 <= len(programs) <= 6
    for program in programs:
        assert _failing(await run_cases(program.source, program.name, program.shown)) > 0, program.name
        assert _failing(await run_cases(program.source, program.name, program.hidden)) > 0, program.name
