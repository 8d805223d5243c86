"""Chains of steps: a step and its ancestors, across forks."""

from __future__ import annotations

from tests.ledger.rows import TENANT, run_step, step, workflow

from paceline.ledger.store import SqlLedger


async def test_a_chain_goes_back_across_forks(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await ledger.create_workflow(workflow("wf-fork0", parent="wf-00001"), "hash")
    parent = None
    for number in range(6):
        new = step(f"st-{number:05}", workflow_id="wf-00001" if number < 3 else "wf-fork0", parent=parent)
        await run_step(ledger, new)
        parent = new.step_id
    chain = await ledger.load_chain(TENANT, "st-00005")
    assert [item.step_id for item in chain] == [f"st-{number:05}" for number in range(6)]
    assert chain[0].tools is chain[5].tools  # parsed once
    assert [item.step_id for item in await ledger.load_chain(TENANT, "st-00002")] == [
        "st-00000",
        "st-00001",
        "st-00002",
    ]


async def test_ancestors_are_told_from_other_steps(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await ledger.create_workflow(workflow("wf-fork0", parent="wf-00001"), "hash")
    for name, parent in (("root", None), ("left", "st-root"), ("right", "st-root"), ("leaf", "st-left")):
        of = "wf-00001" if name == "root" else "wf-fork0"
        await run_step(ledger, step(f"st-{name}", workflow_id=of, parent=parent))
    found = {
        (one, other)
        for one in ("root", "left", "right", "leaf", "none")
        for other in ("left", "leaf", "none")
        if await ledger.is_ancestor(TENANT, f"st-{one}", of=f"st-{other}")
    }
    assert found == {("root", "left"), ("left", "left"), ("root", "leaf"), ("left", "leaf"), ("leaf", "leaf")}
    assert not await ledger.is_ancestor("other", "st-root", of="st-leaf")
