"""What was computed again, why, and what it cost: by hand-made steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from paceline.routing.pools import PoolChoice, PoolReason
from paceline.workflow.explain import Again, Explanation, explain
from paceline.workflow.model import (
    Cost,
    Message,
    Reuse,
    ReuseBreak,
    Role,
    Speculation,
    Step,
    StepState,
    Timings,
    Tool,
    Usage,
)
from paceline.workflow.remedies import NOT_CONTENT, POOL_WORDS, REMEDIES, changed, moved

NANOS = 10
"""What a token costs more computed than cached."""
CONTENT = sorted(set(ReuseBreak) - NOT_CONTENT)


def step(
    number: int,
    *,
    prompt: int,
    carried: int = 0,
    cached: int | None = 0,
    reason: ReuseBreak | None = None,
    dropped: int | None = 0,
    message: int | None = None,
    **fields: Any,
) -> Step:
    """A finished step on replica `a` that took a millisecond for each computed token, and 1 s to answer."""
    uncached = prompt - (cached or 0)
    values: dict[str, Any] = {
        "parent_step_id": f"s{number - 1}" if number > 1 else None,
        "usage": Usage(uncached, cached, output=10),
        "reuse": Reuse(prompt, carried, prompt - carried, reason, message, dropped),
        "timings": Timings(0.0, uncached / 1000, 1.0, 5.0),
        "cost": Cost(0, 1_000_000),
        "replica": "a",
        "output": Message(Role.ASSISTANT, "done"),
    }
    base = Step(f"s{number}", "w", "t", f"r{number}", "", StepState.FINISHED, ())
    return replace(base, **{**values, **fields})


FIRST = step(1, prompt=320)
WARM = step(2, prompt=400, carried=330, cached=320)


def read(*steps: Step, outside: Iterable[Step] = (), drafts: int = 0) -> Explanation:
    return explain(steps, outside, {"": drafts}, lambda tokens: tokens * NANOS)


def test_every_reason_has_a_remedy_and_every_choice_its_words() -> None:
    assert set(REMEDIES) == set(ReuseBreak)
    assert set(POOL_WORDS) == set(PoolReason)
    assert [text for text in REMEDIES.values() if not text.endswith(".") or text.count(". ")] == []


def test_the_end_of_a_context_that_fills_no_block_is_rounding() -> None:
    found = read(FIRST, WARM)
    assert [turn.rounding_tokens for turn in found.turns] == [0, 10]
    assert [turn.again_tokens for turn in found.turns] == [0, 0]
    assert (found.causes, found.again_tokens, found.rounding_tokens) == ((), 0, 10)
    assert (found.prompt_tokens, found.unknown_turns) == (720, 0)


@pytest.mark.parametrize(("drafts", "rounding"), [(0, 9), (8, 9), (9, 41)])
def test_an_eviction_costs_all_but_the_rounding(drafts: int, rounding: int) -> None:
    late = step(3, prompt=500, carried=425, cached=96, reason=ReuseBreak.EVICTED)
    turn = read(FIRST, WARM, late, drafts=drafts).turns[2]
    assert turn.block_tokens == 32  # of 320 and 96
    assert (turn.rounding_tokens, turn.again_tokens) == (rounding, 425 - 96 - rounding)
    (lost,) = turn.again
    assert (lost.reason, lost.start, lost.at_most) == (ReuseBreak.EVICTED, 96, False)


def test_the_size_of_a_block_is_the_engines_own_where_it_was_kept() -> None:
    late = step(3, prompt=500, carried=434, cached=96, reason=ReuseBreak.EVICTED)
    assert late.reuse
    kept = replace(late, reuse=replace(late.reuse, block_tokens=16))
    first, second, third = read(FIRST, WARM, kept).turns
    assert [first.block_tokens, second.block_tokens, third.block_tokens] == [32, 32, 16]
    assert (third.rounding_tokens, third.again_tokens) == (2, 336)


def test_seconds_and_money_are_the_share_of_the_tokens() -> None:
    late = step(3, prompt=500, carried=417, cached=96, reason=ReuseBreak.EVICTED)
    (lost,) = read(FIRST, WARM, late).turns[2].again
    assert lost.tokens == 320
    assert lost.seconds == pytest.approx(0.320)
    assert lost.list_nanos == 3200
    assert lost.infrastructure_nanos == round(1_000_000 * 0.320 / 1.404)


@pytest.mark.parametrize("reason", CONTENT)
def test_a_change_of_content_costs_at_most_what_was_dropped(reason: ReuseBreak) -> None:
    broken = step(3, prompt=500, carried=64, cached=64, reason=reason, dropped=300, message=2)
    (cause,) = read(FIRST, WARM, broken).causes
    assert (cause.reason, cause.turns, cause.tokens, cause.at_most) == (reason, 1, 300, True)
    assert cause.remedy == REMEDIES[reason]
    shorter = step(3, prompt=100, carried=64, cached=64, reason=reason, dropped=300, message=2)
    assert read(FIRST, WARM, shorter).again_tokens == 36


def test_what_a_branch_has_left_in_the_cache_was_not_computed_again() -> None:
    edited = step(3, prompt=500, carried=64, cached=320, reason=ReuseBreak.EDITED_HISTORY, dropped=300)
    (again,) = read(FIRST, WARM, edited).turns[2].again
    assert (again.start, again.tokens) == (320, 180)


@pytest.mark.parametrize(("replica", "hidden"), [("a", ReuseBreak.EVICTED), ("b", ReuseBreak.MOVED)])
def test_a_change_of_content_does_not_hide_a_lost_cache(replica: str, hidden: ReuseBreak) -> None:
    edited = step(
        3, prompt=500, carried=330, cached=0, reason=ReuseBreak.EDITED_HISTORY, dropped=50, replica=replica
    )
    found = read(FIRST, WARM, edited)
    assert [(cause.reason, cause.tokens) for cause in found.causes] == [
        (hidden, 320),
        (ReuseBreak.EDITED_HISTORY, 50),
    ]


@pytest.mark.parametrize("reason", [None, ReuseBreak.UNCLOSED_TURN])
def test_where_the_runtime_missed_nothing_all_is_rounding(reason: ReuseBreak | None) -> None:
    after = step(3, prompt=500, carried=420, cached=352, reason=reason)
    turn = read(FIRST, WARM, after).turns[2]
    assert (turn.break_reason, turn.again_tokens, turn.rounding_tokens) == (reason, 0, 68)


def test_what_was_not_reported_stays_unknown() -> None:
    silent = step(3, prompt=500, carried=410, cached=None)
    failed = Step("s4", "w", "t", "r4", "", StepState.FAILED, (), parent_step_id="s3")
    before_counts = step(5, prompt=500, carried=0, cached=0, reason=ReuseBreak.COMPACTED, dropped=None)
    found = read(FIRST, WARM, silent, failed, before_counts)
    assert [turn.again_tokens for turn in found.turns] == [0, 0, None, None, None]
    assert [turn.rounding_tokens for turn in found.turns] == [0, 10, None, None, 0]
    assert (found.unknown_turns, found.causes) == (3, ())
    assert found.turns[3].prompt_tokens is None


def test_amounts_that_are_not_known_are_not_zero() -> None:
    bare: dict[str, Any] = {"reason": ReuseBreak.EVICTED, "carried": 417, "cached": 96, "prompt": 500}
    free = step(3, **bare, cost=Cost(), timings=None)
    found = explain([FIRST, WARM, free], [], {}, lambda _: None)
    (cause,) = found.causes
    assert (cause.tokens, cause.seconds, cause.list_nanos, cause.infrastructure_nanos) == (320, None, None, None)
    assert not cause.incomplete
    (mixed,) = read(FIRST, WARM, free, step(4, **bare)).causes
    assert mixed.seconds == pytest.approx(0.320)
    assert (mixed.turns, mixed.incomplete) == (2, True)


def test_the_largest_cause_is_first_and_turns_of_one_add_up() -> None:
    broken: dict[str, Any] = {"prompt": 500, "reason": ReuseBreak.SYSTEM_CHANGED, "dropped": 200, "cached": 0}
    gone = step(5, prompt=500, carried=330, cached=0, reason=ReuseBreak.MOVED, replica="b")
    found = read(FIRST, WARM, step(3, **broken), step(4, **broken), gone)
    assert [(cause.reason, cause.turns, cause.tokens) for cause in found.causes] == [
        (ReuseBreak.SYSTEM_CHANGED, 2, 400),
        (ReuseBreak.MOVED, 1, 320),
    ]
    assert found.again_tokens == 720


def test_a_move_tells_from_where_and_what_the_pools_were_compared_by() -> None:
    drafting = replace(WARM, speculation=Speculation("n"))
    choice = PoolChoice("", PoolReason.SWITCHED, 1.25, 0.5)
    gone = step(3, prompt=500, carried=410, cached=0, reason=ReuseBreak.MOVED, replica="b", pool=choice)
    (lost,) = read(FIRST, drafting, gone).turns[2].again
    words = POOL_WORDS[PoolReason.SWITCHED]
    terms = "(+1.25 s of decode saved, +0.50 s of prefill)"
    assert lost.detail == f"a to b, pool n to plain: {words} {terms}"
    same_pool = replace(gone, pool=PoolChoice("n", PoolReason.ONLY_POOL))
    assert moved(same_pool, drafting) == "a to b"
    assert moved(replace(gone, pool=None), None) == "to b"


def test_a_parent_may_belong_to_another_workflow() -> None:
    branch = step(7, prompt=500, carried=400, cached=0, reason=ReuseBreak.MOVED, parent_step_id="x", replica="b")
    origin = replace(WARM, step_id="x", workflow_id="other", replica="c")
    found = read(branch, outside=[origin])
    (lost,) = found.turns[0].again
    assert lost.detail == "c to b"
    assert [turn.block_tokens for turn in found.turns] == [320]


def test_changes_are_located_without_their_text() -> None:
    read_, list_ = Tool("read", "Read."), Tool("list", "List.")
    before = replace(FIRST, system="one\ntwo\nthree", tools=(read_, list_))

    def tools(*now: Tool) -> str:
        return changed(ReuseBreak.TOOLS_CHANGED, replace(WARM, tools=now), before)

    def system(now: str) -> str:
        return changed(ReuseBreak.SYSTEM_CHANGED, replace(WARM, system=now), before)

    assert tools(list_, read_) == "another order"
    assert tools(read_, Tool("write")) == "added write; removed list"
    assert tools(Tool("read", "Read!"), list_) == "redefined read"
    assert system("one\n2\nthree") == "line 2 of the system prompt"
    assert system("one\ntwo") == "line 3 of the system prompt"
    edited = step(3, prompt=1, reason=ReuseBreak.EDITED_HISTORY, message=4)
    assert changed(ReuseBreak.EDITED_HISTORY, edited, before) == "from message 4 on"
    assert changed(ReuseBreak.TEMPLATE_CHANGED, step(3, prompt=1), before) == ""


def test_nothing_is_said_of_words_that_are_gone() -> None:
    gone = replace(FIRST, output=None)
    assert gone.gone
    for reason in (ReuseBreak.SYSTEM_CHANGED, ReuseBreak.TOOLS_CHANGED):
        now = replace(WARM, system="new", tools=(Tool("read"),))
        assert changed(reason, now, gone) == ""
        assert changed(reason, replace(WARM, output=None), replace(FIRST, system="old", tools=(Tool("a"),))) == ""


def test_who_goes_back_changed_something_since_the_latest_step() -> None:
    head = replace(WARM, system="a\nb\nc")
    back = step(
        3, prompt=500, reason=ReuseBreak.SYSTEM_CHANGED, dropped=400, parent_step_id="s1", system="a\nb\nd"
    )
    (cause,) = read(replace(FIRST, system="a\nb\nd"), head, back).causes
    assert cause.detail == "line 3 of the system prompt"


def test_the_commonest_detail_stands_for_a_cause() -> None:
    def system(number: int, text: str) -> Step:
        reason = ReuseBreak.SYSTEM_CHANGED
        return step(number, prompt=500, cached=0, reason=reason, dropped=400, system=text)

    found = read(system(1, "a\nb"), system(2, "a\nc"), system(3, "a\nd"), system(4, "x\nd"))
    (cause,) = found.causes
    assert cause.detail == "line 2 of the system prompt"


def test_a_part_is_never_negative() -> None:
    found = read(FIRST, step(2, prompt=400, carried=330, cached=384, reason=ReuseBreak.MOVED, replica="b"))
    parts: tuple[Again, ...] = found.turns[1].again
    assert parts == ()
    assert (found.turns[1].rounding_tokens, found.turns[1].again_tokens) == (0, 0)
