"""Which id stands for which token: read from `tokenizer.json` and compared token by token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from paceline.errors import ModelError

ENCODING_PARTS = ("normalizer", "pre_tokenizer")
"""Parts of the file, beside the model itself, that decide how text is cut into tokens."""
MODEL_OPTIONS_WITHOUT = frozenset({"vocab", "type", "dropout"})
PROBES = (
    "def moving_average(values: list[float], window: int = 16) -> list[float]:\n    return values[:window]\n",
    "if (isValid && !this.cache.has(key)) {\n\t\treturn `${user.id}:${count++}`;\n\t}\n}\n",
    "1234567890 3.14159 0x1F 2026-11-30 12:34:56 10_000",
    "It's the caller's job; they'd ask O'Reilly, who WON'T. He said: \"no\" \u2014 and left\u2026",
    "\n\n  \t \r\n   indented\n\n\n\u00a0end ",
    "na\u00efve \u00c5ngstr\u00f6m e\u0301 \ufb01 \u4f60\u597d \u041f\u0440\u0438 \U0001f680\u200d\U0001f4bb",
    '<tool_call>\n{"name": "edit", "arguments": {"path": "src/a_b.py"}}\n</tool_call>',
)
"""Texts on which two tokenizers are compared: code, numbers, prose, white space, other scripts, markup."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One id or token on which two maps disagree."""

    token_id: int
    ours: str | None
    """The first map's token; None: it has none at this id."""
    theirs: str | None
    """The second map's token."""

    def __str__(self) -> str:
        return f"{self.token_id}: {_shown(self.ours)} / {_shown(self.theirs)}"


class TokenMap:
    """The vocabulary of one `tokenizer.json`, added and special tokens included."""

    def __init__(self, content: bytes, origin: Path) -> None:
        self._content = content
        try:
            self._json: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
            self.base = _base(self._json["model"]["vocab"])
            """Token of each id in the model's own vocabulary."""
            self.added = {int(item["id"]): str(item["content"]) for item in self._json.get("added_tokens", ())}
            """Token of each added id."""
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{origin}: not a tokenizer ({error!r}); fetch the model again", path=origin
            ) from error

    @cached_property
    def tokens(self) -> dict[int, str]:
        """Token of each id."""
        return self.base | self.added

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each token."""
        return {token: token_id for token_id, token in self.tokens.items()}

    @property
    def special(self) -> dict[int, str]:
        """Token of each special id."""
        return {int(item["id"]): item["content"] for item in self._json.get("added_tokens", ()) if item["special"]}

    @property
    def highest_id(self) -> int:
        """The largest id that this tokenizer can give."""
        return max(self.tokens, default=-1)

    def definition(self) -> dict[str, Any]:
        """Everything beside the vocabulary that decides how text is cut, by name."""
        model = self._json["model"]
        parts = {name: self._json.get(name) for name in ENCODING_PARTS}
        options = {name: value for name, value in model.items() if name not in MODEL_OPTIONS_WITHOUT}
        merges = [
            tuple(item.split(" ", 1)) if isinstance(item, str) else tuple(item)
            for item in options.pop("merges", ())
        ]
        options = {name: value for name, value in options.items() if value}  # absent, null, "" and false are equal
        return {**parts, "model": str(model.get("type", "")), "merges": merges, "model options": options}

    def encode(self, text: str) -> list[str]:
        """The tokens of a text, no special ones added."""
        tokens: list[str] = self._tokenizer.encode(text, add_special_tokens=False).tokens
        return tokens

    @cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_buffer(self._content)


def read_token_map(path: Path) -> TokenMap:
    """Read a `tokenizer.json`. Raises `ModelError`."""
    try:
        return TokenMap(path.read_bytes(), path)
    except OSError as error:
        raise ModelError(
            f"{path}: {error.strerror}; a check needs the model's tokenizer.json", path=path
        ) from error


def conflicts(ours: dict[int, str], theirs: dict[int, str]) -> list[Difference]:
    """Ids that both maps have, with different tokens."""
    common = ours.keys() & theirs.keys()
    return [Difference(key, ours[key], theirs[key]) for key in sorted(common) if ours[key] != theirs[key]]


def missing(ours: dict[int, str], theirs: dict[int, str]) -> list[Difference]:
    """Ids of the first map that the second one does not have."""
    return [Difference(key, ours[key], None) for key in sorted(ours.keys() - theirs.keys())]


def _base(vocab: dict[str, int] | list[list[Any]]) -> dict[int, str]:
    """BPE, WordPiece and WordLevel name ids; Unigram lists its tokens in their order."""
    if isinstance(vocab, dict):
        return {token_id: token for token, token_id in vocab.items()}
    return {token_id: item[0] for token_id, item in enumerate(vocab)}


def _shown(token: str | None) -> str:
    return "nothing" if token is None else repr(token)
