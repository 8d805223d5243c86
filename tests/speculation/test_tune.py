"""What is predicted and recommended from measured cells, and the file that keeps them."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.speculation.tune.counters import Counters, read_counters
from paceline.speculation.tune.measure import Cell, StepRun, schedule
from paceline.speculation.tune.points import Point, context_of, kind_of, lengths_by, points_of
from paceline.speculation.tune.predict import Prediction, fit_times, predict
from paceline.speculation.tune.recommend import recommend
from paceline.speculation.tune.results import Conditions, ResultFile

DRAFTS = 1000
CONDITIONS = Conditions("target", "", "ngram", "cpu", 1, "digest")


def cell(k: int, tokens: int, seconds: float, counters: Counters | None = None, repeat: int = 0) -> Cell:
    run = StepRun("one", "free text", 10, tokens, seconds)
    return Cell(k, repeat, (run,), counters or Counters())


def counts(drafts: int, *per_position: int) -> Counters:
    return Counters(drafts, drafts * len(per_position), sum(per_position), per_position)


def points(*cells: Cell) -> dict[int, Point]:
    return points_of(cells)


@st.composite
def curves(draw: st.DrawFn) -> list[int]:
    """How many of `DRAFTS` drafts accept at least 1, 2, ... tokens."""
    drops = draw(st.lists(st.integers(0, 250), min_size=2, max_size=12))
    return [max(0, DRAFTS - fallen) for fallen in accumulate(drops)]


@given(
    accepted=curves(),
    plain_steps=st.integers(0, 3000),
    plain=st.floats(0.01, 1),
    base=st.floats(0.01, 1),
    per_token=st.floats(0, 0.5),
)
def test_every_smaller_k_is_predicted_from_the_largest(
    accepted: list[int], plain_steps: int, plain: float, base: float, per_token: float
) -> None:
    """Exact where acceptance depends on the position only and time is linear in K."""
    covered = DRAFTS + sum(accepted)

    def length(k: int) -> float:
        return 1 + sum(accepted[:k]) / DRAFTS

    def seconds(k: int) -> float:
        return plain_steps * plain + covered / length(k) * (base + per_token * k)

    def measured(k: int) -> Cell:
        drafts = covered / length(k)
        position = [round(share * drafts / DRAFTS) for share in accepted[:k]]
        return cell(k, covered + plain_steps, seconds(k), counts(round(drafts), *position))

    largest = len(accepted)
    found = predict(points(cell(0, 100, 100 * plain), measured(1), measured(largest)))
    assert list(found) == list(range(1, largest + 1))
    for k, prediction in found.items():
        assert prediction.acceptance_length == pytest.approx(length(k), rel=2e-3)
        assert prediction.tokens_per_second == pytest.approx((covered + plain_steps) / seconds(k), rel=0.02)


def test_one_k_draws_the_line_from_off() -> None:
    found = fit_times(points(cell(0, 10, 1.0), cell(4, 30, 1.4, counts(10, 8, 6, 4, 2))))
    assert found is not None
    assert (found.plain, found.base) == (0.1, 0.1)
    assert found.at(4) == pytest.approx(0.14)


@pytest.mark.parametrize(
    "cells",
    [
        (),
        (cell(0, 10, 1.0),),
        (cell(2, 10, 1.0, counts(5, 3, 2)),),
        (cell(0, 10, 1.0), cell(2, 10, 1.0)),
        (cell(0, 0, 0.0), cell(2, 10, 1.0, counts(5, 3, 2))),
    ],
    ids=["nothing", "off only", "no off", "no drafts", "off without tokens"],
)
def test_nothing_is_predicted_from_too_little(cells: tuple[Cell, ...]) -> None:
    assert predict(points(*cells)) == {}


def test_repeats_are_pooled_and_their_spread_is_known() -> None:
    (point,) = points(cell(2, 10, 1.0, counts(4, 3, 2), repeat=1), cell(2, 10, 2.0, counts(6, 5, 1))).values()
    assert point.speed == pytest.approx(20 / 3)
    assert point.spread == pytest.approx(5.0)
    assert point.counters == Counters(10, 20, 11, (8, 3))
    assert point.acceptance_length == pytest.approx(2.1)
    assert points(cell(0, 10, 1.0))[0].spread is None
    assert points(cell(0, 10, 1.0))[0].acceptance_length is None


def test_length_by_class_and_context() -> None:
    runs = (
        StepRun("a", "code edit", 99_999, 9, 1.0, drafts=2, drafted=8, accepted=7),
        StepRun("b", "free text", 1024, 9, 1.0, drafts=4, drafted=16, accepted=2),
        StepRun("c", "tool call", 10, 9, 1.0, drafts=0, drafted=0, accepted=0),
        StepRun("d", "free text", 1025, 9, 1.0, drafts=1, drafted=16, accepted=8),
    )
    point = Point(4, (Cell(4, 0, runs, Counters()),))
    assert lengths_by(point, kind_of) == {"code edit": 4.5, "free text": 3.0}
    assert lengths_by(point, context_of) == {"up to 1024 tokens": 1.5, "up to 4096 tokens": 9.0, "longer": 4.5}


class TestRecommendation:
    """Speeds below are tokens of ten seconds."""

    def of(self, speeds: dict[int, tuple[int, ...]], *predicted: Prediction) -> tuple[int, str]:
        drafts = counts(10, 5)
        cells = [
            cell(k, tokens, 10.0, drafts if k else None, repeat)
            for k, repeats in speeds.items()
            for repeat, tokens in enumerate(repeats)
        ]
        found = recommend(points(*cells), {prediction.k: prediction for prediction in predicted})
        assert found is not None
        return found.k, " ".join(found.reasons)

    def test_the_fastest(self) -> None:
        k, reasons = self.of({0: (100, 101), 2: (150, 151), 4: (200, 201), 8: (120, 121)})
        assert k == 4
        assert reasons == "K = 4 generates 2.00 times as fast as no speculation."

    def test_the_smallest_within_the_spread(self) -> None:
        k, reasons = self.of({0: (100, 101), 2: (190, 193), 4: (180, 210), 8: (120, 121)})
        assert k == 2
        assert "K = 4 was fastest, but not by more than the spread" in reasons

    def test_none_where_it_is_slower(self) -> None:
        k, reasons = self.of({0: (100, 101), 2: (80, 81), 4: (60, 61)})
        assert k == 0
        assert "K = 2, is 0.80 times as fast" in reasons

    def test_none_where_the_gain_is_within_the_spread(self) -> None:
        assert self.of({0: (90, 110), 2: (105, 106)})[0] == 0
        assert self.of({0: (99, 101), 2: (105, 106)})[0] == 2

    def test_what_is_doubtful_is_said(self) -> None:
        k, reasons = self.of({0: (100,), 2: (150,)}, Prediction(2, 2.0, 15.0), Prediction(1, 2.0, 18.0))
        assert k == 2
        assert "single repeat" in reasons
        assert "K = 1 is predicted to reach 18.0 tokens/s" in reasons
        assert "largest K that was measured" in reasons

    def test_a_silent_drafter(self) -> None:
        found = recommend(points(cell(0, 10, 1.0), cell(4, 10, 1.0)), {})
        assert found
        assert found.k == 0
        assert any("proposed nothing" in reason for reason in found.reasons)

    def test_nothing_without_off_or_without_k(self) -> None:
        assert recommend(points(cell(4, 10, 1.0)), {}) is None
        assert recommend(points(cell(0, 10, 1.0)), {}) is None
        assert recommend(points(cell(0, 0, 0.0), cell(4, 10, 1.0)), {}) is None


def test_rounds_go_there_and_back() -> None:
    assert schedule([1, 4, 2], 2) == [(k, 0) for k in (0, 4, 1, 2)] + [(k, 1) for k in (2, 1, 4, 0)]
    assert schedule([3], 1) == [(0, 0), (3, 0)]


def test_counters_are_those_of_all_engine_processes() -> None:
    lines = ["# TYPE vllm:spec_decode_num_drafts_total counter", "# TYPE other gauge", "other 3"]
    for engine, drafts in (("0", 5), ("1", 7)):
        lines += [
            f'vllm:spec_decode_num_drafts_total{{engine="{engine}"}} {drafts}.0',
            f'vllm:spec_decode_num_draft_tokens_total{{engine="{engine}"}} {2 * drafts}.0',
            f'vllm:spec_decode_num_accepted_tokens_total{{engine="{engine}"}} {drafts}.0',
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",position="1"}} 2.0',
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",position="0"}} {drafts - 2}.0',
        ]
    assert read_counters("\n".join(lines) + "\n") == Counters(12, 24, 12, (8, 4))
    assert read_counters("") == Counters()


class TestResultFile:
    def test_cells_are_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "out.jsonl"
        results = ResultFile(path, CONDITIONS)
        results.add(cell(0, 10, 1.0))
        results.add(cell(4, 30, 1.0, counts(10, 8, 6, 4, 2)))
        again = ResultFile(path, CONDITIONS)
        assert again.cells == results.cells
        assert again.missing(schedule([4], 2)) == [(4, 1), (0, 1)]

    @pytest.mark.parametrize("cut", [1, 20])
    def test_a_cut_line_is_dropped_and_replaced(self, tmp_path: Path, cut: int) -> None:
        path = tmp_path / "out.jsonl"
        results = ResultFile(path, CONDITIONS)
        results.add(cell(0, 10, 1.0))
        results.add(cell(4, 30, 1.0, counts(1000, *range(1000, 900, -1))))
        path.write_bytes(path.read_bytes()[:-cut])
        again = ResultFile(path, CONDITIONS)
        assert again.cells == [cell(0, 10, 1.0)]
        again.add(cell(2, 20, 1.0))
        assert ResultFile(path, CONDITIONS).cells == [cell(0, 10, 1.0), cell(2, 20, 1.0)]

    def test_other_conditions_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        ResultFile(path, CONDITIONS)
        with pytest.raises(ConfigError, match="measured with another target, concurrency"):
            ResultFile(path, Conditions("other", "", "ngram", "cpu", 2, "digest"))

    def test_other_files_are_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("notes\n")
        with pytest.raises(ConfigError, match="is no result"):
            ResultFile(path, CONDITIONS)
        assert path.read_text() == "notes\n"
        unfinished = tmp_path / "unfinished.txt"
        unfinished.write_text("notes without an end")
        with pytest.raises(ConfigError, match="is no result"):
            ResultFile(unfinished, CONDITIONS)
        assert unfinished.read_text() == "notes without an end"
