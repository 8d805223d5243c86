"""The tokenizer of an emulated model: the built-in one, or that of a real model's folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from paceline.transcript.builtin import NAME, TURN_END, builtin_tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer with the id that ends a reply."""

    tokenizer: Tokenizer
    end_id: int
    size: int


def load_vocabulary(model_path: str) -> Vocabulary:
    """The vocabulary of a model folder, or the built-in one. Raises `ValueError` if there is no end id."""
    if model_path == NAME:
        tokenizer = builtin_tokenizer()
        end_id: int = tokenizer.token_to_id(TURN_END)  # type: ignore[assignment]  # a special token of it
        return Vocabulary(tokenizer, end_id, tokenizer.get_vocab_size())
    folder = Path(model_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Vocabulary(tokenizer, _end_id(folder, tokenizer), _vocab_size(folder, tokenizer))


def _end_id(folder: Path, tokenizer: Tokenizer) -> int:
    configured = _read(folder / "generation_config.json").get("eos_token_id")
    if isinstance(configured, list):
        configured = configured[0]
    if isinstance(configured, int):
        return configured
    token = _read(folder / "tokenizer_config.json").get("eos_token")
    end_id = tokenizer.token_to_id(token) if isinstance(token, str) else None
    if end_id is None:
        raise ValueError(f"{folder}: neither generation_config.json nor tokenizer_config.json names the end token")
    return int(end_id)


def _vocab_size(folder: Path, tokenizer: Tokenizer) -> int:
    size = _read(folder / "config.json").get("vocab_size")
    return size if isinstance(size, int) else int(tokenizer.get_vocab_size())


def _read(path: Path) -> dict[str, object]:
    if not path.exists():
        return {}
    loaded: dict[str, object] = json.loads(path.read_text())
    return loaded
