"""Small models on disk: a real tokenizer, configurations and safetensors headers over empty weights."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline import config
from paceline.speculation import checks
from paceline.speculation.finding import Finding

TEXT = [
    "def add(left, right):\n    return left + right\n",
    "class Point:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n",
    "the quick brown fox jumps over the lazy dog, and the dog does not care at all",
    "for index in range(100): print(index, index * 2, 1234567890)",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<tool_call>", "</tool_call>"]
PADDED_SIZE = 640
"""vocab_size of the pair: more than the tokenizer has, as usual."""


@lru_cache(maxsize=1)
def _tokenizer_text() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    text: str = tokenizer.to_str()
    return text


@dataclass
class Model:
    """The files of one model, to be changed before they are written."""

    tokenizer: dict[str, Any]
    config: dict[str, Any]
    tensors: dict[str, list[int]]
    tokenizer_config: dict[str, Any] = field(
        default_factory=lambda: {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}}
    )
    generation: dict[str, Any] = field(default_factory=lambda: {"eos_token_id": [2, 0]})
    template: str = "{{ messages }}"

    @property
    def vocab(self) -> dict[str, int]:
        """The tokenizer's own vocabulary."""
        vocab: dict[str, int] = self.tokenizer["model"]["vocab"]
        return vocab

    @property
    def added(self) -> list[dict[str, Any]]:
        """The tokenizer's added tokens."""
        added: list[dict[str, Any]] = self.tokenizer["added_tokens"]
        return added

    def write(self, folder: Path) -> Path:
        """Write everything that is there."""
        folder.mkdir(parents=True)
        for name, value in [
            ("tokenizer.json", self.tokenizer),
            ("config.json", self.config),
            ("tokenizer_config.json", self.tokenizer_config),
            ("generation_config.json", self.generation),
        ]:
            if value:
                (folder / name).write_text(json.dumps(value))
        (folder / "chat_template.jinja").write_text(self.template)
        if self.tensors:
            write_safetensors(folder / "model.safetensors", self.tensors)
        return folder


def model(hidden: int, layers: int) -> Model:
    """A Qwen2-like model."""
    values = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": PADDED_SIZE,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "max_position_embeddings": 4096,
        "layer_types": ["full_attention"] * layers,
        "bos_token_id": 0,
    }
    tensors = {"model.embed_tokens.weight": [PADDED_SIZE, hidden], "lm_head.weight": [PADDED_SIZE, hidden]}
    tensors |= {f"model.layers.{layer}.mlp.weight": [hidden, hidden] for layer in range(layers)}
    return Model(json.loads(_tokenizer_text()), values, tensors)


def pair() -> tuple[Model, Model]:
    """A target and a drafter that fit."""
    return model(64, 4), model(16, 1)


def write_safetensors(path: Path, tensors: dict[str, list[int]]) -> None:
    """A file of zeros with a true header, bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


Change = Callable[[Model, Model], None]


def findings(folder: Path, change: Change | None = None, platform: str = "cpu", **profile: Any) -> list[Finding]:
    """What the check says about the pair after a change."""
    target, drafter = deepcopy(pair())
    if change:
        change(target, drafter)
    ours = target.write(folder / "target")
    values = {"method": "draft_model", "drafter": str(drafter.write(folder / "drafter")), **profile}
    settings = config.Speculation.model_validate(
        {key: value for key, value in values.items() if value is not None}
    )
    return checks.check(checks.open_subject(settings, str(ours), platform=platform, offline=True))


def notable(found: list[Finding]) -> dict[str, str]:
    """Level of each rule that is not satisfied, the worst one."""
    bad = [item for item in found if item.level != "ok"]
    return {item.rule: item.level for item in sorted(bad, key=lambda item: item.level, reverse=True)}
