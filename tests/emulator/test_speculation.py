"""Drafting: prompt lookup against its plain definition, and the acceptance curve against its rates."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.emulator.speculation import AcceptanceCurve, DraftCounts, PromptLookup

TOKENS = st.integers(0, 2)


def plain_lookup(context: list[int], most: int, shortest: int, longest: int) -> list[int]:
    """The definition: the longest ending that occurs earlier, at its earliest place."""
    for length in range(min(longest, len(context) - 1), shortest - 1, -1):
        for at in range(len(context) - length):
            if context[at : at + length] == context[-length:]:
                return context[at + length :][:most]
    return []


@given(
    context=st.lists(TOKENS, min_size=1, max_size=30),
    upcoming=st.lists(TOKENS, max_size=10),
    most=st.integers(1, 6),
    lookup=st.sampled_from([(1, 1), (1, 3), (2, 5)]),
)
def test_prompt_lookup_drafts_as_defined(
    context: list[int], upcoming: list[int], most: int, lookup: tuple[int, int]
) -> None:
    proposal = plain_lookup(context, most, *lookup)
    accepted = 0
    while accepted < min(len(proposal), len(upcoming)) and proposal[accepted] == upcoming[accepted]:
        accepted += 1
    drafter = PromptLookup(most, *lookup)
    assert drafter.draft(array("I", context).tobytes(), upcoming, random.Random()) == (len(proposal), accepted)


def test_a_match_across_token_borders_does_not_count() -> None:
    """The bytes of [1, 256] occur in [0x01000000, 0, 1] shifted by three bytes."""
    context = array("I", [0x01000000, 0, 1, 7, 1, 256]).tobytes()
    assert context.find(context[-8:]) % 4
    assert PromptLookup(2, 2, 2).draft(context, [7], random.Random()) == (0, 0)


def test_the_curve_is_met_and_the_same_for_the_same_seed() -> None:
    curve, rng = AcceptanceCurve((0.9, 0.6, 0.2)), random.Random(1)
    counts = DraftCounts.empty(curve.most)
    draws = [curve.draft(b"", [0] * 9, rng) for _ in range(4000)]
    for drafted, accepted in draws:
        counts.add(drafted, accepted)
    assert counts.drafted == 12_000
    assert counts.steps == 4000
    for position, rate in enumerate(curve.rates):
        assert sum(counts.histogram[position + 1 :]) / 4000 == pytest.approx(rate, abs=0.03)
    again = random.Random(1)
    assert [curve.draft(b"", [0] * 9, again) for _ in range(4000)] == draws


def test_the_curve_never_accepts_past_the_end() -> None:
    assert AcceptanceCurve((1.0, 1.0, 1.0)).draft(b"", [5, 6], random.Random()) == (3, 1)


@pytest.mark.parametrize("rates", [(), (0.5, 0.6), (1.1,), (0.5, -0.1)])
def test_impossible_curves_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="acceptance"):
        AcceptanceCurve(rates)
