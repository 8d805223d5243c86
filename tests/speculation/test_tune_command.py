"""`paceline spec tune` from outside, on emulated servers whose acceptance and times are known."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.servers import FAST, PACELINE, installed
from tests.speculation.models import pair
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline_agents.aio import AsyncClient

runner = CliRunner()

RATES = (0.95, 0.9, 0.85, 0.1, 0.05, 0.02, 0.01)
STEP, PER_DRAFT = 0.01, 0.001
KS = (1, 3, 7)
TRUE_LENGTHS = dict(enumerate(accumulate(RATES, initial=1.0)))
TRUE_SPEEDS = {k: TRUE_LENGTHS[k] / (STEP + PER_DRAFT * k) for k in (0, *KS)}


def write_steps(folder: Path, count: int = 6) -> Path:
    path = folder / "steps.jsonl"
    kinds = ("code edit", "free text")
    lines = [
        {"messages": [{"role": "user", "content": f"step {number}"}], "max_tokens": 64, "class": kinds[number % 2]}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def arguments(folder: Path, *more: str, ks: tuple[int, ...] = KS) -> list[str]:
    engine = [f"--acceptance={','.join(map(str, RATES))}", "--reply-tokens=200"]
    return [
        *("spec", "tune", "--target", "emulated", "--drafter", "ngram", "--platform", "emulated"),
        *("--k", ",".join(map(str, ks)), "--output", str(folder / "out.jsonl")),
        *(f"--engine-arg={one}" for one in engine),
        *more,
    ]


def tune(folder: Path, *more: str, ks: tuple[int, ...] = KS) -> tuple[int, str, str]:
    environment = {"COLUMNS": "120", "XDG_DATA_HOME": str(folder / "data")}
    result = runner.invoke(app, arguments(folder, *more, ks=ks), env=environment)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
def test_the_best_setting_of_a_known_machine_is_found(tmp_path: Path) -> None:
    timing = (f"--engine-arg=--step-seconds={STEP}", f"--engine-arg=--step-per-draft-seconds={PER_DRAFT}")
    source = ("--steps-file", str(write_steps(tmp_path)))
    steps = (*source, "--usd-per-hour", "2", "--repeats", "1", "--concurrency", "1,2")
    code, output, errors = tune(tmp_path, *steps, *timing, "--json")
    assert code == 0, errors
    found = json.loads(output)
    assert found["conditions"]["emulated"]
    assert "EMULATED: no model ran" in found["note"]
    alone, together = found["studies"]
    assert (alone["concurrency"], together["concurrency"]) == (1, 2)
    points = {point["k"]: point for point in alone["points"]}
    assert points.keys() == {0, *KS}
    predicted = {one["k"]: one["acceptance_length"] for one in alone["predictions"]["ngram"]}
    assert predicted == {k: pytest.approx(TRUE_LENGTHS[k], rel=0.07) for k in range(1, max(KS) + 1)}
    for k in KS:
        assert points[k]["acceptance_length"] == pytest.approx(TRUE_LENGTHS[k], rel=0.07)
        cost = 2 / 3600 / points[k]["server_tokens_per_second"] * 1e6
        assert points[k]["usd_per_million_output_tokens"] == pytest.approx(cost)
    best = max(TRUE_SPEEDS, key=lambda k: TRUE_SPEEDS[k])
    assert alone["recommendation"]["k"] == best == 3
    assert 'method = "ngram"\nnum_speculative_tokens = 3' in alone["recommendation"]["profile"]
    assert alone["by_class"].keys() == {"code edit", "free text"}
    assert alone["by_class"]["free text"]["recommendation"]["k"] == best
    code, output, errors = tune(tmp_path, *steps, *timing, "--plot", str(tmp_path / "curves"))
    assert code == 0, errors
    assert "recommended: ngram, K = 3" in output
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "curves.html").read_text()
    assert "<svg" in page
    assert "recommended: ngram, K = 3" in page
    assert not re.search(r"<script|(src|href)=.(https?:|/)", page.replace('xlink:href="#', "")), (
        "it needs nothing else"
    )
    assert "$/M" in output
    assert "speed-up by class" in output


@pytest.mark.slow
def test_what_was_measured_before_a_kill_is_kept(tmp_path: Path) -> None:
    steps = str(write_steps(tmp_path, 2))
    more = ("--steps-file", steps, "--concurrency", "2", "--engine-arg=--time-scale=0")
    output = tmp_path / "out.jsonl"
    environment = {"XDG_DATA_HOME": str(tmp_path / "data"), "PATH": "/usr/bin:/bin"}
    command = [PACELINE, *arguments(tmp_path, *more)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
    try:
        until_lines(output, 3)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = output.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert len(kept.splitlines()) < 1 + 8
    code, _, errors = tune(tmp_path, *more)
    assert code == 0, errors
    assert output.read_bytes().startswith(kept)
    cells = [json.loads(line) for line in output.read_text().splitlines()[1:]]
    assert sorted((cell["setting"].get("k", 0), cell["repeat"]) for cell in cells) == [
        (k, r) for k in (0, *KS) for r in (0, 1)
    ]
    assert left_over(tmp_path) == []


def test_the_picture_needs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "paceline.speculation.tune.plot", raising=False)
    monkeypatch.delattr("paceline.speculation.tune.plot", raising=False)
    more = ("--steps-file", str(write_steps(tmp_path, 1)), "--minutes", "0.0000001", "--plot", "curves")
    code, _, errors = tune(tmp_path, *more, ks=(2,))
    assert code == 1
    assert "--plot: needs matplotlib" in errors
    assert "pip install 'paceline[plot]'" in errors


def until_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "no cells came"
        time.sleep(0.02)


def left_over(folder: Path) -> list[list[str]]:
    """Emulated servers of this test that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("XDG_DATA_HOME") == str(folder / "data"):
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found


def test_no_cell_begins_without_time_for_it(tmp_path: Path) -> None:
    more = ("--steps-file", str(write_steps(tmp_path, 1)), "--engine-arg=--time-scale=0")
    code, output, errors = tune(tmp_path, *more, "--minutes", "0.0000001", ks=(2,))
    assert code == 0, errors
    assert "4 cells are missing: run the same command again to go on" in output
    assert "recommended: nothing yet" in output


def test_a_step_that_the_engine_refuses_ends_it_with_one_line(tmp_path: Path) -> None:
    more = ("--steps-file", str(write_steps(tmp_path, 2)), "--engine-arg=--max-model-len=20")
    code, _, errors = tune(tmp_path, *more, "--concurrency", "2", ks=(2,))
    assert code == 1
    assert "ENGINE_REFUSED" in errors
    assert (tmp_path / "out.jsonl").read_text().count("\n") == 1, "only the conditions"
    assert left_over(tmp_path) == []


@pytest.mark.slow
async def test_steps_of_the_ledger(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "engines": {"one": {"model": "m", "platform": "emulated", "extra_args": list(FAST)}}
    }
    with installed(tmp_path / "runtime", settings) as server:
        server.start()
        async with AsyncClient(server.target) as client:
            workflow = await client.create_workflow(model="m", labels={"run": "one"})
            first = await workflow.step("first", max_output_tokens=9)
            second = await workflow.step("second", max_output_tokens=9)
        server.stop()
        for number, source in enumerate([("--workflow", workflow.workflow_id), ("--label", "run=one")]):
            output = tmp_path / f"out-{number}.jsonl"
            more = (*source, "--tenant", "default", "--repeats", "1", "--engine-arg=--time-scale=0")
            options = arguments(tmp_path, *more, "--output", str(output), "--json", ks=(2,))
            result = server.run(*options)
            assert result.returncode == 0, result.stderr
            assert json.loads(result.stdout)["steps"] == 2
            runs = json.loads(output.read_text().splitlines()[1])["runs"]
            prompts = [answer.reuse.prompt_tokens for answer in (first, second)]
            assert [run["prompt_tokens"] for run in runs] == prompts
            assert [run["step_id"] for run in runs] == [first.step_id, second.step_id]
        result = server.run(*arguments(tmp_path, "--label", "run=other", "--tenant", "default", ks=(2,)))
        assert "no step to replay: none is finished" in result.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "name the steps"),
        (("--steps-file", "steps.jsonl", "--workflow", "wf"), "name the steps"),
        (("--drafter", "mtp"), "emulated does not run method mtp"),
        (("--drafter", "eagle3:"), "needs `drafter"),
        (("--drafter", "ngram:x"), "--drafter ngram:x:"),
        (("--profile", "edits"), "no [speculation.edits] in the configuration"),
        (("--concurrency", "0"), "write numbers from 1 to 1024"),
        (("--k", "0,1"), "write numbers from 1 to 64"),
        (("--k", "1,x"), "write numbers from 1 to 64"),
        (("--platform", "neuron"), "take one of cpu, cuda, emulated"),
        (("--label", "run"), "write NAME=VALUE"),
        (("--steps-file", "/none.jsonl"), "name a readable file"),
        (("--plot", "/none/curves"), "name a file, without ending, in a folder that is there"),
        (("--plot", ""), "name a file, without ending"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, more: tuple[str, ...], message: str) -> None:
    code, _, errors = tune(tmp_path, *more)
    assert code == 1
    assert message in errors


def test_a_drafter_that_does_not_fit_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    target, drafter = pair()
    large, small = str(target.write(tmp_path / "target")), str(drafter.write(tmp_path / "drafter"))
    options = ("--target", small, "--drafter", large, "--steps-file", str(write_steps(tmp_path)))
    more = ("--platform", "cpu", "--output", str(tmp_path / "out.jsonl"), "--engine-python", "/none/python")
    result = runner.invoke(app, ["spec", "tune", *options, *more], env={"XDG_DATA_HOME": str(tmp_path / "data")})
    assert result.exit_code == 1
    assert "speculation: refused: pair.size" in result.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_more_at_once_than_there_are(tmp_path: Path) -> None:
    code, _, errors = tune(tmp_path, "--steps-file", str(write_steps(tmp_path, 2)), "--concurrency", "3")
    assert code == 1
    assert "there are 2 steps" in errors
