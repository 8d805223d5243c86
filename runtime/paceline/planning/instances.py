"""The instances in `instances.toml`."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib import resources

from paceline.errors import ConfigError

LOGICAL_NC_CONFIG = 2
"""Physical cores in a logical one: AWS's default."""
CHIP_CORES = 8
"""Physical cores of a Trainium2 chip."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a whole instance costs."""

    usd_per_hour: Decimal
    source: str
    read: datetime.date | None
    """When the price was read; None for one of the configuration."""
    example: bool


@dataclass(frozen=True, slots=True)
class Instance:
    """One type of instance."""

    name: str
    chips: int
    source: str
    price: Price | None
    """None where no price was found."""

    @property
    def cores(self) -> int:
        """Logical cores of the whole instance."""
        return self.chips * CHIP_CORES // LOGICAL_NC_CONFIG

    def share(self, price: Price, cores: int) -> Decimal:
        """USD per hour for so many logical cores."""
        return price.usd_per_hour * cores / self.cores


@cache
def table() -> Mapping[str, Instance]:
    """All instances by name, the smallest first."""
    text = resources.files(__package__).joinpath("instances.toml").read_text(encoding="utf-8")
    return {
        name: Instance(
            name=name,
            chips=row["chips"],
            source=f"{row['source']}; read {row['read']}",
            price=Price(Decimal(row["usd_per_hour"]), row["price_source"], row["price_read"], example=True)
            if "usd_per_hour" in row
            else None,
        )
        for name, row in tomllib.loads(text)["instances"].items()
    }


def find(name: str) -> Instance:
    """The instance. Raises `ConfigError`, naming those that are known."""
    if name not in table():
        raise ConfigError(
            f"--instance {name}: not known; plans are made for {', '.join(table())} only", field=name
        )
    return table()[name]
