"""Reading the file and the variables."""

import os
from pathlib import Path

import pytest

from paceline import config
from paceline.errors import ConfigError

MINIMAL = """
[models.m]
path = "emulated"
[engines.e]
model = "m"
platform = "emulated"
kv_cache_gib = 1.5
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variables and no file of the caller's."""
    for name in [name for name in os.environ if name.startswith("PACELINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def write(text: str) -> Path:
    file = Path("paceline.toml")
    file.write_text(text)
    return file


def problem(path: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    return caught.value.message


def test_defaults_without_a_file() -> None:
    assert config.load() == config.Settings()


def test_file_in_the_current_folder() -> None:
    write(MINIMAL)
    assert config.load().engines["e"].kv_cache_gib == 1.5


def test_file_named_by_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    write(MINIMAL).rename("other.toml")
    monkeypatch.setenv("PACELINE_CONFIG", "other.toml")
    assert list(config.load().engines) == ["e"]


def test_missing_file() -> None:
    assert "absent.toml: No such file" in problem(Path("absent.toml"))


def test_broken_file() -> None:
    assert "paceline.toml: Expected ']'" in problem(write("[server"))


def test_variable_wins_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write("[server]\nmax_message_mib = 4\nreflection = false")
    monkeypatch.setenv("PACELINE_SERVER__MAX_MESSAGE_MIB", "8")
    server = config.load().server
    assert (server.max_message_mib, server.reflection) == (8, False)


def test_lists_and_tables_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    write(MINIMAL)
    monkeypatch.setenv("PACELINE_ENGINES__E__EXTRA_ARGS", '["--seed", "1"]')
    monkeypatch.setenv("PACELINE_ENGINES__E__ENV", '{"OMP_NUM_THREADS": "2"}')
    monkeypatch.setenv("PACELINE_PRICES", '{"m": {"input": 0.1, "output": 0.4}}')
    settings = config.load()
    assert settings.engines["e"].extra_args == ["--seed", "1"]
    assert settings.engines["e"].env == {"OMP_NUM_THREADS": "2"}
    assert str(settings.prices["m"].input) == "0.1"


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("PACELINE_SEVER__LISTEN", "x", "PACELINE_SEVER__LISTEN: no such setting"),
        ("PACELINE_LISTEN", "x", "PACELINE_LISTEN: no such setting"),
        ("PACELINE_SERVER__LISTEM", "x", "PACELINE_SERVER__LISTEM: no such setting"),
        (
            "PACELINE_SERVER__MAX_MESSAGE_MIB",
            "0",
            "PACELINE_SERVER__MAX_MESSAGE_MIB: Input should be greater than",
        ),
        ("PACELINE_ENGINES__E__EXTRA_ARGS", "--seed 1", "PACELINE_ENGINES__E__EXTRA_ARGS: not JSON"),
        ("PACELINE_ALLOW_UNPRICED__X", "1", "PACELINE_ALLOW_UNPRICED__X: allow_unpriced is not a section"),
    ],
)
def test_bad_variable_is_named(variable: str, value: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(MINIMAL.replace("[models.m]", "allow_unpriced = true\n[models.m]"))
    monkeypatch.setenv(variable, value)
    assert part in problem()


@pytest.mark.parametrize("address", ["nowhere", ":9464", "127.0.0.1:http", "127.0.0.1:99999"])
def test_a_metrics_address_that_is_none(address: str) -> None:
    assert "server.metrics_listen: must be HOST:PORT" in problem(write(f'[server]\nmetrics_listen = "{address}"'))


def test_every_problem_of_a_file_is_listed() -> None:
    text = problem(write('[server]\nlisten = 1\ncolour = "red"\n[log]\nlevel = "loud"\n[models.m]'))
    assert len(text.splitlines()) == 5
    for field in ["server.listen: ", "server.colour: no such setting", "log.level: ", "models.m.path: is missing"]:
        assert f"\n  {field}" in text


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('model = "m"', 'model = "n"', "engines.e.model: no [models.n]; known: m"),
        ('platform = "emulated"', "", "set exactly one of `url`"),
        ('platform = "emulated"', 'url = "localhost:8000"', "not like http://127.0.0.1:8000"),
        ('platform = "emulated"', 'url = "http://a..b:8000"', "not like http://127.0.0.1:8000"),
        ('platform = "emulated"', 'url = "http://[::1:8000"', "not like http://127.0.0.1:8000"),
        ('platform = "emulated"', 'url = "http://host:eight"', "not like http://127.0.0.1:8000"),
        ("kv_cache_gib = 1.5", 'speculation = "fast"', "engines.e.speculation: no [speculation.fast]"),
        ("kv_cache_gib = 1.5", 'instance_type = "big"', "engines.e.instance_type: no [accelerators.big]"),
    ],
)
def test_references(old: str, new: str, part: str) -> None:
    assert part in problem(write(MINIMAL.replace(old, new)))


def test_secrets_stay_out_of_errors_and_representations() -> None:
    write(MINIMAL + 'api_key = "hidden-key"\nblock_size = 1')
    assert "hidden-key" not in problem()
    write(MINIMAL + 'api_key = "hidden-key"\nenv = {HF_TOKEN = "hidden-token"}')
    assert "hidden" not in repr(config.load())
