"""Prices are exact integers; costs are rounded once."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import config
from paceline.errors import ConfigError
from paceline.ledger.prices import PriceBook, round_half_even
from paceline.workflow.model import Cost, Usage

PRICE = {"input": "0.15", "cached_input": "0.03", "output": "0.6"}


def book(**values: Any) -> PriceBook:
    tree = {"models": {"m": {"path": "emulated"}}, "prices": {"m": PRICE}, **values}
    return PriceBook.from_settings(config.parse(tree, "test"))


def test_tokens_times_prices() -> None:
    usage = Usage(uncached_prompt=100, cached_prompt=900, cache_writes=100, output=50, reasoning=20)
    expected = (100 * Decimal("0.15") + 900 * Decimal("0.03") + 50 * Decimal("0.6")) * 1000
    assert book().list_cost("m", usage) == Cost(int(expected), None, "m")


def test_cached_tokens_cost_as_much_as_others_without_a_price_of_their_own() -> None:
    prices = book(prices={"m": {"input": "0.15", "output": "0.6"}})
    assert prices.list_cost("m", Usage(0, 1000)).list_nanos == 150_000


def test_an_unknown_cached_share_is_priced_as_uncached() -> None:
    assert book().list_cost("m", Usage(uncached_prompt=1000)).list_nanos == 150_000


def test_a_worst_case_is_never_less_than_the_cost() -> None:
    prices = book()
    assert prices.worst_case("m", 1000, 50) == 180_000
    assert prices.worst_case("m", 1000, 50) >= (prices.list_cost("m", Usage(0, 1000, output=50)).list_nanos or 0)


def test_an_hour_costs_its_price() -> None:
    prices = book(accelerators={"gpu": {"usd_per_hour": "1.20", "example": True}})
    assert prices.infrastructure_cost("gpu", 3600.0) == Cost(None, 1_200_000_000, example_price=True)
    assert prices.infrastructure_cost("gpu", 0.0015).infrastructure_nanos == 500
    assert prices.infrastructure_cost("", 3600.0) == Cost()


def test_an_unpriced_model_stops_the_start_unless_allowed() -> None:
    with pytest.raises(ConfigError, match=r"prices\.m: model m has no list price; add \[prices\.m\]"):
        book(prices={})
    prices = book(prices={}, allow_unpriced=True)
    assert prices.list_cost("m", Usage(1000, 0, output=5)) == Cost()
    assert prices.worst_case("m", 1000, 5) == 0


def test_example_prices_are_marked() -> None:
    assert book(prices={"m": {**PRICE, "example": True}}).list_cost("m", Usage(1)).example_price


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"output": "0.0000000001"}, r"prices\.m\.output: .* finer than"),
        ({"output": "-1"}, r"prices\.m\.output: -1 is no price"),
        ({"input": "0.01"}, r"prices\.m\.cached_input: 0\.03 is more than"),
    ],
)
def test_prices_that_cannot_be_right_are_refused(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        book(prices={"m": {**PRICE, **changed}})


@given(st.integers(0, 10**30), st.integers(1, 10**15))
def test_rounding_is_exact(numerator: int, denominator: int) -> None:
    assert round_half_even(numerator, denominator) == round(Fraction(numerator, denominator))


def test_a_miss_costs_the_difference() -> None:
    assert book().miss_cost("m", 1000) == Cost(120_000, None, "m")
    assert book(prices={"m": {"input": "0.15", "output": "0.6"}}).miss_cost("m", 1000).list_nanos == 0
    assert book(prices={}, allow_unpriced=True).miss_cost("m", 1000) == Cost()
