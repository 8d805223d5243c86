"""What a model's own files say about it. A file is read when a rule first asks for it; no weights are loaded."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.speculation.safetensors import EMBEDDINGS, HEADS, Weights, read_weights
from paceline.speculation.tokenmap import TokenMap, read_token_map
from paceline.transcript import files

CONFIG = "config.json"
INNER_CONFIGS = ("text_config", "transformer_layer_config")
"""Where multimodal models and trained heads keep the settings of their language model."""
PREDICTED_KEYS = ("n_predict", "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
LAYER_LISTS = ("layer_types", "layers_block_type")
STATE_LAYERS = ("mamba", "linear", "conv", "recurrent", "delta", "hybrid")
"""What the names of layers have in them whose state is no per-token KV cache."""
HYBRID_KEYS = ("hybrid_override_pattern", "attn_layer_period", "mamba_d_state", "linear_num_value_heads")
"""Settings that show such layers where the configuration lists none."""
FAMILY_ENDINGS = ("_text", "_moe", "_vl")


class ModelFiles:
    """One model's folder. Every property raises `ModelError` for a file that is there and unreadable."""

    def __init__(self, name: str, folder: Path, *, partial: bool = False) -> None:
        self.name = name
        """As the caller named it."""
        self.folder = folder
        self.partial = partial
        """The folder is a cache, so a file that is missing here may exist."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.json`; {} without one."""
        return files.read_json(self.folder / CONFIG)

    @cached_property
    def text(self) -> dict[str, Any]:
        """The settings of the language model: those of the inner configuration over the outer ones."""
        found = (self.config.get(key) for key in INNER_CONFIGS)
        inner: dict[str, Any] = next((value for value in found if isinstance(value, dict)), {})
        return self.config | inner

    @cached_property
    def generation(self) -> dict[str, Any]:
        """`generation_config.json`; {} without one."""
        return files.read_json(self.folder / files.GENERATION_CONFIG)

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """`tokenizer_config.json`; {} without one."""
        return files.read_json(self.folder / files.TOKENIZER_CONFIG)

    @cached_property
    def tokens(self) -> TokenMap | None:
        """The token map; None without a `tokenizer.json`."""
        path = self.folder / files.TOKENIZER
        return read_token_map(path) if path.exists() else None

    @cached_property
    def weights(self) -> Weights | None:
        """Sizes of the weights; None without safetensors files."""
        return read_weights(self.folder)

    @property
    def embedding_rows(self) -> int | None:
        """Rows of the input embedding."""
        return self.weights.rows(EMBEDDINGS) if self.weights else None

    @property
    def head_rows(self) -> int | None:
        """Rows of an output head of its own."""
        return self.weights.rows(HEADS) if self.weights else None

    @cached_property
    def template(self) -> str:
        """The chat template's text; empty without one."""
        path = self.folder / files.CHAT_TEMPLATE
        if path.exists():
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ModelError(f"{path}: unreadable ({error}); fetch the model again", path=path) from error
        return str(self.tokenizer_config.get("chat_template") or "")

    def special(self, name: str) -> str | None:
        """The text of a special token such as `eos_token`."""
        value = self.tokenizer_config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        return str(text) if text is not None else None

    @property
    def vocab_size(self) -> int | None:
        """Vocabulary size of the configuration."""
        return _number(self.text.get("vocab_size"))

    @property
    def hidden_size(self) -> int | None:
        """Width of the hidden states."""
        return _number(self.text.get("hidden_size"))

    @property
    def max_length(self) -> int | None:
        """Longest context in tokens."""
        return _number(self.text.get("max_position_embeddings"))

    @property
    def architectures(self) -> tuple[str, ...]:
        """The classes that `config.json` names."""
        return tuple(map(str, self.config.get("architectures") or ()))

    @property
    def family(self) -> str:
        """The model type without what only names its form, such as `qwen3` for `qwen3_moe`."""
        family = str(self.text.get("model_type") or "")
        for ending in FAMILY_ENDINGS * 2:
            family = family.removesuffix(ending)
        return family

    @property
    def quantization(self) -> str:
        """The method by which the weights are quantised; empty for plain ones."""
        settings = self.config.get("quantization_config") or self.text.get("quantization_config") or {}
        return str(settings.get("quant_method") or "yes") if settings else ""

    @property
    def predicted_tokens(self) -> int | None:
        """Tokens that the model's own multi-token-prediction layers predict; None without such layers."""
        numbers = (_number(self.text.get(key)) for key in PREDICTED_KEYS)
        return next((number for number in numbers if number), None)

    @property
    def hybrid(self) -> bool:
        """Whether some layers are Mamba or linear attention, whose state is no per-token KV cache."""
        layers = {str(layer) for key in LAYER_LISTS for layer in self.text.get(key) or ()}
        if layers:
            return any(mark in layer for layer in layers for mark in STATE_LAYERS)
        return any(self.text.get(key) for key in HYBRID_KEYS)


def open_model(path_or_hub_id: str, *, offline: bool) -> ModelFiles:
    """Find a model's folder. Of a hub id the small files are fetched, unless `offline`: then they must be here.

    Raises `ModelError` where there is none.
    """
    folder = files.model_folder(path_or_hub_id, also=(CONFIG,), offline=offline)
    return ModelFiles(path_or_hub_id, folder, partial=offline and not Path(path_or_hub_id).expanduser().is_dir())


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
