"""What is predicted and recommended from measured cells, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.speculation.tune.drafts import OFF, Setting, parse, rounds
from paceline.speculation.tune.forecast import Forecast, by_places, by_positions, places, total
from paceline.speculation.tune.measure import Cell, StepRun, within
from paceline.speculation.tune.points import Study, context_of, groups_of, kind_of, studies_of
from paceline.speculation.tune.predict import Prediction, fit_times, forecaster, predict
from paceline.speculation.tune.recommend import recommend
from paceline.speculation.tune.results import Conditions, ResultFile
from paceline.workflow.model import StepClass

NAME = "draft_model small"
CONDITIONS = Conditions("target", "cpu", "digest")


def setting(k: int) -> Setting:
    return Setting(NAME, k) if k else OFF


def played(known: Sequence[bool], k: int) -> list[tuple[int, int]]:
    """(drafted, accepted) of each check of an answer, by a drafter that knows these of its tokens.

    The last draft ends where the answer ends, as `within` leaves it.
    """
    found, done = [], 0
    while done < len(known):
        held = 0
        while held < k and done + held < len(known) - 1 and known[done + held]:
            held += 1
        done += held + 1
        cut = done == len(known) and held < k and (held == 0 or known[done - 1])
        found.append((held if cut else k, held))
    return found


def run(
    checks: Sequence[tuple[int, int]],
    seconds: float,
    plain: int = 0,
    kind: StepClass = "free text",
    prompt_tokens: int = 10,
) -> StepRun:
    tokens = plain + sum(accepted + 1 for _, accepted in checks)
    return StepRun("one", kind, prompt_tokens, tokens, seconds, tuple(checks))


def cell(k: int, tokens: int, seconds: float, *, repeat: int = 0, checks: int | None = None) -> Cell:
    """Some tokens in some seconds; with K > 0 all from drafts of which one token holds."""
    count = tokens // 2 if checks is None else checks
    drafted = [(k, 1)] * count if k else []
    return Cell(setting(k), 1, repeat, (run(drafted, seconds, tokens - 2 * len(drafted)),), seconds)


def study(*cells: Cell) -> Study:
    (found,) = studies_of(cells, [NAME])
    return found


@given(known=st.lists(st.booleans(), min_size=1, max_size=200), most=st.integers(2, 12))
def test_what_a_draft_model_knows_is_played_again_with_every_smaller_k(known: list[bool], most: int) -> None:
    """Exact but for the tokens behind a draft that held in full: those were never drafted."""
    checks = played(known, most)
    seen = places(checks)
    assert len(seen) == len(known)
    for k in range(1, most):
        truth = played(known, k)
        forecast = by_places(checks, 3, k)
        assert forecast.checks + forecast.accepted == len(known)
        assert forecast.plain == 3
        if all(accepted < drafted or not drafted for drafted, accepted in checks[:-1]):
            assert abs(forecast.checks - len(truth)) <= 1


@given(
    shares=st.lists(st.integers(0, 250), min_size=2, max_size=12),
    plain=st.integers(0, 3000),
    seconds=st.floats(0.01, 1),
    base=st.floats(0.01, 1),
    per_token=st.floats(0, 0.5),
)
def test_every_smaller_k_is_predicted_from_the_shares_per_position(
    shares: list[int], plain: int, seconds: float, base: float, per_token: float
) -> None:
    """Exact where acceptance depends on the position in the draft only and time is linear in K."""
    most = len(shares)
    accepted = [sum(one >= draw for one in shares) for draw in range(1, 251)]

    def measured(k: int) -> Cell:
        checks = [(k, min(one, k)) for one in accepted]
        return Cell(
            setting(k), 1, 0, (run(checks, plain * seconds + len(checks) * (base + per_token * k), plain),), 1
        )

    found = study(Cell(OFF, 1, 0, (run((), 100 * seconds, 100),), 1), measured(1), measured(most))
    times = fit_times(found.off, found.of(NAME), passes=True)
    predicted = predict(found, NAME, times, forecaster("eagle3", emulated=False))
    assert list(predicted) == list(range(1, most + 1))
    for k, prediction in predicted.items():
        assert prediction.acceptance_length == pytest.approx(1 + sum(min(one, k) for one in accepted) / 250)
    for k in (1, most):
        covered = sum(accepted) + 250
        checks = covered / predicted[k].acceptance_length
        expected = (covered + plain) / (plain * seconds + checks * (base + per_token * k))
        assert predicted[k].tokens_per_second == pytest.approx(expected, rel=1e-6)


def test_each_method_has_its_forecast() -> None:
    one = StepRun("a", "free text", 9, 6, 1.0, ((4, 4), (4, 0)), (Forecast(1, 0, 0), Forecast(2, 1, 3)))
    assert forecaster("ngram", emulated=False)(one, 2) == Forecast(2, 1, 3)
    assert forecaster("draft_model", emulated=False)(one, 1) == by_places(one.checks, 0, 1) == Forecast(3, 3, 0)
    for method, emulated in (("eagle3", False), ("ngram", True), ("draft_model", True)):
        assert forecaster(method, emulated=emulated)(one, 1) == by_positions(one.checks, 0, 1)
    assert by_positions(one.checks, 0, 1) == Forecast(4.0, 2.0, 0)
    assert by_positions((), 5, 1) == Forecast(0, 0, 5)
    assert total([Forecast(1, 2, 3), Forecast(4, 5, 6)]) == Forecast(5, 7, 9)
    assert Forecast(0, 0, 3).acceptance_length == 1.0


@pytest.mark.parametrize(
    ("sizes", "last"),
    [
        ((5, 1, 3), (4, 2)),  # whole
        ((5, 1, 2), (1, 1)),  # cut in the draft
        ((5, 1, 1), (0, 0)),  # cut to the first token of it
        ((8, 1), (4, 2)),  # joined: not told apart
    ],
)
def test_what_was_accepted_beyond_the_end_does_not_count(sizes: tuple[int, ...], last: tuple[int, int]) -> None:
    assert within([(4, 4), (4, 0), (4, 2)], sizes) == ((4, 4), (4, 0), last)
    assert within([(4, 0)], (1, 1)) == ((4, 0),)
    assert within([], (1, 1)) == ()


def test_one_k_draws_the_line_from_off() -> None:
    found = study(cell(0, 10, 1.0), cell(4, 20, 1.4))
    times = fit_times(found.off, found.of(NAME), passes=True)
    assert times is not None
    assert (times.plain, times.at(0)) == (0.1, 0.1)
    assert times.at(2) == pytest.approx(0.12)
    assert times.at(4) == pytest.approx(0.14)


def test_a_check_of_a_lookup_lasts_one_reading_of_the_weights_or_its_share_of_the_largest() -> None:
    found = study(cell(0, 10, 1.0), cell(1, 20, 1.2), cell(9, 20, 4.0))
    times = fit_times(found.off, found.of(NAME), passes=False)
    assert times is not None
    expected = {1: 0.12, 2: 0.12, 3: 0.16, 4: 0.2, 9: 0.4}
    assert {k: times.at(k) for k in expected} == {k: pytest.approx(seconds) for k, seconds in expected.items()}


@pytest.mark.parametrize(
    "cells",
    [
        (cell(0, 10, 1.0),),
        (cell(2, 10, 1.0),),
        (cell(0, 10, 1.0), cell(2, 10, 1.0, checks=0)),
        (cell(0, 0, 0.0), cell(2, 10, 1.0)),
    ],
    ids=["off only", "no off", "no drafts", "off without tokens"],
)
def test_nothing_is_predicted_from_too_little(cells: tuple[Cell, ...]) -> None:
    found = study(*cells)
    assert (
        predict(found, NAME, fit_times(found.off, found.of(NAME), passes=True), forecaster("mtp", emulated=False))
        == {}
    )


def test_repeats_are_pooled_and_their_spread_is_known() -> None:
    first = Cell(setting(2), 1, 1, (run([(2, 2), (2, 0), (2, 1), (2, 0)], 1.0, 3),), 1.5)
    second = Cell(setting(2), 1, 0, (run([(2, 1), (2, 2)], 2.0, 5),), 2.5)
    point = study(first, second).points[setting(2)]
    assert point.speed == pytest.approx(20 / 3)
    assert point.spread == pytest.approx(5.0)
    assert (point.checks, point.drafted, point.accepted, point.plain) == (6, 12, 6, 8)
    assert point.shares() == [4 / 6, 2 / 6]
    assert point.acceptance_length == pytest.approx(2.0)
    assert point.throughput == pytest.approx(22 / 4)
    off = study(cell(0, 10, 1.0)).points[OFF]
    assert (off.spread, off.acceptance_length, off.shares()) == (None, None, [])


def test_parts_of_the_steps() -> None:
    runs = (
        run([(4, 3)] * 2, 1.0, kind="code edit", prompt_tokens=99_999),
        run([(4, 0)] * 4, 4.0, kind="free text", prompt_tokens=1024),
        run([(4, 4)], 1.0, kind="free text", prompt_tokens=1025),
    )
    whole = study(Cell(setting(4), 1, 0, runs, 6.0))
    by_class = groups_of(whole, kind_of)
    speeds = {name: part.points[setting(4)].speed for name, part in by_class.items()}
    assert speeds == {"free text": pytest.approx(9 / 5), "code edit": pytest.approx(8.0)}
    assert list(groups_of(whole, context_of)) == ["<=1024", "<=4096", ">65536"]


def test_numbers_of_steps_at_once_are_kept_apart() -> None:
    other = Cell(setting(2), 4, 0, (run([(2, 1)], 1.0),), 1.0)
    foreign = Cell(Setting("ngram", 2), 1, 0, (run([(2, 1)], 1.0),), 1.0)
    found = studies_of([cell(2, 10, 1.0), other, foreign, cell(0, 10, 1.0)], [NAME])
    assert [(one.concurrency, list(one.points)) for one in found] == [(1, [OFF, setting(2)]), (4, [setting(2)])]


class TestRecommendation:
    """Speeds below are tokens of ten seconds."""

    def of(self, speeds: dict[int, tuple[int, ...]], *predicted: Prediction) -> tuple[int, str]:
        cells = [
            cell(k, tokens, 10.0, repeat=repeat)
            for k, repeats in speeds.items()
            for repeat, tokens in enumerate(repeats)
        ]
        found = recommend(study(*cells), {NAME: {prediction.k: prediction for prediction in predicted}})
        assert found is not None
        return found.setting.k, " ".join(found.reasons)

    def test_the_fastest(self) -> None:
        k, reasons = self.of({0: (100, 101), 2: (150, 151), 4: (200, 201), 8: (120, 121)})
        assert k == 4
        assert reasons == f"{NAME}, K = 4 generates 2.00 times as fast as no speculation."

    def test_the_smallest_within_the_spread(self) -> None:
        k, reasons = self.of({0: (100, 101), 2: (190, 193), 4: (180, 210), 8: (120, 121)})
        assert k == 2
        assert "K = 4 was fastest, but not by more than the spread" in reasons

    def test_not_one_that_is_within_the_spread_only_because_it_is_noisy(self) -> None:
        assert self.of({0: (100, 101), 1: (60, 150), 2: (190, 191)})[0] == 2

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
        found = recommend(study(cell(0, 10, 1.0), cell(4, 10, 1.0, checks=0)), {})
        assert found
        assert found.setting == OFF
        assert any("proposed nothing" in reason for reason in found.reasons)

    def test_the_better_of_two_drafts(self) -> None:
        runs = (run([(4, 1)] * 8, 1.0),)
        found = studies_of(
            [cell(0, 10, 1.0), cell(4, 12, 1.0), Cell(Setting("ngram", 4), 1, 0, runs, 1.0)], [NAME, "ngram"]
        )
        best = recommend(found[0], {})
        assert best
        assert best.setting == Setting("ngram", 4)
        assert best.speed_up == pytest.approx(1.6)

    def test_nothing_without_off_or_without_k(self) -> None:
        assert recommend(study(cell(4, 10, 1.0)), {}) is None
        assert recommend(study(cell(0, 10, 1.0)), {}) is None
        assert recommend(study(cell(0, 0, 0.0), cell(4, 10, 1.0)), {}) is None


class TestDrafts:
    def test_names_say_everything_but_k(self) -> None:
        assert parse("ngram").name == "ngram"
        assert parse("qwen2.5-coder-0.5b").name == "draft_model qwen2.5-coder-0.5b"
        assert parse("eagle3:./head").name == "eagle3 ./head"
        assert parse("mtp").name == "mtp"
        assert parse("ngram").at(3).num_speculative_tokens == 3

    @pytest.mark.parametrize("text", ["eagle3:", "eagle3", "draft_model", "none", "none:model", "ngram:model"])
    def test_what_cannot_draft(self, text: str) -> None:
        with pytest.raises(ConfigError, match="--drafter"):
            parse(text)

    def test_rounds_go_there_and_back(self) -> None:
        draft = parse("ngram")
        one = [OFF, *(Setting("ngram", k) for k in (4, 1, 2))]
        assert rounds([draft], [1, 4, 2], 2) == [(s, 0) for s in one] + [(s, 1) for s in one[::-1]]
        both = [setting for setting, _ in rounds([draft, parse("mtp")], [1, 4], 1)]
        assert both == [OFF, Setting("ngram", 4), Setting("mtp", 4), Setting("ngram", 1), Setting("mtp", 1)]


class TestResultFile:
    def test_cells_are_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "out.jsonl"
        results = ResultFile(path, CONDITIONS)
        results.add(cell(0, 10, 1.0))
        results.add(cell(4, 30, 1.0))
        again = ResultFile(path, CONDITIONS)
        assert again.cells == results.cells
        assert again.missing(setting(4), [1, 2], 0) == [2]
        assert again.missing(OFF, [1], 1) == [1]

    @pytest.mark.parametrize("cut", [1, 20])
    def test_a_cut_line_is_dropped_and_replaced(self, tmp_path: Path, cut: int) -> None:
        path = tmp_path / "out.jsonl"
        results = ResultFile(path, CONDITIONS)
        results.add(cell(0, 10, 1.0))
        results.add(cell(4, 2000, 1.0))
        path.write_bytes(path.read_bytes()[:-cut])
        again = ResultFile(path, CONDITIONS)
        assert again.cells == [cell(0, 10, 1.0)]
        again.add(cell(2, 20, 1.0))
        assert ResultFile(path, CONDITIONS).cells == [cell(0, 10, 1.0), cell(2, 20, 1.0)]

    def test_other_conditions_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        ResultFile(path, CONDITIONS)
        with pytest.raises(ConfigError, match="measured with another target, dtype"):
            ResultFile(path, Conditions("other", "cpu", "digest", dtype="float32"))

    def test_another_version_of_the_engine_is_refused(self, tmp_path: Path) -> None:
        results = ResultFile(tmp_path / "out.jsonl", CONDITIONS)
        results.add(Cell(OFF, 1, 0, (), 1.0, "0.32.0"))
        with pytest.raises(ConfigError, match=r"version 0\.32\.0 of the engine, this is 0\.33\.0"):
            results.add(Cell(OFF, 1, 1, (), 1.0, "0.33.0"))

    def test_the_cells_of_another_that_writes_at_the_same_time_are_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        one, other = ResultFile(path, CONDITIONS), ResultFile(path, CONDITIONS)
        one.add(cell(0, 10, 1.0))
        with pytest.raises(ConfigError, match="another `spec tune` writes to it"):
            other.add(cell(4, 30, 1.0))
        assert ResultFile(path, CONDITIONS).cells == one.cells

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
