"""What the sections of the configuration are made of."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _from_json(value: Any) -> Any:
    """Lists and tables come from a variable as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_float=Decimal)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


V = TypeVar("V")
Items = Annotated[list[V], BeforeValidator(_from_json)]
Table = Annotated[dict[str, V], BeforeValidator(_from_json)]


class Section(BaseModel):
    """A table of the file: no unknown names, never changed after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
