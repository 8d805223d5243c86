"""What `paceline doctor` finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from paceline import config

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    subject: str
    level: Level
    text: str
    remedy: str = ""


Check = Callable[[config.Settings], Iterator[Finding]]
"""Looks at one thing; gets the configuration, or the defaults where that is invalid."""
