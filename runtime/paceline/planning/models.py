"""The shape of a model: of a folder with its files, or of the table in `models.toml`."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.speculation.modelfiles import ModelFiles, open_model
from paceline.speculation.safetensors import Weights
from paceline.speculation.shapes import attention_heads, forward_shapes, layer_count


class Published(ModelFiles):
    """A model without files here: its configuration is in the table."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        super().__init__(name, Path(name))
        self._published = config

    @cached_property
    def config(self) -> dict[str, Any]:
        """The table's row."""
        return self._published

    @cached_property
    def weights(self) -> Weights | None:
        """None."""
        return None


@dataclass(frozen=True, slots=True)
class Shape:
    """What sizes depend on."""

    name: str
    path: str
    """What an engine loads."""
    parameters: int
    counted: str
    """How they were counted."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_length: int | None
    """The model's own longest context, in tokens."""
    source: str
    files: ModelFiles
    least_tensor_parallel_size: int = 1
    """Published as the smallest."""
    least_source: str = ""

    def kv_bytes_per_token(self, tensor_parallel_size: int, number_bytes: int) -> int:
        """Keys and values of one token on one core. Heads that are fewer than cores are held several times."""
        per_core = -(-self.kv_heads // tensor_parallel_size)
        return 2 * self.layers * per_core * self.head_dim * number_bytes

    def can_split(self, cores: int) -> bool:
        """Whether attention divides evenly: whole heads per core, or whole cores per KV head."""
        whole = self.kv_heads % cores == 0 or cores % self.kv_heads == 0
        return self.heads % cores == 0 and whole


@cache
def table() -> Mapping[str, dict[str, Any]]:
    """The rows by name."""
    text = resources.files(__package__).joinpath("models.toml").read_text(encoding="utf-8")
    models: dict[str, dict[str, Any]] = tomllib.loads(text)["models"]
    return models


def find(name: str) -> Shape:
    """The shape of a folder or of a name in the table.

    Raises `ModelError` for an unknown name, and for models whose sizes do not follow from these numbers:
    mixtures of experts without weight files, quantised ones, hybrid attention.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        model = open_model(str(folder.resolve()), offline=True)
        return _shape(folder.resolve().name.lower(), str(folder.resolve()), model, f"{folder}/config.json")
    row = table().get(name.lower())
    if row is None:
        raise ModelError(
            f"--model {name}: no such folder, and the shape of no such model is known ({', '.join(table())}); "
            "give a folder with its config.json",
            model=name,
        )
    least = {key: row[key] for key in ("least_tensor_parallel_size", "least_source") if key in row}
    return _shape(name.lower(), row["hub"], Published(name.lower(), row["config"]), row["source"], **least)


def _shape(name: str, path: str, model: ModelFiles, source: str, **more: Any) -> Shape:
    if not model.config:
        raise ModelError(f"--model {path}: there is no config.json; name the model's own folder", model=name)
    parameters, counted = _parameters(model)
    heads, kv_heads, width = attention_heads(model)
    return Shape(
        name=name,
        path=path,
        parameters=parameters,
        counted=counted,
        layers=layer_count(model),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        max_length=model.max_length,
        source=source,
        files=model,
        **more,
    )


def _parameters(model: ModelFiles) -> tuple[int, str]:
    """All weights; from config.json only the matrices are counted, norms are below a thousandth."""
    products = forward_shapes(model).products
    if model.weights:
        return sum(math.prod(shape) for shape in model.weights.shapes.values()), "all tensors of the weight files"
    matrices = sum(item.rows * item.columns * item.count for item in products)
    tied = bool(model.text.get("tie_word_embeddings"))
    embedding = 0 if tied else (model.vocab_size or 0) * (model.hidden_size or 0)
    return matrices + embedding, "matrices of attention, gated MLP, head and embedding; norms left out"
