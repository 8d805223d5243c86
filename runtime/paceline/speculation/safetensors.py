"""What the headers of a folder's safetensors files say about the weights. No weight is read."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import ModelError

MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
HEADS = ("lm_head.weight",)


@dataclass(frozen=True, slots=True)
class Weights:
    """Sizes of a model's tensors."""

    shapes: dict[str, tuple[int, ...]]
    size_bytes: int
    """Of all tensors."""

    def rows(self, endings: tuple[str, ...]) -> int | None:
        """Rows of the first tensor whose name has one of the endings; None without one."""
        return next((shape[0] for name, shape in self.shapes.items() if name.endswith(endings) and shape), None)


def read_weights(folder: Path) -> Weights | None:
    """Read all headers; None where the folder has no safetensors files. Raises `ModelError` for a broken one."""
    shapes: dict[str, tuple[int, ...]] = {}
    size = 0
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in _header(path).items():
            if name != "__metadata__":
                shapes[name] = tuple(tensor["shape"])
                begin, end = tensor["data_offsets"]
                size += end - begin
    return Weights(shapes, size) if shapes else None


def _header(path: Path) -> dict[str, Any]:
    """The JSON object that follows eight bytes with its length."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return msgspec.json.decode(file.read(min(length, MOST_HEADER_BYTES)), type=dict[str, Any])
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"{path}: no safetensors file ({error}); fetch the model again", path=path) from error
