"""Page tokens: the sort key of the last item, opaque to clients."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from paceline.errors import InvalidArgument

T = TypeVar("T", bound=Sequence[int | str])
MAX_BITS = 63
"""Larger numbers are no column's."""


def to_token(key: object) -> str:
    """Write a key as a token."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode()


def from_token(token: str, shape: type[T]) -> T | None:
    """Read the key of a token; None for the first page. Raises `InvalidArgument`."""
    if not token:
        return None
    try:
        key = msgspec.json.decode(base64.urlsafe_b64decode(token), type=shape)
    except (binascii.Error, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        raise _foreign() from None
    if any(isinstance(part, int) and part.bit_length() > MAX_BITS for part in key):
        raise _foreign()
    return key


def _foreign() -> InvalidArgument:
    return InvalidArgument("page_token: not a token of this list; start without one", field="page_token")
