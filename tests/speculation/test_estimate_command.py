"""`paceline spec estimate` from outside, the probe included."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests.speculation.test_shapes import dense
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import EngineStartError
from paceline.speculation.shapes import Product, Shapes
from paceline.speculation.timing import Probe

runner = CliRunner()


def estimate(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, ["spec", "estimate", *arguments], env={"COLUMNS": "120"})
    return result.exit_code, result.stdout + result.stderr


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(dense().write(tmp_path / "target"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name --drafter or --method"),
        (("--method", "dflash"), "the estimate knows draft_model, eagle3, ngram, suffix"),
        (("--method", "draft_model"), "needs one"),
        (("--method", "ngram", "--drafter", "x/y"), "has none"),
        (("--method", "ngram", "--platform", "tpu"), "take one of cpu, cuda, neuron"),
        (("--method", "ngram", "--platform", "neuron"), "torch-neuronx"),
        (("--method", "ngram", "--engine-python", sys.executable, "--dtype", "int3"), "take one of float32"),
        (("--method", "ngram", "--engine-python", "/nowhere/python"), "does not exist"),
    ],
)
def test_options_that_do_not_fit(target: str, arguments: tuple[str, ...], message: str) -> None:
    code, output = estimate("--target", target, *arguments)
    assert code == 1
    assert message in output


def test_a_python_that_cannot_measure_says_why(target: str, tmp_path: Path) -> None:
    """A Python without torch, as the last line of its own complaint."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncat > /dev/null\necho one >&2\necho \"No module named 'torch'\" >&2\nexit 1\n")
    python.chmod(0o755)
    code, output = estimate("--target", target, "--method", "ngram", "--engine-python", str(python))
    assert code == 1
    assert f"the probe failed in {python}: No module named 'torch'" in output


def test_a_probe_without_an_answer(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncat > /dev/null\necho '{}'\n")
    python.chmod(0o755)
    probe = Probe(python, "cpu", "float32", 2, 2**20)
    with pytest.raises(EngineStartError, match="gave no answer"):
        probe.run({"target": Shapes((Product(2, 2),), "weights")}, [1])


@pytest.mark.engine
def test_a_tiny_pair_is_measured(target: str, tmp_path: Path) -> None:
    drafter = str(dense().write(tmp_path / "drafter"))
    python = os.environ["PACELINE_TEST_ENGINE_PYTHON"]
    options = ("--engine-python", python, "--k", "3", "--repeats", "4", "--context", "50", "--dtype", "float32")
    code, output = estimate("--target", target, "--drafter", drafter, *options, "--json")
    assert code == 0, output
    found = json.loads(output)
    assert [point["k"] for point in found["points"]] == [1, 2, 3]
    for model in ("target", "drafter"):
        passes = {tokens: len(seconds) for tokens, seconds in found["seconds"][model].items()}
        assert passes == {"1": 12, "2": 4, "3": 4, "4": 4}, "the base of every ratio is measured more often"
    assert all(point["break_even"] > 1 for point in found["points"]), "an equal drafter costs at least as much"
    assert found["matrix_bytes"] == found["model_bytes"]
    code, output = estimate("--target", target, "--method", "ngram", *options)
    assert code == 0, output
    assert "attention over 50 tokens is in" in output
    assert "ASSUMING" in output


@pytest.mark.engine
def test_memory_is_bounded() -> None:
    """Four matrices of 1 MiB each in half the memory: two are used twice."""
    probe = Probe(Path(os.environ["PACELINE_TEST_ENGINE_PYTHON"]), "cpu", "float32", 2, 2 * 2**20)
    found = probe.run({"target": Shapes((Product(512, 512, 4),), "weights")}, [1, 2])
    assert (found.matrix_bytes, found.model_bytes) == (2 * 2**20, 4 * 2**20)
    assert found.seconds["target"].keys() == {1, 2}


@pytest.mark.engine
def test_a_device_that_is_not_there() -> None:
    probe = Probe(Path(os.environ["PACELINE_TEST_ENGINE_PYTHON"]), "neuron", "bfloat16", 2, 2**20)
    with pytest.raises(EngineStartError, match="no device neuron"):
        probe.run({"target": Shapes((Product(2, 2),), "weights")}, [1])
