"""Break-even points from times of forward passes."""

from __future__ import annotations

import pytest

from paceline.speculation.estimate import Point, best, expected_length, points, unrest

TARGET = {1: [1.0, 1.0], 2: [1.1, 1.1], 3: [1.2, 1.2], 4: [1.4, 1.4]}
DRAFTER = {1: [0.2, 0.2], 2: [0.22, 0.22], 3: [0.24, 0.24], 4: [0.28, 0.28]}


def test_a_free_drafter_pays_for_the_check_only() -> None:
    found = points(TARGET, None, 3)
    assert [point.k for point in found] == [1, 2, 3]
    assert [point.break_even for point in found] == pytest.approx([1.1, 1.2, 1.4])
    assert [point.draft_seconds for point in found] == [0, 0, 0]
    assert [point.break_even_rate for point in found] == pytest.approx([0.1, 0.1, 0.4 / 3])


def test_a_drafter_takes_in_the_checked_tokens_and_then_one_at_a_time() -> None:
    found = points(TARGET, DRAFTER, 3)
    assert [point.draft_seconds for point in found] == pytest.approx([0.22, 0.24 + 0.2, 0.28 + 0.4])
    assert [point.seconds for point in found] == pytest.approx([1.32, 1.64, 2.08])


def test_the_fastest_round_counts_and_halves_give_the_range() -> None:
    target = {1: [1.0, 1.25, 9.0, 1.25], 2: [1.5, 1.5, 1.6, 7.0]}
    (found,) = points(target, None, 1)
    assert (found.break_even, found.break_even_low, found.break_even_high) == pytest.approx((1.5, 1.2, 1.5))
    assert unrest(target) == pytest.approx((1.25 + 1.55 / 1.5) / 2)


def test_what_cannot_pay() -> None:
    (found,) = points({1: [1.0, 1.0], 2: [1.5, 1.5]}, {1: [0.9, 0.9], 2: [0.9, 0.9]}, 1)
    assert found.break_even == pytest.approx(2.4)
    assert found.break_even_rate is None
    assert best([found], 0.99) is None


def test_noise_gives_no_negative_rate() -> None:
    (found,) = points({1: [1.0, 1.0], 2: [0.98, 0.98]}, None, 1)
    assert found.break_even_rate == 0


def test_expected_length() -> None:
    assert expected_length(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert (expected_length(1.0, 7), expected_length(0.0, 7)) == (8, 1)


def test_the_best_k_grows_with_acceptance() -> None:
    found = [Point(k, 0.0, 0.0, 1 + 0.2 * k, 0.0, 0.0) for k in range(1, 11)]
    chosen = [best(found, rate) for rate in (0.1, 0.6, 0.8, 0.95)]
    assert [point.k if point else 0 for point in chosen] == [0, 2, 4, 10]
    assert found[1].speed_up(0.6) == pytest.approx(1.96 / 1.4)
