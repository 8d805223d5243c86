"""Two pools of one model: what is learned, and which pool a step goes to."""

from dataclasses import replace

import pytest

from paceline.routing import pools as routing
from paceline.routing.pools import TRIES, Ask, PoolReason, Pools, Route
from paceline.routing.speeds import Drafting, Measured, PoolSpeed, age_of

PASS = {"": 0.03, "k4": 0.06}
PREFILL = 0.0002
OUTPUT = 301
"""Output tokens of a step: 300 after the first, 9 s in the plain pool."""
BOTH = {"": True, "k4": True}


def measured(pool: str, passes: float, context: int = 1000, uncached: int | None = 1000) -> Measured:
    """A step whose tokens came in so many passes per token."""
    count = round((OUTPUT - 1) * passes)
    return Measured(
        replica=f"{pool or 'plain'} 0",
        context_tokens=context,
        uncached_tokens=uncached,
        first_token_seconds=PREFILL * (uncached or 1000),
        output_tokens=OUTPUT,
        accepted_tokens=OUTPUT - 1 - count if pool else None,
        decode_seconds=count * PASS[pool],
    )


def ask(workflow: str, prompt: int = 1000, carried: int = 0, **more: object) -> Ask:
    return replace(Ask("m", workflow, prompt, carried, BOTH), **more)  # type: ignore[arg-type] # as given


def taught(good: int = 6, bad: int = 0) -> Pools:
    """Pools in which so many workflows drafted well (a quarter of a pass per token) or badly (a whole one)."""
    pools = Pools()
    for number in range(good + bad):
        name = f"old {number}"
        pools.choose(ask(name))
        badly = number * bad // (good + bad) < (number + 1) * bad // (good + bad)  # evenly among the others
        pools.learn("m", name, "k4", measured("k4", 1.0 if badly else 0.25))
        pools.end("m", name)
    for number in range(TRIES):
        name = f"plain {number}"
        pools.choose(ask(name))
        pools.learn("m", name, "", measured("", 1.0))
    return pools


def step(pools: Pools, workflow: str, passes: float, context: int, **more: object) -> Route:
    """Choose for a workflow whose context is `context`, and run the step there."""
    route = pools.choose(ask(workflow, context + 200, context, **more))
    pool = route.choice.profile
    pools.learn("m", workflow, pool, measured(pool, passes if pool else 1.0, context + 200 + OUTPUT))
    return route


def test_with_one_pool_there_is_nothing_to_compare() -> None:
    route = Pools().choose(ask("w", pools={"k4": True}))
    assert (route.choice.profile, route.choice.reason) == ("k4", PoolReason.ONLY_POOL)
    assert (route.choice.saving_seconds, route.choice.prefill_seconds) == (None, None)


def test_a_workflow_does_not_wait_for_a_replica_that_holds_nothing_of_it() -> None:
    pools = taught()
    step(pools, "w", 0.25, 0)
    assert step(pools, "w", 0.25, 500).replica == "k4 0"
    compacted = pools.choose(ask("w"))
    assert (compacted.choice.reason, compacted.replica) == (PoolReason.COMPACTED, None)


def test_pools_that_nobody_knows_are_tried_in_turn() -> None:
    pools = Pools()
    chosen = [pools.choose(ask(f"w {number}")).choice.profile for number in range(2 * TRIES)]
    assert sorted(chosen) == [""] * TRIES + ["k4"] * TRIES


@pytest.mark.parametrize(("good", "bad", "best"), [(6, 0, "k4"), (0, 6, "")])
def test_a_new_workflow_goes_where_it_is_expected_to_be_fastest(good: int, bad: int, best: str) -> None:
    choice = taught(good, bad).choose(ask("new")).choice
    assert (choice.profile, choice.reason) == (best, PoolReason.FIRST_STEP)
    assert choice.saving_seconds is not None
    assert choice.saving_seconds < 0
    assert choice.prefill_seconds == pytest.approx(0)


def test_a_try_is_worth_it_where_who_drafts_badly_can_still_move_on() -> None:
    """On average the drafting pool is slower (0.625 passes of twice the time), but half the workflows gain."""
    assert taught(3, 3).choose(ask("new")).choice.profile == "k4"


def test_who_drafts_badly_switches_once_it_is_seen_and_then_stays() -> None:
    pools = taught(6, 6)
    routes = [step(pools, "w", 1.0, 501 * turn) for turn in range(4)]
    assert [route.choice.reason.value for route in routes] == ["first_step", "switched", "stayed", "stayed"]
    moved = routes[1].choice
    assert moved.profile == ""
    assert moved.saving_seconds is not None
    assert moved.prefill_seconds is not None
    assert moved.saving_seconds > moved.prefill_seconds == pytest.approx(PREFILL * 501, rel=0.01)


def test_who_drafts_well_stays() -> None:
    pools = taught(6, 6)
    routes = [step(pools, "w", 0.25, 1000 * turn) for turn in range(4)]
    assert {route.choice.profile for route in routes} == {"k4"}
    assert routes[3].replica == "k4 0"


def test_a_context_that_is_too_long_keeps_a_workflow_where_it_is() -> None:
    pools = taught(18, 6)
    for name, size in (("short", 1000), ("long", 2_000_000)):
        assert step(pools, name, 1.0, size).choice.profile == "k4"
    short = pools.choose(ask("short", 2000, 1501)).choice
    long = pools.choose(ask("long", 2_001_000, 2_000_501)).choice
    assert (short.reason, long.reason) == (PoolReason.SWITCHED, PoolReason.STAYED)
    assert long.profile == "k4"
    assert long.saving_seconds is not None
    assert long.prefill_seconds is not None
    assert 0 < long.saving_seconds < long.prefill_seconds


def test_a_workflow_near_its_end_does_not_switch_any_more() -> None:
    pools = taught(18, 6)
    for number in range(100):
        pools.learn("m", f"short {number}", "", measured("", 1.0))
        pools.learn("m", f"short {number}", "", measured("", 1.0))
        pools.end("m", f"short {number}")
    assert step(pools, "w", 1.0, 58_000).choice.profile == "k4"
    last = pools.choose(ask("w", 59_000, 58_501)).choice  # workflows have two steps: 9 s less, 12 s more
    assert (last.profile, last.reason) == ("k4", PoolReason.STAYED)


def test_what_an_earlier_visit_left_makes_the_way_back_cheap() -> None:
    pools = taught(6, 6)
    step(pools, "w", 1.0, 0)
    step(pools, "w", 1.0, 20_000)
    route = pools.choose(ask("w", 21_000, 20_501))
    first_visit = 200 + OUTPUT
    assert route.choice.prefill_seconds == pytest.approx(PREFILL * (20_501 - first_visit), rel=0.01)


def test_nothing_is_left_of_a_visit_that_the_context_no_longer_begins_with() -> None:
    pools = taught(6, 6)
    step(pools, "w", 1.0, 0)
    route = pools.choose(ask("w", 5000, 0))
    assert route.choice.reason is PoolReason.COMPACTED
    assert route.choice.profile == ""
    assert route.choice.prefill_seconds == pytest.approx(0)


def test_a_fork_inherits_what_is_known_of_its_origin() -> None:
    pools = taught(18, 6)
    step(pools, "w", 1.0, 0)
    step(pools, "w", 1.0, 1000)
    route = pools.choose(ask("fork", 2000, 1501, forked_from="w"))
    assert (route.choice.profile, route.choice.reason, route.replica) == ("", PoolReason.FORK, "plain 0")
    assert pools.choose(ask("other", 2000)).choice.profile == "k4"


def test_a_failed_first_step_is_still_the_first() -> None:
    pools = taught()
    assert [pools.choose(ask("w")).choice.reason.value for _ in range(2)] == ["first_step"] * 2


def test_after_a_restart_the_ledger_says_where_the_prefix_is() -> None:
    pools = taught(0, 6)
    route = pools.choose(ask("w", 500_200, 500_000, bound="k4 1", bound_profile="k4"))
    assert (route.choice.profile, route.choice.reason, route.replica) == ("k4", PoolReason.STAYED, "k4 1")


def test_a_pool_without_a_place_is_left_out_and_that_is_said() -> None:
    pools = taught()
    route = pools.choose(ask("w", pools={"": True, "k4": False}))
    assert (route.choice.profile, route.choice.reason) == ("", PoolReason.NO_PLACE)
    nowhere = pools.choose(ask("v", pools={"": False, "k4": False}))
    assert (nowhere.choice.profile, nowhere.choice.reason) == ("k4", PoolReason.FIRST_STEP)


def test_a_workflow_whose_pool_may_not_run_the_step_moves() -> None:
    pools = taught()
    assert step(pools, "w", 0.25, 0).choice.profile == "k4"
    route = pools.choose(ask("w", 700, 501, pools={"": True, "x": True}))
    assert route.choice.reason is PoolReason.NO_PLACE


def test_trying_a_slow_pool_again_takes_a_small_share_of_the_time() -> None:
    pools = taught(0, 6)
    reasons = []
    for number in range(400):
        reasons.append(pools.choose(ask(f"w {number}")).choice)
        pools.learn("m", f"w {number}", reasons[-1].profile, measured(reasons[-1].profile, 1.0))
        pools.end("m", f"w {number}")
    tries = [choice for choice in reasons if choice.reason is PoolReason.UNTRIED]
    assert {choice.profile for choice in tries} == {"k4"}
    assert 1 <= len(tries) <= 400 * routing.TRY_SHARE + 1  # a try costs about as much as a step


def test_a_pool_that_has_become_fast_is_found_again() -> None:
    pools = taught(0, 6)
    chosen = []
    for number in range(1500):
        profile = pools.choose(ask(f"w {number}")).choice.profile
        chosen.append(profile)
        pools.learn("m", f"w {number}", profile, measured(profile, 0.25 if profile else 1.0))
        pools.end("m", f"w {number}")
    assert chosen[:20].count("k4") <= 1
    assert chosen[-20:].count("k4") >= 18


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "KNOWN_WORKFLOWS", 10)
    pools = taught()
    for number in range(100):
        step(pools, f"w {number}", 0.25, 0)
    books = pools._models["m"]
    assert len(books.workflows) == 10
    assert list(books.workflows)[-1] == "w 99"
    assert len(books.lengths) == 6 + TRIES + 90


def test_passes_are_told_by_counts_or_else_by_time() -> None:
    told, timed = PoolSpeed("k4"), PoolSpeed("k4")
    for passes in (0.5, 0.25, 1.0):
        told.learn("w", drafting := Drafting(), 1, measured("k4", passes))
        assert drafting.at(1) == pytest.approx(passes)
    slow = replace(measured("k4", 1.0), accepted_tokens=None)
    fast = replace(measured("k4", 0.5), accepted_tokens=None)
    for number in range(4):
        timed.learn(f"even {number}", Drafting(), 1, replace(slow))
    timed.learn("fast", relative := Drafting(), 1, fast)
    assert relative.at(1) == pytest.approx(0.5)
    assert told.pass_seconds == pytest.approx(0.06)


def test_prefill_is_told_apart_from_what_every_prompt_costs() -> None:
    speed = PoolSpeed("")
    for tokens in (100, 8000, 200, 16_000):
        seen = replace(measured("", 1.0), uncached_tokens=tokens, first_token_seconds=0.5 + PREFILL * tokens)
        speed.learn("w", Drafting(), 1, seen)
    assert speed.prefill_seconds == pytest.approx(PREFILL, rel=1e-6)


def test_where_cached_tokens_are_not_reported_the_belief_stands_in() -> None:
    pools = Pools()
    for turn in range(3):
        pools.choose(ask("w", 1000 * turn + 1000, 1000 * turn))
        seen = measured("", 1.0, 1000 * (turn + 1) + OUTPUT, None)
        pools.learn("m", "w", "", replace(seen, first_token_seconds=0.2))
    assert pools._models["m"].prefill_seconds("") == pytest.approx(0.0002, rel=0.3)


def test_ages_are_half_octaves() -> None:
    assert [age_of(number) for number in (1, 2, 3, 4, 5, 6, 7, 9, 10)] == [1, 3, 4, 5, 6, 6, 7, 7, 8]


def test_the_next_step_is_thought_to_be_like_those_of_workflows_that_drafted_alike() -> None:
    """Those that begin badly draft well from their third step on; those that begin well do not change."""
    speed = PoolSpeed("k4")
    for number in range(20):
        begins = 1.0 if number % 2 else 0.3
        drafting = Drafting()
        for age, passes in ((1, begins), (3, begins), (4, 0.3)):
            speed.learn(f"w {number}", drafting, age, measured("k4", passes))
    own = Drafting()
    speed.learn("new", own, 1, measured("k4", 1.0))
    assert speed.futures("new", own, 3).mean(float) == pytest.approx(1.0, abs=0.05)
    assert speed.futures("new", own, 4).mean(float) == pytest.approx(0.36, abs=0.05)
    assert speed.futures("unseen", None, 1).mean(float) == pytest.approx(0.67, abs=0.05)
