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
from paceline.workflow.model import Cost, Outcome, OutcomeKind, OutcomeSource, Usage

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
    await ledger.requeue_step("st-first", "rt-test")
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
