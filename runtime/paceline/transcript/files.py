"""Where a model's tokenizer and template files are: a local folder, or the hub."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError

from paceline.errors import ModelError

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"
CONFIG = "config.json"
WEIGHTS = (".safetensors", ".bin", ".gguf", ".index.json")
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def model_folder(path_or_hub_id: str, *, also: tuple[str, ...] = (), offline: bool = False) -> Path:
    """Return a local folder with the model's tokenizer files; from the hub only these and `also` are fetched.

    `offline`: what was fetched from the hub before has to do. Raises `ModelError` when there is no such folder and
    the hub does not give it either.
    """
    folder = Path(path_or_hub_id).expanduser()
    if folder.is_dir():
        return folder
    try:
        wanted = [TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE, GENERATION_CONFIG, *also]
        return Path(
            huggingface_hub.snapshot_download(path_or_hub_id, allow_patterns=wanted, local_files_only=offline)
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ModelError(
            f"model {path_or_hub_id!r}: no such folder, and the hub did not give it ({type(error).__name__}); "
            "set `path` to a folder with tokenizer.json, or fetch the model with `paceline models fetch`",
            model=path_or_hub_id,
        ) from error


def model_hash(path_or_hub_id: str) -> str:
    """Return what tells a model's weights from others, wherever its folder lies: a hash of its configuration and
    of the names and sizes of its weight files. Of a hub id or a built-in model it is that of the name."""
    folder = Path(path_or_hub_id).expanduser()
    if not folder.is_dir():
        return hashlib.sha256(path_or_hub_id.encode()).hexdigest()
    config, weights = folder / CONFIG, (path for path in folder.iterdir() if path.name.endswith(WEIGHTS))
    digest = hashlib.sha256(config.read_bytes() if config.is_file() else b"")
    digest.update(json.dumps(sorted((path.name, path.stat().st_size) for path in weights)).encode())
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} when there is no file. Raises `ModelError` for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: unreadable ({error}); fetch the model again", path=path) from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object; fetch the model again", path=path)
    return value


def template_source(given: Path | None, folder: Path, config: dict[str, Any], needed: bool = True) -> str:
    """Return the chat template: of the file that was given, else the model's own from its folder or its
    `tokenizer_config.json` (`config`). Raises `ModelError`; where none is needed, "" stands for none."""
    path = given or folder / CHAT_TEMPLATE
    try:
        if given or path.exists():
            return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"chat template {path}: {error}; set `template` to a readable file", path=path) from error
    source = config.get("chat_template")
    if isinstance(source, str):
        return source
    if needed:
        have = "several chat templates" if source else "no chat template"
        raise ModelError(f"{folder}: the model has {have}; set `template` to one", path=folder)
    return ""


def special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Return the tokens of a `tokenizer_config.json` that templates may name."""
    found = {name: config.get(name) for name in _SPECIAL_TOKENS}
    texts = {name: value["content"] if isinstance(value, dict) else value for name, value in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
