"""How amounts are shown."""

from __future__ import annotations

from decimal import Decimal

from paceline.config import NANOS

EXAMPLE = "EXAMPLE"


def usd(nanos: int | None, *, example: bool = False, digits: int | None = None) -> str:
    """An amount in USD, to the nano or rounded to `digits`, marked where its price is an example; `-` for an
    unknown one."""
    if nanos is None:
        return "-"
    amount = Decimal(nanos) / NANOS
    if digits is None:
        digits = max(2, -int(amount.normalize().as_tuple().exponent))
    return f"{EXAMPLE} ${amount:.{digits}f}" if example else f"${amount:.{digits}f}"
