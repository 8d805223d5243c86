"""One hash for a whole conversation, message by message: by it a conversation is found that names no workflow."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.transcript.fingerprint import is_answer, keys_of, without_reasoning
from paceline.workflow.model import Message

_SIZE = 16


@dataclass(frozen=True, slots=True)
class ChainHash:
    """The hashes of a conversation that is sent whole."""

    first: bytes
    """After its first message: whatever continues the same steps has the same one."""
    answers: tuple[bytes, ...]
    """After each answer in it, the last one first. A finished step has left the same."""
    whole: bytes
    """After its last message. A step without an answer has left the same."""

    def answered(self, key: bytes) -> bytes:
        """The hash of the conversation with its answer, given the answer's key."""
        return _fold(self.whole, key)


def chain_hash(caller: str, model: str, system: str, messages: Sequence[Message]) -> ChainHash:
    """Hash a conversation of at least one message, without its system message. Work for its bytes.

    Whatever does not break the match of a conversation (see `matching.match`) does not change its hashes, and
    reasoning is no part of them at all. Another caller, model or system prompt changes all of them.
    """
    state, hashes, answers = _seed(caller, model, system), [], []
    for key in keys_of(messages).keys:
        state = _fold(state, key)
        hashes.append(state)
        if is_answer(key):
            answers.append(state)
    return ChainHash(hashes[0], tuple(reversed(answers)), state)


def _seed(*parts: str) -> bytes:
    digest = hashlib.blake2b(digest_size=_SIZE)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


def _fold(state: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(state + without_reasoning(key), digest_size=_SIZE).digest()
