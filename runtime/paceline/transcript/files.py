"""Where a model's tokenizer and template files are: a local folder, or the hub."""

from __future__ import annotations

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
