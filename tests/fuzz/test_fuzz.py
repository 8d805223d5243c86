"""10,000 random cases over all targets, the same in each run; and that the watch finds what never ends."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from tests.fuzz import target
from tests.fuzz.long_answers import Long, check_long
from tests.fuzz.target import HangError, Target, checked_by, play, watched
from tests.fuzz.targets import TARGETS

QUICK = [
    each
    for each in TARGETS
    if each.name.startswith("answers") or each.name in {"whole calls", "conversations sent again"}
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fuzzed", TARGETS, ids=lambda fuzzed: fuzzed.name)
def test_whatever_comes_is_treated_as_promised(fuzzed: Target) -> None:
    with fuzzed.check() as check:
        assert play(fuzzed, check, fuzzed.per_10_000, 0) >= 0.9 * fuzzed.per_10_000


@pytest.mark.parametrize("fuzzed", QUICK, ids=lambda fuzzed: fuzzed.name)
def test_whatever_comes_first_is_treated_as_promised(fuzzed: Target) -> None:
    with fuzzed.check() as check:
        assert play(fuzzed, check, 60, 1) >= 54


@pytest.mark.parametrize(
    ("reader", "begin"),
    [
        ("qwen2.5", "<tool_call>"),
        ("qwen3-coder", "<tool_call>"),
        ("qwen3-coder", "<tool_call><function=write><parameter=path>x</parameter>"),
        ("llama3", ""),
        ("llama3", "{"),
        ("gpt-oss", ""),
    ],
)
def test_whitespace_without_end_is_read_in_linear_time(reader: str, begin: str) -> None:
    with watched(2 * target.SECONDS):
        check_long(Long(reader, (begin,), (" ",), ("x", "<|message|>"), ()))


def test_all_targets_together_are_10_000_cases() -> None:
    assert sum(each.per_10_000 for each in TARGETS) == 10_000


def test_what_does_not_end_is_a_failure_with_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "SECONDS", 0.1)

    def check(case: int) -> None:
        while case > 20:
            pass

    with pytest.raises(HangError) as caught:
        play(Target("endless", st.integers(0, 50), checked_by(check), 1), check, 30, 0)
    assert "case=" in "".join(caught.value.__notes__)
