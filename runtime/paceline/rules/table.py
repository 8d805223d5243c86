"""The rules in `platform_rules.toml`: what a platform demands, forbids or does, and who says so."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any, Literal

Severity = Literal["refused", "warning", "note"]
Version = tuple[int, int]
TABLE = "platform_rules.toml"
VERSIONED = {"0.21": (0, 21), "0.24": (0, 24), "0.29": (0, 29)}
"""The Neuron plugins that were read about, by the vLLM version that begins theirs."""
NEWEST_PLUGIN = max(VERSIONED)
GENERATIONS: tuple[tuple[str, Version, Version], ...] = (
    ("nxdi", (0, 2), (0, 5)),
    ("fork", (0, 9), (0, 9)),
    ("plugin", VERSIONED["0.21"], VERSIONED["0.21"]),
    ("plugin", VERSIONED["0.24"], VERSIONED["0.24"]),
    ("plugin", VERSIONED[NEWEST_PLUGIN], (99, 0)),
)
"""What a version of Neuron's vLLM belongs to; `unknown` in between."""


@dataclass(frozen=True, slots=True)
class PlatformRule:
    """One row."""

    id: str
    """Stable."""
    platform: Literal["cpu", "cuda", "neuron"]
    generation: str
    """Of Neuron's software: `plugin` (present), `nxdi` and `fork` (retired), `unknown`. `vllm` elsewhere."""
    versions: str
    """First and last version of the plugin, or of vLLM; an open end goes on."""
    severity: Severity
    """`note` states a fact."""
    statement: str
    """With placeholders that the check fills."""
    remedy: str
    values: tuple[str | int, ...]
    """What the check compares with."""
    source: tuple[str, ...]
    """Documents with their version or date."""
    read: datetime.date
    """When the documents were read."""

    def holds_for(self, version: str) -> bool:
        """Whether the rule is about this version of Neuron's vLLM. A newer one than known is taken for the newest
        known, except by rules that begin beyond it."""
        if self.platform != "neuron":
            return True
        number, newest = version_of(version), VERSIONED[NEWEST_PLUGIN]
        first, _, last = self.versions.partition("-")
        low, high = version_of(first), version_of(last) if last else (99, 0) if "-" in self.versions else None
        if self.generation != generation_of(version):
            return False
        seen = number if low > newest else min(number, newest) if self.generation == "plugin" else number
        return low <= seen <= (high or low)

    def text(self, **values: object) -> tuple[str, str]:
        """Statement and remedy with the placeholders filled."""
        *most, last = map(str, self.values or ("",))
        shown = values | {"values": f"{', '.join(most)} and {last}" if most else last}
        return self.statement.format_map(shown), self.remedy.format_map(shown)


def version_of(text: str) -> Version:
    """The first two numbers of a version such as `0.29.0.1.2.0`; 0.0 for none."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def generation_of(version: str) -> str:
    """`plugin`, `nxdi`, `fork` or `unknown`."""
    number = version_of(version)
    return next((name for name, low, high in GENERATIONS if low <= number <= high), "unknown")


@cache
def table() -> Mapping[str, PlatformRule]:
    """All rules by id, in the order of the file."""
    values = tomllib.loads(resources.files(__package__).joinpath(TABLE).read_text(encoding="utf-8"))
    rules = [_row(row, values["sources"]) for row in values["rule"]]
    return {rule.id: rule for rule in rules}


def _row(row: dict[str, Any], sources: dict[str, str]) -> PlatformRule:
    if unknown := row.keys() - {field.name for field in fields(PlatformRule)}:
        raise ValueError(f"{row['id']}: unknown fields {sorted(unknown)}")
    named = tuple(sources[name] for name in row["source"])
    return PlatformRule(**row | {"source": named, "values": tuple(row.get("values", ()))})
