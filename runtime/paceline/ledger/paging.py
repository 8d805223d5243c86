"""Page tokens: the sort key of the last item, opaque to clients."""

from __future__ import annotations

import base64
import binascii
from typing import TypeVar

import msgspec

from paceline.errors import InvalidArgument

T = TypeVar("T")


def to_token(key: object) -> str:
    """Write a key as a token."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode()


def from_token(token: str, shape: type[T]) -> T | None:
    """Read the key of a token; None for the first page. Raises `InvalidArgument`."""
    if not token:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token), type=shape)
    except (binascii.Error, ValueError):  # msgspec's errors are ValueErrors
        raise InvalidArgument(
            "page_token: not a token of this list; start without one", field="page_token"
        ) from None
