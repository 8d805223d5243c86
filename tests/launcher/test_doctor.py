"""`paceline doctor`, `models` and `engine`, as commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from paceline.cli import doctor, engine, models
from paceline.cli.findings import Finding
from paceline.models.catalog import CATALOG, model_dir

app = typer.Typer()
app.command()(doctor.doctor)
app.add_typer(models.app, name="models")
app.add_typer(engine.app, name="engine")


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("PACELINE_CONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def find(subject: str, path: Path | None = None) -> Finding:
    (finding,) = [finding for finding in doctor.examine(path) if finding.subject == subject]
    return finding


def test_a_fresh_machine_has_no_problem_but_things_to_do() -> None:
    code, output = run("doctor")
    assert code == 0
    assert "paceline config init" in output
    assert "paceline engine install cpu" in output
    assert find("Python").level == "ok"
    assert find("database").remedy == "`paceline db upgrade` makes it"


def test_an_invalid_configuration_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[server]\nlisten = 5\n")
    code, output = run("doctor", "--config", str(file))
    assert code == 1
    assert "server.listen" in output


def test_missing_venv_and_model_are_problems_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "paceline.toml"
    file.write_text(
        '[models.m]\npath = "qwen2.5-coder-0.5b"\n[engines.one]\nmodel = "m"\nplatform = "cpu"\n'
        f'[engines.two]\nmodel = "m"\nplatform = "cpu"\npython = "{sys.executable}"\n'
    )
    code, output = run("doctor")
    assert code == 1
    assert "paceline models fetch qwen2.5-coder-0.5b" in output
    findings = [finding for finding in doctor.examine(None) if finding.subject == "engine cpu"]
    assert [(finding.level, finding.text) for finding in findings] == [
        ("problem", "no engine venv for cpu; run `paceline engine install cpu` or set `python = ...`"),
        ("problem", "no vLLM in the venv"),
    ]
    model_dir("qwen2.5-coder-0.5b").mkdir(parents=True)
    assert find("model m").text == str(model_dir("qwen2.5-coder-0.5b"))
    assert find("fetched models").text == "qwen2.5-coder-0.5b"


def test_an_old_database_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "old.db").touch()
    file = tmp_path / "paceline.toml"
    file.write_text(f'[ledger]\nurl = "sqlite:///{tmp_path}/old.db"\n')
    assert (find("database", file).level, find("database", file).remedy) == ("problem", "`paceline db upgrade`")


def test_models_commands() -> None:
    code, output = run("models", "list")
    assert code == 0
    assert all(name in output for name in CATALOG)
    code, output = run("models", "fetch", "nothing")
    assert (code, "known: qwen2.5-coder-0.5b" in output) == (1, True)
    code, output = run("models", "fetch", "smollm2-135m")
    assert (code, "paceline engine install cpu" in output) == (1, True)
    model_dir("smollm2-135m").mkdir(parents=True)
    code, output = run("models", "fetch", "smollm2-135m")
    assert (code, "fetched before" in output) == (0, True)
