"""Text to token ids and back, without holding up the event loop."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import tokenizers
from tokenizers.decoders import DecodeStream

from paceline.errors import ModelError
from paceline.transcript.builtin import NAME as BUILTIN
from paceline.transcript.builtin import builtin_tokenizer
from paceline.transcript.files import TOKENIZER, model_folder

INLINE_CHARACTERS = 4096
"""Longest text that is tokenized on the event loop (about 2 ms); a thread costs more than that saves below it."""


MAX_HELD = 64
"""Most ids that may wait for the rest of a character; no character has so many, what has is no text."""


class TokenStream:
    """Detokenizes ids as they come. Pieces never end inside a character; joined they are the decoded text."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)
        self._last: list[int] = []
        self._held: list[int] = []

    def step(self, token_id: int) -> str:
        """Take one id; returns the text that is now certain, often one word, empty inside a character."""
        text: str | None = self._stream.step(self._tokenizer, token_id)
        self._held.append(token_id)
        if text is None:
            return self._give_up() if len(self._held) >= MAX_HELD else ""
        self._last, self._held = self._held, []
        return text

    def flush(self) -> str:
        """Return what an unfinished character at the end decodes to (replacement characters)."""
        if not self._held:
            return ""
        before = self._tokenizer.decode(self._last, skip_special_tokens=False)
        whole: str = self._tokenizer.decode(self._last + self._held, skip_special_tokens=False)
        self._held = []
        return whole[len(before) :]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a short text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _give_up(self) -> str:
        text = self.flush()
        self._last, self._stream = [], DecodeStream(skip_special_tokens=False)
        return text


class Tokenizer:
    """A tokenizer and the hash of what it was made from."""

    def __init__(self, inner: tokenizers.Tokenizer, content_hash: str) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self.hash = content_hash

    async def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, adding no special tokens. Long texts are tokenized in a thread."""
        if len(text) <= INLINE_CHARACTERS:
            return self.encode_now(text)
        return await asyncio.to_thread(self.encode_now, text)

    def encode_now(self, text: str) -> list[int]:
        """Return the ids of `text`; takes 0.6 ms per KB."""
        # encode() is slower, because it tracks offsets, and holds the GIL all the time.
        ids: list[int] = self._inner.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids, special tokens included."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=False)
        return text

    def stream(self) -> TokenStream:
        """Return an incremental decoder."""
        return TokenStream(self._inner)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, None if the vocabulary has none."""
        token_id: int | None = self._inner.token_to_id(token)
        return token_id

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a special token, at which text can be cut without changing the ids on either side."""
        added = self._inner.get_added_tokens_decoder().get(token_id)
        return added is not None and added.special


def load_tokenizer(path_or_hub_id: str) -> Tokenizer:
    """Load `tokenizer.json` of a folder or a hub id, or the built-in one. Blocks; raises `ModelError`."""
    if path_or_hub_id == BUILTIN:
        inner = builtin_tokenizer()
        return Tokenizer(inner, _sha256(inner.to_str().encode()))
    path = model_folder(path_or_hub_id) / TOKENIZER
    try:
        content = path.read_bytes()
        inner = tokenizers.Tokenizer.from_buffer(content)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; the model needs a tokenizer.json", path=path) from error
    except ValueError as error:
        raise ModelError(f"{path}: not a tokenizer ({error}); fetch the model again", path=path) from error
    return Tokenizer(inner, _sha256(content))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
