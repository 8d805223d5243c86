"""Cost queries: every sum against a small history worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.ledger.rows import NOW, TENANT, attempt, failed, finished, run_step, step, workflow

from paceline.errors import InvalidArgument, WorkflowNotFound
from paceline.ledger.reports import CostQueries
from paceline.ledger.store import SqlLedger
from paceline.workflow.costs import CostFilter, CostSummary
from paceline.workflow.model import (
    Cost,
    Outcome,
    OutcomeKind,
    OutcomeSource,
    Speculation,
    StepClass,
    Timings,
    Usage,
)

DAY = timedelta(days=1)
EVERYTHING = CostFilter()


@pytest.fixture
async def costs(ledger: SqlLedger) -> CostQueries:
    """Four workflows: one that succeeded at the second attempt, a failed child of it, an unknown one of the next
    day and another model, and an open one without steps. Another tenant has one of its own."""
    first, child = workflow("wf-first", labels={"team": "a"}), workflow("wf-child", parent="wf-first")
    later = workflow("wf-later", model="model-b", labels={"team": "b"}, created_at=NOW + DAY)
    foreign = workflow("wf-first", tenant="other")
    for new in (first, child, later, workflow("wf-open0"), foreign):
        await ledger.create_workflow(new, "hash")

    retried = step("st-first", workflow_id="wf-first")
    cut = failed(attempt(retried), usage=Usage(1000, None, output=5), cost=Cost(300, 30, "model-a"))
    await run_step(ledger, retried, cut)
    await ledger.requeue_step(retried)
    await ledger.open_attempt(attempt(retried, 2))
    await ledger.close_attempt(finished(attempt(retried, 2), cost=Cost(1_000, 100, "model-a")))

    await run_step(ledger, step("st-child", workflow_id="wf-child"))  # 1,000 + 200 at an example price
    unpriced = finished(attempt(step("st-later", workflow_id="wf-later")), cost=Cost())
    await run_step(ledger, step("st-later", workflow_id="wf-later"), unpriced)
    running = step("st-open0", workflow_id="wf-later")
    await ledger.open_step(running, attempt(running, cost=Cost(77_777)))
    await run_step(ledger, step("st-other", workflow_id="wf-first", tenant="other"))

    for workflow_id, kind in (
        ("wf-first", OutcomeKind.SUCCEEDED),
        ("wf-child", OutcomeKind.FAILED),
        ("wf-later", OutcomeKind.UNKNOWN),
    ):
        await ledger.finish_workflow(TENANT, workflow_id, Outcome(kind, OutcomeSource.CLIENT))
    return CostQueries(ledger)


FIRST = CostSummary(
    workflows=1,
    succeeded_workflows=1,
    known_outcome_workflows=1,
    steps=1,
    attempts=2,
    uncached_prompt=100,
    cached_prompt=900,
    output=50,
    drafted=40,
    accepted=30,
    draft_reports=1,
    draft_steps=20,
    mean_acceptance_length=2.5,
    acceptance_rate=0.75,
    output_per_decode_second=49 / 1.5,
    unreported_attempts=1,
    list_nanos=1_300,
    retry_nanos=300,
    infrastructure_nanos=130,
    cost_per_success_nanos=1_300,
)


async def test_one_workflow(costs: CostQueries) -> None:
    assert await costs.workflow_cost(TENANT, "wf-first", include_children=False) == FIRST


async def test_a_workflow_with_those_that_work_for_it(costs: CostQueries) -> None:
    expected = replace(
        FIRST,
        workflows=2,
        known_outcome_workflows=2,
        steps=2,
        attempts=3,
        uncached_prompt=200,
        cached_prompt=1_800,
        output=100,
        drafted=80,
        accepted=60,
        draft_reports=2,
        draft_steps=40,
        list_nanos=2_300,
        infrastructure_nanos=330,
        cost_per_success_nanos=2_300,
        example_price=True,
    )
    assert await costs.workflow_cost(TENANT, "wf-first", include_children=True) == expected


async def test_another_tenants_workflow_is_not_found(costs: CostQueries) -> None:
    for tenant, workflow_id in (("other", "wf-child"), (TENANT, "wf-nobody")):
        with pytest.raises(WorkflowNotFound):
            await costs.workflow_cost(tenant, workflow_id, include_children=True)


async def test_one_sum_of_all(costs: CostQueries) -> None:
    (total,) = (await costs.query(TENANT, (), EVERYTHING, 0, "")).items
    assert (total.workflows, total.known_outcome_workflows, total.succeeded_workflows) == (4, 2, 1)
    assert (total.steps, total.attempts, total.unreported_attempts, total.unpriced_attempts) == (3, 5, 1, 1)
    assert (total.list_nanos, total.retry_nanos, total.infrastructure_nanos) == (2_300, 300, 330)
    assert total.cost_per_success_nanos == 2_300
    assert total.group == ()


async def test_without_any_workflow_the_sum_is_zero(ledger: SqlLedger) -> None:
    assert (await CostQueries(ledger).query(TENANT, (), EVERYTHING, 0, "")).items == [CostSummary()]
    assert (await CostQueries(ledger).query(TENANT, ("model",), EVERYTHING, 0, "")).items == []


@pytest.mark.parametrize(
    ("keys", "groups"),
    [
        (("model",), [("model-a",), ("model-b",)]),
        (("outcome",), [("",), ("failed",), ("succeeded",), ("unknown",)]),
        (("workflow",), [("wf-child",), ("wf-first",), ("wf-later",), ("wf-open0",)]),
        (("day",), [("2025-11-30",), ("2025-12-01",)]),
        (("label:team",), [("",), ("a",), ("b",)]),
        (("day", "label:team"), [("2025-11-30", ""), ("2025-11-30", "a"), ("2025-12-01", "b")]),
    ],
)
async def test_groups_partition_the_sum(
    costs: CostQueries, keys: tuple[str, ...], groups: list[tuple[str, ...]]
) -> None:
    found = (await costs.query(TENANT, keys, EVERYTHING, 0, "")).items
    assert [item.group for item in found] == groups
    (total,) = (await costs.query(TENANT, (), EVERYTHING, 0, "")).items
    for name in ("workflows", "steps", "attempts", "output", "list_nanos", "retry_nanos", "infrastructure_nanos"):
        assert sum(getattr(item, name) or 0 for item in found) == getattr(total, name)


async def test_no_ratio_without_a_success(costs: CostQueries) -> None:
    found = (await costs.query(TENANT, ("outcome",), EVERYTHING, 0, "")).items
    ratios = {item.group[0]: item.cost_per_success_nanos for item in found}
    assert ratios == {"": None, "failed": None, "succeeded": 1_300, "unknown": None}


@pytest.mark.parametrize(
    ("where", "workflows"),
    [
        (CostFilter(created_from=NOW + DAY), ["wf-later"]),
        (CostFilter(created_to=NOW + DAY), ["wf-child", "wf-first", "wf-open0"]),
        (CostFilter(models=("model-b", "model-c")), ["wf-later"]),
        (CostFilter(labels={"team": "a"}), ["wf-first"]),
        (CostFilter(labels={"team": "a"}, models=("model-b",)), []),
    ],
)
async def test_filters(costs: CostQueries, where: CostFilter, workflows: list[str]) -> None:
    found = (await costs.query(TENANT, ("workflow",), where, 0, "")).items
    assert [item.group[0] for item in found] == workflows


@pytest.mark.parametrize("keys", [("workflow",), ("day", "workflow"), ("outcome", "label:team")])
async def test_pages_are_the_whole(costs: CostQueries, keys: tuple[str, ...]) -> None:
    whole = (await costs.query(TENANT, keys, EVERYTHING, 0, "")).items
    found, token = [], ""
    for _ in whole:
        page = await costs.query(TENANT, keys, EVERYTHING, 1, token)
        found += page.items
        token = page.next_token
    assert found == whole
    assert token == ""


async def test_across_tenants(costs: CostQueries) -> None:
    found = (await costs.query(None, ("tenant",), EVERYTHING, 0, "")).items
    assert [(item.group, item.workflows, item.list_nanos) for item in found] == [
        (("other",), 1, 1_000),
        ((TENANT,), 4, 2_300),
    ]


@pytest.mark.parametrize(
    ("keys", "token", "field"),
    [
        (("colour",), "", "group_by"),
        (("label:",), "", "group_by"),
        (("tenant",), "", "group_by"),
        (("model", "model"), "", "group_by"),
        (("pool", "pool"), "", "group_by"),
        (("context",), "WyJhIl0", "page_token"),
        (("model", "outcome", "workflow", "day", "label:x"), "", "group_by"),
        (("model",), "junk", "page_token"),
        (("model",), "WzFd", "page_token"),
    ],
)
async def test_bad_queries_name_the_field(
    costs: CostQueries, keys: tuple[str, ...], token: str, field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await costs.query(TENANT, keys, EVERYTHING, 0, token)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "where",
    [CostFilter(labels={f"l{number}": "x" for number in range(2000)}), CostFilter(models=("m",) * 40_000)],
    ids=["labels", "models"],
)
async def test_a_filter_that_no_database_takes_is_refused(costs: CostQueries, where: CostFilter) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await costs.query(TENANT, (), where, 0, "")
    assert refused.value.field in {"filter.labels", "filter.models"}


async def _answer(
    ledger: SqlLedger,
    number: int,
    speculation: Speculation,
    *,
    kind: StepClass | None,
    prompt: int = 1000,
    model: str = "model-a",
    decode: float | None = 1.5,
) -> None:
    """A workflow of its own with one finished step."""
    workflow_id, new = f"wf-{number:05}", step(f"st-{number:05}", workflow_id=f"wf-{number:05}")
    await ledger.create_workflow(workflow(workflow_id, model=model), "hash")
    first = replace(attempt(new), prompt_tokens=prompt, speculation_profile=speculation.profile)
    end = replace(
        finished(first), speculation=speculation, step_class=kind, timings=Timings(0.5, 0.25, decode, 2.25)
    )
    await ledger.open_step(new, first)
    await ledger.close_attempt(end)


@pytest.fixture
async def speculating(ledger: SqlLedger) -> CostQueries:
    """Answers with and without counts: of each class, on each pool of a model, with short and long prompts; and a
    failed step, which has no class."""
    await _answer(ledger, 1, Speculation("k4", 40, 30, 4.0, 10), kind="code edit", prompt=1024)
    await _answer(ledger, 2, Speculation("k4", 40, 6, 1.3, 20), kind="code edit", prompt=1025, decode=4.5)
    await _answer(ledger, 3, Speculation("k4", 100, 99), kind="code edit", prompt=70_000, decode=0.0)  # no checks
    await _answer(ledger, 4, Speculation("k4"), kind="tool call", prompt=65_536)
    await _answer(ledger, 5, Speculation("k4", 0, 0, None, 0), kind="tool call", prompt=16_384)
    await _answer(ledger, 6, Speculation(), kind="free text", prompt=4096)
    await _answer(ledger, 7, Speculation("k4", 10, 5, 2.0, 5), kind="free text", prompt=1, model="model-b")
    await _answer(ledger, 8, Speculation("k4", 8, 2, 1.5), kind=None, prompt=1)  # of an older version
    await ledger.create_workflow(workflow("wf-00009"), "hash")
    lost = step("st-00009", workflow_id="wf-00009")
    await run_step(ledger, lost, failed(attempt(lost)))
    await ledger.open_step(step("st-00010", workflow_id="wf-00009"), None)  # waits: it has no attempt
    return CostQueries(ledger)


Row = tuple[int, int, int, int, float | None, float | None]


def _row(item: CostSummary) -> Row:
    counts = (item.steps, item.drafted, item.accepted, item.draft_steps)
    return (*counts, item.mean_acceptance_length, item.acceptance_rate)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (
            "class",
            {
                "": (2, 8, 2, 0, None, 0.25),
                "code edit": (3, 180, 135, 30, 1 + 36 / 30, 0.75),
                "free text": (2, 10, 5, 5, 2.0, 0.5),
                "tool call": (2, 0, 0, 0, None, None),
            },
        ),
        (
            "pool",
            {
                "model-a": (1, 0, 0, 0, None, None),
                "model-a+k4": (6, 188, 137, 30, 1 + 36 / 30, 137 / 188),
                "model-a+ngram": (1, 0, 0, 0, None, None),
                "model-b+k4": (1, 10, 5, 5, 2.0, 0.5),
            },
        ),
        (
            "context",
            {
                "<=1024": (4, 58, 37, 15, 1 + 35 / 15, 37 / 58),
                "<=4096": (2, 40, 6, 20, 1.3, 0.15),
                "<=16384": (1, 0, 0, 0, None, None),
                "<=65536": (1, 0, 0, 0, None, None),
                ">65536": (1, 100, 99, 0, None, 0.99),
            },
        ),
    ],
)
async def test_groups_of_attempts(speculating: CostQueries, key: str, expected: dict[str, Row]) -> None:
    found = (await speculating.query(TENANT, (key,), EVERYTHING, 0, "")).items
    assert [item.group for item in found] == [(name,) for name in expected]
    assert {item.group[0]: _row(item) for item in found} == expected
    (total,) = (await speculating.query(TENANT, (), EVERYTHING, 0, "")).items
    for name in ("steps", "attempts", "output", "drafted", "draft_reports", "draft_steps", "list_nanos"):
        assert sum(getattr(item, name) for item in found) == getattr(total, name), name
    assert (total.workflows, total.draft_reports) == (9, 6)
    for item in found:
        by_workflow = (item.workflows, item.succeeded_workflows, item.known_outcome_workflows)
        assert (*by_workflow, item.cost_per_success_nanos) == (None,) * 4


async def test_speed_is_that_of_the_answers_that_took_time(speculating: CostQueries) -> None:
    found = (await speculating.query(TENANT, ("context",), EVERYTHING, 0, "")).items
    speeds = {item.group[0]: item.output_per_decode_second for item in found}
    assert speeds["<=1024"] == pytest.approx(3 * 49 / 4.5)  # the failed one does not count
    assert speeds["<=4096"] == pytest.approx(2 * 49 / 6)
    assert speeds[">65536"] is None


async def test_groups_of_attempts_within_groups_of_workflows(speculating: CostQueries) -> None:
    keys = ("model", "class", "day", "context")
    whole = (await speculating.query(TENANT, keys, EVERYTHING, 0, "")).items
    assert [item.group[:2] for item in whole[-1:]] == [("model-b", "free text")]
    found, token = [], ""
    for _ in whole:
        page = await speculating.query(TENANT, keys, EVERYTHING, 1, token)
        found += page.items
        token = page.next_token
    assert (found, token) == (whole, "")
    assert len(whole) == 8


async def test_a_retried_step_counts_where_its_last_attempt_is(costs: CostQueries) -> None:
    found = (await costs.query(TENANT, ("class",), CostFilter(labels={"team": "a"}), 0, "")).items
    assert [(item.group, item.steps, item.attempts) for item in found] == [(("",), 0, 1), (("tool call",), 1, 1)]
    assert [(item.list_nanos, item.retry_nanos) for item in found] == [(300, 300), (1_000, 0)]
