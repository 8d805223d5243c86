"""Model folders from what packages ship: real chat templates, and real vocabularies as tokenizer.json."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from paceline.transcript import builtin
from paceline.transcript.builtin import byte_symbols

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = [r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
QWEN_WORDS = "|".join([_CONTRACTIONS, r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}", *_REST])
LLAMA_WORDS = "|".join([_CONTRACTIONS, r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}", *_REST])
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K_WORDS = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        *_REST[1:],
    ]
)
QWEN_SPECIAL = [*builtin.SPECIAL_TOKENS, *(f"<|unused_{index}|>" for index in range(11))]
LLAMA_SPECIAL = {
    128000: "<|begin_of_text|>",
    128001: "<|end_of_text|>",
    128004: "<|finetune_right_pad_id|>",
    128006: "<|start_header_id|>",
    128007: "<|end_header_id|>",
    128008: "<|eom_id|>",
    128009: "<|eot_id|>",
    128010: "<|python_tag|>",
}
GPT_OSS_SPECIAL = {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
    200018: "<|endofprompt|>",
}


def template(name: str) -> str:
    """The chat template of a model, as the package trl ships it."""
    return shipped("trl", f"trl/chat_templates/{name}.jinja").read_text(encoding="utf-8")


def shipped(package: str, path: str) -> Path:
    """A data file of an installed package, which is not imported."""
    return Path(str(distribution(package).locate_file(path)))


def qwen_folder(folder: Path, chat_template: str) -> Path:
    """Qwen's own vocabulary under any template."""
    return _save(folder, qwen_tokenizer(), chat_template, "<|im_end|>", [151645, 151643])


def qwen_tokenizer() -> Tokenizer:
    """Qwen's tokenizer from its published vocabulary."""
    file = shipped("qwen-tokenizer", "qwen_tokenizer/resources/qwen.tiktoken")
    tokenizer = bpe(file.read_bytes(), QWEN_WORDS)
    tokenizer.add_special_tokens([_added(token, special=True) for token in QWEN_SPECIAL])
    tokenizer.add_tokens([_added(token, special=False) for token in builtin.MARKER_TOKENS])
    return tokenizer


def llama_folder(folder: Path, chat_template: str) -> Path:
    """Llama 3's own vocabulary under any template."""
    tokenizer = bpe(shipped("llama-models", "llama_models/llama3/tokenizer.model").read_bytes(), LLAMA_WORDS, True)
    _add_special(tokenizer, 128000, 256, LLAMA_SPECIAL)
    _save(folder, tokenizer, chat_template, "<|eot_id|>", [128001, 128008, 128009])
    config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def gpt_oss_folder(folder: Path) -> Path:
    """gpt-oss's own vocabulary and template."""
    vocabulary = shipped("tml-renderers", "tml_renderers/data/o200k_base.tiktoken").read_bytes()
    tokenizer = bpe(vocabulary, O200K_WORDS, True)
    _add_special(tokenizer, 199998, 21, GPT_OSS_SPECIAL)
    _save(folder, tokenizer, template("gptoss"), "<|return|>", [200002, 199999, 200012])
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    return folder


def bpe(tiktoken_file: bytes, words: str, whole_words_first: bool = False) -> Tokenizer:
    """A byte-level tokenizer from a vocabulary in tiktoken's format, without special tokens."""
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, tiktoken_file.splitlines())}
    symbols = byte_symbols()
    name = {token: "".join(symbols[byte] for byte in token) for token in ranks}
    merges = [(name[left], name[right]) for _, left, right in sorted(_merges(ranks))]
    vocabulary = {name[token]: rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words_first))
    split = pre_tokenizers.Split(Regex(words), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_special(tokenizer: Tokenizer, first: int, count: int, names: dict[int, str]) -> None:
    tokens = [names.get(token_id, f"<|reserved_{token_id}|>") for token_id in range(first, first + count)]
    tokenizer.add_special_tokens([_added(token, special=True) for token in tokens])


def _added(token: str, special: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False)


def _save(folder: Path, tokenizer: Tokenizer, chat_template: str, end: str, end_ids: Sequence[int]) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"__type": "AddedToken", "content": end, "special": True}})
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(end_ids)}))
    (folder / "chat_template.jinja").write_text(chat_template)
    return folder


def _merges(ranks: dict[bytes, int]) -> Iterator[tuple[tuple[int, int, int], bytes, bytes]]:
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                yield (rank, ranks[left], ranks[right]), left, right
