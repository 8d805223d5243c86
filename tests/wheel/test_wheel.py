"""The wheel, as users get it: built from the source distribution, installed into clean venvs."""

import json
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]

CLIENT_PAIRS = {
    "oldest": ["grpcio==1.78.0", "grpcio-status==1.78.0", "protobuf==6.31.1"],
    "newest": ["grpcio", "grpcio-status", "protobuf>=7"],
}
IMPORT_ALL = """
import importlib, json, pkgutil, sys
import paceline.errors, paceline.v1, paceline_agents
names = [module.name for package in (paceline.v1, paceline_agents)
         for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(json.dumps([names, paceline.__file__]))
"""


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    (folder / "source").mkdir()
    run("tar", "-xf", archive, "-C", folder / "source")  # Python 3.11 before .4 knows no safe way, 3.12 no other
    (source,) = (folder / "source").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    (built,) = folder.glob("*.whl")
    return built


def install(folder: Path, *requirements: str) -> Path:
    """The `bin` folder of a new venv with the requirements."""
    run(sys.executable, "-m", "venv", folder / "venv")
    bin_folder = folder / "venv/bin"
    run(bin_folder / "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
    return bin_folder


def test_wheel_carries_what_runs_without_a_checkout(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {
        "paceline/migrations/env.py",
        "paceline/proto/paceline/v1/step.proto",
        "paceline/requirements/engine-cpu.txt",
        "paceline/py.typed",
        "paceline/planning/instances.toml",
        "paceline/planning/models.toml",
        "paceline/rules/platform_rules.toml",
        "paceline_agents/py.typed",
        "paceline_agents/demo_suite.jsonl",
    } <= names
    assert any(name.startswith("paceline/migrations/versions/0001_") for name in names)
    assert {name.split("/")[0].removesuffix(".dist-info").split("-")[0] for name in names} == {
        "paceline",
        "paceline_agents",
    }


@pytest.mark.parametrize("pair", sorted(CLIENT_PAIRS))
def test_client_needs_the_base_dependencies_only(pair: str, wheel: Path, tmp_path: Path) -> None:
    bin_folder = install(tmp_path, str(wheel), *CLIENT_PAIRS[pair])
    run(bin_folder / "pip", "check")
    names, location = json.loads(run(bin_folder / "python", "-I", "-W", "error", "-c", IMPORT_ALL, cwd=tmp_path))
    assert "paceline.v1.step_service_pb2_grpc" in names
    assert Path(location).is_relative_to(tmp_path)
    assert "repair" in run(bin_folder / "paceline-agent", "--help", cwd=tmp_path)


def test_server_migrates_a_database(wheel: Path, tmp_path: Path) -> None:
    bin_folder = install(tmp_path, f"{wheel}[server]")
    assert "serve" in run(bin_folder / "paceline", "--help", cwd=tmp_path)
    environment = {"PACELINE_LEDGER__URL": f"sqlite:///{tmp_path}/ledger.db", "HOME": str(tmp_path)}
    run(bin_folder / "paceline", "db", "upgrade", cwd=tmp_path, env=environment)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
    assert {"alembic_version", "workflows", "steps", "attempts"} <= tables
