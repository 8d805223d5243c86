"""`paceline spec check` from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.speculation.models import pair
from typer.testing import CliRunner

from paceline.cli.main import app

runner = CliRunner()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Target and drafter that fit; the current folder is elsewhere, without a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACELINE_CONFIG", raising=False)
    target, drafter = pair()
    return str(target.write(tmp_path / "target")), str(drafter.write(tmp_path / "drafter"))


def spec(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, ["spec", "check", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def results(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    code, output = spec(*arguments, "--json")
    return code, json.loads(output)


def test_a_right_pair(folders: tuple[str, str]) -> None:
    target, drafter = folders
    code, (found,) = results("--target", target, "--drafter", drafter, "--platform", "cpu", "--k", "4")
    assert (code, found["verdict"], found["num_speculative_tokens"]) == (0, "ok", 4)
    assert (found["method"], found["platform"]) == ("draft_model", "cpu")
    assert {item["level"] for item in found["findings"]} == {"ok"}


def test_a_refused_pair_ends_with_code_1(folders: tuple[str, str]) -> None:
    target, drafter = folders
    code, output = spec("--target", drafter, "--drafter", target)
    assert code == 1
    assert "verdict: refused" in output
    assert "it cannot be faster" in output
    assert output.index("pair.size") < output.index("tokenizer.vocabulary")


def test_a_longer_context_is_a_warning(folders: tuple[str, str]) -> None:
    target, drafter = folders
    code, (found,) = results("--target", target, "--drafter", drafter, "--max-model-len", "8192")
    assert (code, found["verdict"]) == (0, "warning")


def test_a_profile_is_checked_for_each_engine(folders: tuple[str, str], tmp_path: Path) -> None:
    target, drafter = folders
    (tmp_path / "paceline.toml").write_text(
        f"""
[models.big]
path = "{target}"
[models.small]
path = "{drafter}"
[engines.one]
model = "big"
platform = "cpu"
speculation = "draft"
max_model_len = 8000
[engines.two]
model = "small"
url = "http://127.0.0.1:9"
speculation = "draft"
[speculation.draft]
method = "draft_model"
drafter = "{drafter}"
[speculation.unused]
method = "ngram"
"""
    )
    code, (first, second) = results("--profile", "draft")
    assert (code, first["verdict"], second["verdict"]) == (1, "warning", "refused")
    assert (first["platform"], second["platform"]) == ("cpu", None)
    assert results("--profile", "unused", "--target", target)[1][0]["verdict"] == "ok"
    assert "no engine uses it" in spec("--profile", "unused")[1]
    assert "no [speculation.other]" in spec("--profile", "other")[1]
    assert "leave the other options out" in spec("--profile", "draft", "--method", "ngram")[1]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "name --target and --drafter"),
        (["--target", "TARGET"], "name --target and --drafter"),
        (["--target", "TARGET", "--method", "ngram", "--drafter", "TARGET"], "`drafter` belongs to method"),
        (["--target", "TARGET", "--method", "none-such"], "speculation.options.method: Input should be"),
        (["--target", "TARGET", "--method", "ngram", "--platform", "tpu"], "--platform tpu: take one of cpu"),
        (["--target", "nowhere", "--method", "ngram"], "nowhere: no such folder"),
        (["--target", "emulated", "--method", "ngram"], "emulated: is built in"),
    ],
)
def test_what_is_missing_or_wrong_is_named(folders: tuple[str, str], arguments: list[str], part: str) -> None:
    code, output = spec(*[folders[0] if argument == "TARGET" else argument for argument in arguments])
    assert code == 1
    assert part in output
