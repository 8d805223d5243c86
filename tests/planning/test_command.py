"""`paceline plan` on the command line, and the files that it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from paceline import config
from paceline.cli.main import app

FITS = ("--agents", "48", "--context", "32k", "--max-model-len", "32768")
LONG = ("--agents", "50", "--context", "100k")


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACELINE_CONFIG", raising=False)


def plan(*arguments: str, instance: str = "trn2.48xlarge", model: str = "qwen3-32b") -> Result:
    return CliRunner().invoke(app, ["plan", "--instance", instance, "--model", model, *arguments])


def test_the_table_has_formulas_sources_and_the_date_of_the_price() -> None:
    result = plan(*FITS)
    assert result.exit_code == 0
    assert "min(24 x 0.9 - 7.63, 0.30 x 24 x 0.9)" in result.stdout
    assert "212,320 tokens" in result.stdout
    assert "determine_available_memory_design.md" in result.stdout
    assert "35.7608 EXAMPLE $/hour" in result.stdout
    assert "2026-10-08" in result.stdout
    assert "\nfits\n" in result.stdout
    assert "nothing measured on Trainium" in result.stdout


def test_what_does_not_fit_is_said_with_what_would() -> None:
    result = plan(*LONG)
    assert result.exit_code == 1
    assert result.stdout.count("does not fit: ") == 2
    assert "  would: --agents 16 or fewer\n" in result.stdout
    assert "\nfits\n" not in result.stdout


def test_the_page_shows_what_is_printed() -> None:
    page = (Path(__file__).parents[2] / "docs/trainium.md").read_text()
    (block,) = re.findall(r"^\$ paceline plan (.*?)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    result = CliRunner().invoke(app, ["plan", *block[0].split()])
    printed = [line.rstrip() for line in result.stdout.splitlines()]
    assert [line.rstrip() for line in block[1].splitlines()] == printed


def test_json() -> None:
    found = json.loads(plan(*LONG, "--format", "json").stdout)
    assert found["fits"] is False
    figures = {item["name"]: item for item in found["figures"]}
    assert figures["KV tokens of a replica"]["value"] == 212_320
    assert figures["instance"]["value"] == "35.7608"
    assert figures["streams of a replica"]["source"].endswith(
        "(rule neuron.worst-case-admission), read 2026-11-30"
    )
    assert [item["tensor_parallel_size"] for item in found["splits"]] == [1, 2, 4, 8, 16, 32, 64]
    assert found["problems"][1]["remedies"][0] == "--agents 16 or fewer"


def test_what_is_written_loads_and_renders(tmp_path: Path) -> None:
    folder = tmp_path / "planned"
    assert plan(*FITS, "--write", str(folder)).exit_code == 0
    file = folder / "paceline.toml"
    settings = config.load(file)
    assert [engine.neuron.cores for engine in settings.engines.values() if engine.neuron] == [
        f"{first}-{first + 7}" for first in range(0, 64, 8)
    ]
    (engine, *_) = settings.engines.values()
    assert (engine.max_concurrent_steps, engine.max_model_len) == (6, 32_768)
    (name,) = settings.accelerators
    assert engine.instance_type == name == "trn2.48xlarge-8-cores"
    assert str(settings.accelerators[name].usd_per_hour) == "4.4701"
    assert settings.accelerators[name].example
    assert settings.prices == {}
    assert CliRunner().invoke(app, ["config", "check", "-c", str(file)]).exit_code == 0
    for engine_name in settings.engines:
        rendered = CliRunner().invoke(app, ["engine", "render", engine_name, "--format", "k8s", "-c", str(file)])
        assert rendered.exit_code == 0
        written = (folder / f"{engine_name}.yaml").read_text()
        assert yaml.safe_load(written) == yaml.safe_load(rendered.stdout)


def test_other_models_are_written_too(tmp_path: Path) -> None:
    folder = tmp_path / "planned"
    result = plan(
        *("--agents", "3", "--context", "900", "--kv-cache", "fp8", "--write", str(folder)),
        instance="trn2u.48xlarge",
        model="llama-3.1-70b",
    )
    assert result.exit_code == 0
    settings = config.load(folder / "paceline.toml")
    (engine, *_) = settings.engines.values()
    assert engine.extra_args == ["--kv-cache-dtype", "fp8"]
    assert engine.neuron is not None
    assert engine.neuron.segment_size == 512
    assert engine.max_concurrent_steps == 3
    assert (settings.accelerators, engine.instance_type) == ({}, "")
    assert (folder / "llama-3-1-70b-0.yaml").exists()


def test_what_does_not_fit_is_written_with_its_reason(tmp_path: Path) -> None:
    folder = tmp_path / "planned"
    assert plan(*LONG, "--write", str(folder)).exit_code == 1
    text = (folder / "paceline.toml").read_text()
    assert "# Does not fit: max_model_len 100,000 is more than" in text
    assert len(config.load(folder / "paceline.toml").engines) == 8


def test_nothing_is_written_where_nothing_starts_or_something_is(tmp_path: Path) -> None:
    result = plan(*LONG, "--write", str(tmp_path / "new"), instance="trn2.3xlarge")
    assert (result.exit_code, (tmp_path / "new").exists()) == (1, False)
    assert "there is nothing to write" in result.stderr
    result = plan(*FITS, "--write", str(tmp_path))
    assert result.exit_code == 1
    assert "name a folder that does not exist yet" in result.stderr
    short = ("--agents", "1", "--context", "100", "--write", str(tmp_path / "new"))
    result = plan(*short)
    assert result.exit_code == 1
    assert "the shortest segment is 512" in result.stderr


def test_the_price_of_the_configuration_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[accelerators."trn2.48xlarge"]\nusd_per_hour = "64"\n')
    found = json.loads(plan(*FITS, "--format", "json", "-c", str(file)).stdout)
    figures = {item["name"]: item for item in found["figures"]}
    assert (figures["instance"]["value"], figures["instance"]["unit"]) == ("64", "$/hour")
    assert "of the configuration" in figures["instance"]["source"]
    assert figures["replica"]["value"] == "8.0000"
    assert figures["price book date"]["value"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--agents", "0", "--context", "100k"), "--agents 0: must be 1 or more"),
        (("--agents", "5", "--context", "lots"), "--context lots: must be a number of tokens"),
        (("--agents", "5", "--context", "0"), "--context 0: must be a number of tokens"),
        (("--agents", "5", "--context", "0.0001k"), "--context 0.0001k: must be a number of tokens"),
        (("--agents", "5", "--context", "2k", "--max-model-len", "1k"), "--max-model-len 1000: is less than"),
    ],
)
def test_clear_refusals(arguments: tuple[str, ...], message: str) -> None:
    result = plan(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr


def test_instances_without_neuron_are_refused() -> None:
    result = plan(*FITS, instance="p5en.48xlarge")
    assert result.exit_code == 1
    assert "plans are made for trn2.3xlarge, trn2.48xlarge, trn2u.48xlarge only" in result.stderr
