"""What tokens and accelerator time cost: integer nano-USD, rounded once (half to even)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from paceline.config import NANOS, Accelerator, Price, Settings
from paceline.errors import ConfigError
from paceline.workflow.model import Cost, Usage

MILLION = 1_000_000
MICROSECONDS_PER_HOUR = 3_600_000_000


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """List prices of one model in nano-USD per million tokens."""

    name: str
    input: int
    cached_input: int
    output: int
    example: bool


@dataclass(frozen=True, slots=True)
class AcceleratorPrice:
    """Price of one instance type in nano-USD per hour."""

    per_hour: int
    example: bool


class PriceBook:
    """The prices of the configuration. A model without one costs None, which is not 0."""

    def __init__(self, tokens: dict[str, TokenPrice], accelerators: dict[str, AcceleratorPrice]) -> None:
        self._tokens = tokens
        self._accelerators = accelerators

    @classmethod
    def from_settings(cls, settings: Settings) -> PriceBook:
        """Read `[prices]` and `[accelerators]`.

        Raises `ConfigError` for a model without a price (unless `allow_unpriced`) and for an amount that is
        negative, finer than a nano-USD, or dearer cached than computed (a reservation could then be too small).
        """
        unpriced = sorted(set(settings.models) - set(settings.prices))
        if unpriced and not settings.allow_unpriced:
            raise ConfigError(
                f"prices.{unpriced[0]}: model {unpriced[0]} has no list price; add [prices.{unpriced[0]}] "
                "or set allow_unpriced = true",
                field=f"prices.{unpriced[0]}",
                model=unpriced[0],
            )
        return cls(
            {name: _token_price(name, price) for name, price in settings.prices.items()},
            {name: _accelerator_price(name, price) for name, price in settings.accelerators.items()},
        )

    def list_cost(self, model: str, usage: Usage) -> Cost:
        """List cost of one attempt; no amount for an unpriced model. What is not reported costs nothing: where
        the cached share is unknown, `usage.uncached_prompt` is the whole prompt."""
        price = self._tokens.get(model)
        if price is None:
            return Cost()
        total = (
            (usage.uncached_prompt or 0) * price.input
            + (usage.cached_prompt or 0) * price.cached_input
            + (usage.output or 0) * price.output
        )
        return Cost(round_half_even(total, MILLION), price_name=price.name, example_price=price.example)

    def worst_case(self, model: str, prompt_tokens: int, output_tokens: int) -> int:
        """Nano-USD of a whole uncached prompt and the longest answer; 0 for an unpriced model."""
        return self.list_cost(model, Usage(uncached_prompt=prompt_tokens, output=output_tokens)).list_nanos or 0

    def miss_cost(self, model: str, tokens: int) -> Cost:
        """What prompt tokens cost more computed than found in the cache; no amount for an unpriced model."""
        price = self._tokens.get(model)
        if price is None:
            return Cost()
        nanos = round_half_even(tokens * (price.input - price.cached_input), MILLION)
        return Cost(nanos, price_name=price.name, example_price=price.example)

    def infrastructure_cost(self, instance_type: str, seconds: float) -> Cost:
        """Cost of accelerator time; no amount without an hourly price (such as for an empty instance type)."""
        price = self._accelerators.get(instance_type)
        if price is None:
            return Cost()
        nanos = round_half_even(round(seconds * MILLION) * price.per_hour, MICROSECONDS_PER_HOUR)
        return Cost(infrastructure_nanos=nanos, example_price=price.example)


def round_half_even(numerator: int, denominator: int) -> int:
    """Divide integers exactly and round once, half to even. `denominator` is positive."""
    quotient, remainder = divmod(numerator, denominator)
    return quotient + (2 * remainder + (quotient & 1) > denominator)


def _token_price(name: str, price: Price) -> TokenPrice:
    cached = price.input if price.cached_input is None else price.cached_input
    if cached > price.input:
        field = f"prices.{name}.cached_input"
        raise ConfigError(f"{field}: {cached} is more than the price of input; lower it", field=field)
    return TokenPrice(
        name=name,
        input=_nanos(price.input, f"prices.{name}.input"),
        cached_input=_nanos(cached, f"prices.{name}.cached_input"),
        output=_nanos(price.output, f"prices.{name}.output"),
        example=price.example,
    )


def _accelerator_price(name: str, price: Accelerator) -> AcceleratorPrice:
    return AcceleratorPrice(_nanos(price.usd_per_hour, f"accelerators.{name}.usd_per_hour"), price.example)


def _nanos(usd: Decimal, field: str) -> int:
    if not usd.is_finite() or usd < 0:
        raise ConfigError(f"{field}: {usd} is no price; give USD, 0 or more", field=field)
    nanos = usd * NANOS
    if nanos != nanos.to_integral_value():
        raise ConfigError(f"{field}: {usd} is finer than 0.000000001 USD; round it", field=field)
    return int(nanos)
