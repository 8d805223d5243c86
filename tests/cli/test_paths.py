"""Where engines and models are, for scripts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli import engine, models
from paceline.engines import install
from paceline.models.catalog import model_dir

runner = CliRunner()


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_path_of_a_model() -> None:
    result = runner.invoke(models.app, ["path", "qwen2.5-coder-0.5b"])
    assert result.exit_code == 1
    assert "paceline models fetch qwen2.5-coder-0.5b" in result.stderr
    folder = model_dir("qwen2.5-coder-0.5b")
    folder.mkdir(parents=True)
    result = runner.invoke(models.app, ["path", "qwen2.5-coder-0.5b"])
    assert (result.exit_code, result.stdout) == (0, f"{folder}\n")


def test_path_of_an_engine() -> None:
    result = runner.invoke(engine.app, ["path", "cpu"])
    assert result.exit_code == 1
    assert "paceline engine install cpu" in result.stderr
    python = install.venv_dir("cpu") / "bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    (install.venv_dir("cpu") / "paceline-engine.json").write_text("{}")
    result = runner.invoke(engine.app, ["path", "cpu"])
    assert (result.exit_code, result.stdout) == (0, f"{python}\n")
