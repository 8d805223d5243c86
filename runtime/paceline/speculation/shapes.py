"""The matrix products of one forward pass, from the headers of a model's weights or from its `config.json`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from paceline.errors import ModelError
from paceline.speculation.modelfiles import ModelFiles

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")
LATENT_KEYS = ("kv_lora_rank",)
NO_PRODUCT = ("embed", "wte.", "wpe.", "lm_head", "rotary", "vision", "visual", "audio", "image")
"""What the names of two-dimensional weights have in them that no text token is multiplied by, and the head."""
FUSED = ((re.compile(r"\b[qkv]_proj\b"), "qkv_proj"), (re.compile(r"\b(gate|up)_proj\b"), "gate_up_proj"))
"""What vLLM joins to one product."""


@dataclass(frozen=True, slots=True)
class Product:
    """Inputs of `columns` numbers times a matrix of `rows` x `columns`."""

    rows: int
    columns: int
    count: int = 1
    """Matrices of this shape in one forward pass."""
    per_token: int = 1
    """Input vectors for each token."""
    last_only: bool = False
    """Needed for one token of a pass, whatever its length."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """One model's forward pass."""

    products: tuple[Product, ...]
    source: str
    """Where the shapes are from."""


def forward_shapes(
    model: ModelFiles, *, context: int = 0, drafts: bool = False, head: Product | None = None
) -> Shapes:
    """The products of one pass: attention and MLP of every layer, and the output head.

    With `context` also those of attention over so many tokens. A model that `drafts` needs its head once per pass;
    `head` stands in where a drafter has none of its own. Raises `ModelError` for models whose cost is no plain
    matrix product, and where the files do not tell the shapes.
    """
    _refuse(model)
    layers = _from_weights(model)
    source = "weights" if layers else "config.json, gated MLP assumed"
    last = output_head(model) or head
    if last is None:
        raise ModelError(
            f"{model.name}: neither config.json nor weights tell the size of its output head", model=model.name
        )
    products = [*(layers or _from_config(model)), Product(last.rows, last.columns, last_only=drafts)]
    return Shapes((*products, *(_attention(model, context) if context else ())), source)


def _refuse(model: ModelFiles) -> None:
    """What is read or computed per token there depends on more than shapes."""
    weights = model.weights
    reason = ""
    if any((_size(model, key) or 0) > 1 for key in EXPERT_KEYS) or (
        weights and any(".experts." in name for name in weights.shapes)
    ):
        reason = "a mixture of experts: which ones K + 1 tokens need depends on the text"
    elif model.quantization:
        reason = f"quantised by {model.quantization}: its kernels are no plain matrix products"
    elif model.hybrid:
        reason = "its Mamba or linear attention layers are no plain matrix products"
    if reason:
        raise ModelError(f"{model.name}: {reason}; measure it on the engine instead", model=model.name)


def _from_weights(model: ModelFiles) -> list[Product]:
    """Every two-dimensional weight but embeddings and head; empty without safetensors files."""
    rows: defaultdict[tuple[str, int], int] = defaultdict(int)
    for name, shape in (model.weights.shapes if model.weights else {}).items():
        if len(shape) != 2 or not name.endswith(".weight") or any(part in name for part in NO_PRODUCT):
            continue
        rows[_fused(name), shape[1]] += shape[0]
    counts = Counter((count, columns) for (_, columns), count in rows.items())
    return [Product(*shape, count=count) for shape, count in counts.items()]


def _fused(name: str) -> str:
    for pattern, joined in FUSED:
        name = pattern.sub(joined, name)
    return name


def _from_config(model: ModelFiles) -> list[Product]:
    hidden, layers, inner = (
        _need(model, key) for key in ("hidden_size", "num_hidden_layers", "intermediate_size")
    )
    heads, kv_heads, width = attention_heads(model)
    return [
        Product((heads + 2 * kv_heads) * width, hidden, layers),
        Product(hidden, heads * width, layers),
        Product(2 * inner, hidden, layers),
        Product(hidden, inner, layers),
    ]


def output_head(model: ModelFiles) -> Product | None:
    """The output head; an embedding serves as one where the weights have no other."""
    rows = model.head_rows or model.embedding_rows or (None if model.weights else model.vocab_size)
    return Product(rows, model.hidden_size) if rows and model.hidden_size else None


def _attention(model: ModelFiles, context: int) -> list[Product]:
    """Scores and weighted values per KV head: the queries of its group times keys, then scores times values."""
    heads, kv_heads, width = attention_heads(model)
    count, group = kv_heads * _need(model, "num_hidden_layers"), heads // kv_heads
    return [Product(context, width, count, group), Product(width, context, count, group)]


def layer_count(model: ModelFiles) -> int:
    """Layers of the model. Raises `ModelError` where config.json does not say."""
    return _need(model, "num_hidden_layers")


def attention_heads(model: ModelFiles) -> tuple[int, int, int]:
    """Query heads, KV heads and the width of each. Raises `ModelError` where config.json does not say."""
    if any(_size(model, key) for key in LATENT_KEYS):
        raise ModelError(
            f"{model.name}: latent attention needs the weights' own shapes; give a local folder, without context",
            model=model.name,
        )
    heads = _need(model, "num_attention_heads")
    width = _size(model, "head_dim") or _need(model, "hidden_size") // heads
    return heads, _size(model, "num_key_value_heads") or heads, width


def _need(model: ModelFiles, key: str) -> int:
    size = _size(model, key)
    if not size:
        raise ModelError(
            f"{model.name}: config.json has no {key}; give a folder with safetensors files, without context",
            model=model.name,
        )
    return size


def _size(model: ModelFiles, key: str) -> int | None:
    value = model.text.get(key)
    return value if isinstance(value, int) else None
