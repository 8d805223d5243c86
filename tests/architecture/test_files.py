"""Budgets and rules for files."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from paceline.engines.venv import PLACEHOLDERS

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 400
FOLDERS = ("runtime", "agents", "migrations", "scripts", "benchmarks", "tests")
LOCKS = {"dev": ("server", "postgres", "dev"), "engine-cpu": ("engine-cpu",)}


def test_no_file_grows_beyond_the_budget() -> None:
    generated = ROOT / "runtime/paceline/v1"
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if generated not in path.parents]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert len(lengths) > 20
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


@pytest.mark.parametrize("folder", ["runtime", "agents", "proto", "migrations", "tests"])
def test_source_roots_are_no_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("lock", sorted(LOCKS))
def test_lock_covers_the_project(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [need for extra in LOCKS[lock] for need in project["optional-dependencies"][extra]]
    wanted += project["dependencies"] if lock == "dev" else []
    names = {re.split(r"[^A-Za-z0-9._-]", need)[0].lower() for need in wanted} - {"paceline"}
    assert names - locked(lock).keys() == set()


@pytest.mark.parametrize("lock", sorted(LOCKS))
def test_lock_has_hashes_and_no_addresses(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)", text, re.MULTILINE)
    assert [name for name, hashes in locked(lock).items() if not hashes] == []


def locked(lock: str) -> dict[str, int]:
    """Each pinned package with its number of hashes."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    pins = re.split(r"^(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    return {pin.split("==")[0]: pin.count("--hash=sha256:") for pin in pins if pin}


def test_no_requirement_is_met_by_a_placeholder() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(need) for needs in (project["dependencies"], *extras.values()) for need in needs]
    placed = [need for need in wanted if need.name in PLACEHOLDERS]
    assert [str(need) for need in placed if need.specifier.contains(PLACEHOLDERS[need.name])] == []
    assert {need.name for need in placed} == {"torch-neuronx"}  # vllm-neuron comes with AWS's environment
    assert [need for name in sorted(extras.keys() - {"neuron"}) for need in extras[name] if "neuron" in need] == []
