"""Shares of accelerator time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.workflow.shares import SharedTime


def test_two_steps_share_the_time_that_they_overlap() -> None:
    time = SharedTime()
    first = time.enter(10.0)
    second = time.enter(11.0)
    assert time.leave(13.0, first) == pytest.approx(1 + 2 / 2)
    assert time.leave(14.0, second) == pytest.approx(2 / 2 + 1)
    assert time.busy == pytest.approx(4.0)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=20))
def test_the_shares_sum_to_the_busy_time(spans: list[tuple[float, float]]) -> None:
    moments = sorted(
        [(min(span), 0, index) for index, span in enumerate(spans)]
        + [(max(span), 1, index) for index, span in enumerate(spans)]
    )
    time, marks, total = SharedTime(), dict[int, float](), 0.0
    for now, end, index in moments:
        if end:
            total += time.leave(now, marks[index])
        else:
            marks[index] = time.enter(now)
    assert total == pytest.approx(time.busy, abs=1e-6)
