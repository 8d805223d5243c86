"""The token ids of a conversation, kept in the form in which they are sent.

A context costs memory and time in bytes, never in Python objects: it is the text of a JSON array that only grows.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from paceline.errors import StepNotFinished
from paceline.workflow.chain import ChainLink
from paceline.workflow.model import Step

_SLICE = 4096
"""Ids that are Python objects at once: fresh memory for 100,000 of them costs more than all the rest."""


@dataclass(frozen=True, slots=True)
class Context:
    """A sequence of token ids: `body` is its decimal ids with commas between, `tokens` how many they are."""

    body: bytes = b""
    tokens: int = 0

    @classmethod
    def empty(cls) -> Context:
        """The context of no tokens."""
        return cls()

    def extend(self, ids: Sequence[int]) -> Context:
        """Return this context with ids appended: work for the new ids and one copy of the bytes."""
        if not ids:
            return self
        added = b",".join(_decimal(ids[start : start + _SLICE]) for start in range(0, len(ids), _SLICE))
        return Context(b",".join((self.body, added)) if self.body else added, self.tokens + len(ids))

    def common(self, other: Context) -> Context:
        """Return the longest common beginning of both."""
        at, end = 0, min(len(self.body), len(other.body))
        while at < end:
            middle = (at + end + 1) // 2
            same = self.body[at:middle] == other.body[at:middle]
            at, end = (middle, end) if same else (at, middle - 1)
        cut = at if self._ends(at) and other._ends(at) else max(0, self.body.rfind(b",", 0, at))
        body = self.body[:cut]
        return Context(body, body.count(b",") + 1 if body else 0)

    def _ends(self, at: int) -> bool:
        """Whether an id ends there."""
        return at == len(self.body) or self.body[at : at + 1] == b","

    def prompt_json(self) -> bytes:
        """Return the JSON array of the ids."""
        return b"[" + self.body + b"]"


def pack(ids: Iterable[int]) -> bytes:
    """Return ids as uint32, little-endian."""
    return _little_endian(array("I", ids)).tobytes()


def unpack(packed: bytes) -> array[int]:
    """Return the ids of `pack`. Raises `ValueError` for bytes that are none."""
    ids = array("I")
    ids.frombytes(packed)
    return _little_endian(ids)


def context_of(chain: Sequence[Step] | Sequence[ChainLink]) -> Context:
    """Fold the segments of a step and its ancestors, root first, to the context after the last one.

    Raises `StepNotFinished` for a step without segments, `ValueError` when a step carries more ids than there are.
    """
    ids = array("I")
    for step in chain:
        if step.segments is None:
            raise StepNotFinished(f"step {step.step_id} has no answer to continue from", step_id=step.step_id)
        if step.segments.carried > len(ids):
            raise ValueError(f"step {step.step_id} carries {step.segments.carried} of {len(ids)} tokens")
        del ids[step.segments.carried :]
        ids.extend(unpack(step.segments.rendered))
        ids.extend(unpack(step.segments.generated))
    return Context.empty().extend(ids)


def _decimal(ids: Sequence[int]) -> bytes:
    return orjson.dumps(ids if isinstance(ids, list) else list(ids))[1:-1]


def _little_endian(ids: array[int]) -> array[int]:
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
