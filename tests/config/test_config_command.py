"""`paceline config` from outside."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline import config
from paceline.cli.config import Platform, app

runner = CliRunner()


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("platform", list(Platform))
@pytest.mark.parametrize("model", ["qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct"])
def test_every_init_passes_check(platform: Platform, model: str) -> None:
    result = runner.invoke(app, ["init", "--platform", platform, "--model", model])
    assert result.exit_code == 0, result.output
    result = runner.invoke(app, ["check"])
    assert (result.exit_code, result.output) == (0, "ok\n")
    settings = config.load()
    (engine,) = settings.engines.values()
    assert settings.prices[engine.model].example
    assert settings.accelerators[engine.instance_type].example
    assert settings.models[engine.model].path == ("emulated" if platform == Platform.EMULATED else model)


def test_every_setting_of_the_file_is_commented() -> None:
    runner.invoke(app, ["init", "--platform", "cpu", "--model", "m"])
    lines = Path("paceline.toml").read_text().splitlines()
    settings = [number for number, line in enumerate(lines) if " = " in line and not line.startswith("# ")]
    assert len(settings) > 40
    assert [lines[number] for number in settings if not lines[number - 1].startswith("# ")] == []


def test_commented_defaults_are_the_real_ones() -> None:
    runner.invoke(app, ["init", "--platform", "cpu", "--model", "m"])
    text = Path("paceline.toml").read_text()
    live = "\n".join(
        line.removeprefix("#") for line in text.splitlines() if not line.endswith("=") and line[:2] != "# "
    )
    assert config.parse(tomllib.loads(live), "test") == config.load()


def test_model_in_a_folder(folder: Path) -> None:
    (folder / "My-Model").mkdir()
    runner.invoke(app, ["init", "--platform", "cpu", "--model", "./My-Model"])
    assert config.load().models["my-model"].path == str(folder / "My-Model")


def test_init_replaces_only_on_request() -> None:
    Path("paceline.toml").write_text("mine")
    command = ["init", "--platform", "cpu", "--model", "m"]
    result = runner.invoke(app, command)
    assert result.exit_code == 1
    assert "--force" in result.output
    assert Path("paceline.toml").read_text() == "mine"
    assert runner.invoke(app, [*command, "--force"]).exit_code == 0


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--output", "absent/p.toml", "--model", "m"], "absent/p.toml: No such file"),
        (["--model", ""], "--model: is empty"),
    ],
)
def test_init_names_the_bad_option(options: list[str], part: str) -> None:
    result = runner.invoke(app, ["init", "--platform", "cpu", *options])
    assert result.exit_code == 1
    assert part in result.output


def test_check_lists_problems() -> None:
    Path("paceline.toml").write_text("[server]\nlisten = 1\n[log]\nlevel = 'loud'")
    result = runner.invoke(app, ["check"])
    assert result.exit_code == 1
    assert "server.listen: " in result.output
    assert "log.level: " in result.output


def test_show_is_toml_of_the_settings_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    runner.invoke(app, ["init", "--platform", "cpu", "--model", 'odd "name"'])
    monkeypatch.setenv("PACELINE_LOG__LEVEL", "error")
    shown = tomllib.loads(runner.invoke(app, ["show"]).output)
    assert shown["log"]["level"] == "error"
    assert config.parse(shown, "test") == config.load()


def test_show_masks_secrets() -> None:
    runner.invoke(app, ["init", "--platform", "url", "--model", "m"])
    file = Path("paceline.toml")
    text = (
        file.read_text()
        .replace('#api_key = ""', 'api_key = "hidden"')
        .replace("#env = {}", 'env = {A = "hidden"}')
    )
    file.write_text(text.replace('#url = ""', 'url = "postgresql+psycopg://me:hidden@db/paceline"', 1))
    result = runner.invoke(app, ["show"])
    assert result.exit_code == 0
    assert "hidden" not in result.output
    assert "postgresql+psycopg://me:********@db/paceline" in result.output
