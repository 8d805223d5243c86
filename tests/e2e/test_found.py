"""Clients that name no workflow: their conversations are found by what was said, over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from tests.e2e import calls
from tests.e2e.conversing import caller, system, user, workflows
from tests.e2e.servers import to_toml
from tests.e2e.test_explain import SETTINGS, app
from tests.e2e.test_idempotency import SLOW, ended, events_until
from typer.testing import CliRunner

from paceline.errors import InvalidArgument, StepCancelled
from paceline.ledger.keys import KeyStore
from paceline.ledger.store import SqlLedger
from paceline.v1.message_pb2 import Message, Role, Tool, ToolCall
from paceline.v1.step_service_pb2 import ToolSet
from paceline_agents import types as t

FAST = ("--time-scale=0", "--reply-tokens=8")
NEW, EXACT, AMBIGUOUS = "new", "exact", "ambiguous"


def explain(ledger: Path, workflow_id: str) -> str:
    """What `paceline workflow explain` says."""
    config = ledger.with_name("paceline.toml")
    config.write_text(to_toml({**SETTINGS, "ledger": {"url": f"sqlite:///{ledger}"}}))
    result = CliRunner().invoke(app, ["workflow", "explain", workflow_id, "--config", str(config)])
    assert result.exit_code == 0, result.output
    return str(result.stdout)


async def test_a_conversation_is_found_turn_by_turn_also_after_a_restart(
    emulator: Callable[..., Any], run: Callable[..., Any], ledger: Path
) -> None:
    engine = emulator(*FAST)
    async with run(engine.url) as paceline, caller(paceline) as client:
        first = await client.ask(system("Be brief."), user("one"), labels={"team": "a"})
        second = await client.ask(*first.then("two"), labels={"team": "ignored"})
    async with run(engine.url) as paceline, caller(paceline) as client:
        third = await client.ask(*second.then("three"))
        step = await paceline.client.get_step(step_id=third.started.step_id)
        rows = paceline.sql("select workflow_id, workflow_match from steps order by created_at")
        made = workflows(paceline)
    assert [turn.match for turn in (first, second, third)] == [NEW, EXACT, EXACT]
    assert [(row["workflow_id"], row["workflow_match"]) for row in rows] == [
        (first.workflow, "new"),
        (first.workflow, "exact"),
        (first.workflow, "exact"),
    ]
    for before, after in ((first, second), (second, third)):
        assert after.finished.reuse.carried_token_count == before.context
        assert after.finished.reuse.break_reason == 0
    assert step.match == EXACT
    assert [(row["system"], row["labels"], row["model"]) for row in made] == [("Be brief.", '{"team":"a"}', "m")]
    shown = await asyncio.to_thread(explain, ledger, first.workflow)
    assert "Found by the conversation, as the client named no workflow: 1 new, 2 exact.\n" in shown


async def test_a_careless_client_is_found(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    engine = emulator("--time-scale=0")
    call = '<tool_call>\n{"name": "read", "arguments": {"path": "a", "n": 1}}\n</tool_call>'
    answer = "\n".join(["<think>\nLook.\n</think>\n", call, call.replace('"a"', '"b"')])
    await engine.script({"contains": "Read both.", "reply": answer}, {"reply": "Done."})
    tools = ToolSet(tools=[Tool(tool_name="read")])
    async with run(engine.url) as paceline, caller(paceline) as client:
        first = await client.ask(user("Read both."), tools=tools)
        assert len(first.finished.message.tool_calls) == 2
        said = Message(role=Role.ROLE_ASSISTANT)
        said.tool_calls.extend(
            ToolCall(tool_call_id=f"x{path}", tool_name="read", arguments_json=f'{{ "n":1, "path":"{path}" }}')
            for path in "ab"
        )
        results = [Message(role=Role.ROLE_TOOL, content=path, tool_call_id=f"x{path}") for path in "ba"]
        second = await client.ask(user("Read both."), said, *results, tools=tools)
    assert (second.match, second.workflow) == (EXACT, first.workflow)
    assert second.finished.reuse.carried_token_count == first.context


async def test_another_continuation_of_a_step_is_a_fork(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*FAST)
    async with run(engine.url) as paceline, caller(paceline) as client:
        first = await client.ask(user("one"))
        second = await client.ask(*first.then("two"))
        other = await client.ask(*first.then("two, otherwise"))
        branches = [await client.ask(*turn.then("three")) for turn in (other, second)]
        same = await client.ask(*first.then("two"))  # answered already: another answer is wanted
        made = {row["workflow_id"]: row for row in workflows(paceline)}
    assert [turn.match for turn in (first, second, other, same)] == [NEW, EXACT, AMBIGUOUS, AMBIGUOUS]
    assert len({first.workflow, other.workflow, same.workflow}) == 3
    for fork in (other, same):
        assert made[fork.workflow]["parent_workflow_id"] == first.workflow
        assert made[fork.workflow]["forked_step_id"] == first.started.step_id
        assert fork.finished.reuse.carried_token_count == first.context
        assert fork.finished.reuse.break_reason == 0
    assert [turn.match for turn in branches] == [EXACT] * 2
    assert [turn.workflow for turn in branches] == [other.workflow, second.workflow]


async def test_a_conversation_that_leaves_the_stored_one_continues_the_deepest_step_it_has(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*FAST)
    async with run(engine.url) as paceline, caller(paceline) as client:
        first = await client.ask(user("one"))
        edited = (*first.then("two"), Message(role=Role.ROLE_ASSISTANT, content="never said"), user("three"))
        behind = await client.ask(*edited)
    assert (behind.match, behind.workflow) == (EXACT, first.workflow)
    assert behind.finished.reuse.carried_token_count == first.context


async def test_the_same_request_after_a_failure_is_its_retry(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*FAST)
    async with run(engine.url) as paceline, caller(paceline) as client:
        await engine.fault(kind="error", after_tokens=4)
        lost = await client.ask(user("one"))
        first = await client.ask(user("one"))
        await engine.fault(kind="error", after_tokens=4)
        await client.ask(*first.then("two"))
        second = await client.ask(*first.then("two"))
        await engine.fault(kind="error", after_tokens=4)
        named = await client.ask(*second.then("three"), request_id="request-one")
        renamed = await client.ask(*second.then("three"), request_id="request-two")
        rows = paceline.sql("select * from steps order by created_at")
        made = workflows(paceline)
    assert lost.response.code is grpc.StatusCode.UNAVAILABLE
    assert [(row["state"], row["attempt_count"], row["workflow_match"]) for row in rows] == [
        ("finished", 2, "new"),
        ("finished", 2, "exact"),
        ("failed", 1, "exact"),
        ("finished", 1, "exact"),
    ]
    assert [turn.match for turn in (lost, first, second, named, renamed)] == [NEW, NEW, EXACT, EXACT, EXACT]
    assert first.started.step_id == lost.started.step_id
    assert [row["workflow_id"] for row in made] == [first.workflow]


async def test_the_same_request_after_its_caller_went_away_is_its_retry(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*SLOW)
    async with run(engine.url) as paceline, caller(paceline) as client:
        call, seen = await client.begun(user("one"), tokens=30)
        call.cancel()
        gone = await ended(paceline, seen[0].started.request_id)
        again = await client.ask(user("one"), tokens=30)
        call, seen = await client.begun(*again.then("two"), tokens=30)
        cancelled = await paceline.client.cancel_step(step_id=seen[0].started.step_id)
        reason = (await calls.read(call)).reason
        after = await client.ask(*again.then("two"), tokens=30)
    assert (gone.error_reason, again.started.step_id) == ("CLIENT_GONE", gone.step_id)
    assert (again.match, again.started.attached) == (NEW, False)
    assert (cancelled.error_reason, reason) == (StepCancelled.reason, StepCancelled.reason)
    assert after.started.step_id != cancelled.step_id  # a step that was cancelled stays so
    assert (after.workflow, after.match) == (again.workflow, EXACT)


async def test_the_same_request_attaches_to_a_step_that_nobody_reads(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*SLOW)
    grace = {"tokens": 400, "detach_grace": {"seconds": 60}}
    async with run(engine.url) as paceline, caller(paceline) as client:
        first, seen = await client.begun(user("one"), **grace)
        second, beside = await client.begun(user("one"), **grace)  # the first has a reader: this is another one
        known = [seen[0].started, beside[0].started]
        assert len({one.step_id for one in known}) == 2
        for call in (first, second):
            call.cancel()
        while not known[-1].attached:  # until the server has noticed that a reader is gone
            call, seen = await client.begun(user("one"), **grace)
            known.append(seen[0].started)
            call.cancel()
        stored = await paceline.client.cancel_step(step_id=known[-1].step_id)
    assert known[-1].step_id in {one.step_id for one in known[:-1]}
    assert stored.attempt_count == 1


async def test_concurrent_requests_never_continue_one_step_together(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*FAST)
    async with run(engine.url) as paceline, caller(paceline) as client:
        firsts = await asyncio.gather(*(client.ask(user("one")) for _ in range(4)))
        first = await client.ask(user("another one"))
        texts = ["two", "two", *(f"two, {number}" for number in range(6))]
        seconds = await asyncio.gather(*(client.ask(*first.then(text)) for text in texts))
        rows = paceline.sql("select workflow_id, parent_step_id from steps where parent_step_id is not null")
    assert [turn.match for turn in firsts] == [NEW] * 4
    assert len({turn.workflow for turn in firsts}) == 4
    assert sorted(turn.match for turn in seconds) == [AMBIGUOUS] * 7 + [EXACT]
    assert len({turn.workflow for turn in seconds}) == 8
    assert {row["parent_step_id"] for row in rows} == {first.started.step_id}
    assert {turn.finished.reuse.carried_token_count for turn in seconds} == {first.context}


async def test_a_conversation_is_only_found_by_its_own_caller_model_and_system_prompt(
    emulator: Callable[..., Any], run: Callable[..., Any], ledger: Path
) -> None:
    engine = emulator(*FAST)
    models = {"m": {"path": "emulated"}, "n": {"path": "emulated"}}
    engines = {"far": {"model": "n", "url": engine.url}}
    async with run(engine.url, models=models, engines=engines, allow_unpriced=True) as paceline:
        keys = [await make_key(ledger, tenant) for tenant in ("tenant-a", "tenant-a", "tenant-b")]
        async with caller(paceline, key=keys[0]) as client:
            first = await client.ask(system("Be brief."), user("one"), model="m")
            then = first.then("two")
            others = [
                await client.ask(*then, model="n"),
                await client.ask(system("Be long."), *then[1:], model="m"),
                await client.ask(*then[1:], model="m"),
            ]
        for agent, key in (("agent", keys[1]), ("agent", keys[2]), ("agent", ""), ("other", keys[0])):
            async with caller(paceline, agent, key) as client:
                others.append(await client.ask(*then, model="m"))
        async with caller(paceline, key=keys[0]) as client:
            own = await client.ask(*then, model="m")
    assert [turn.match for turn in others] == [NEW] * 7
    assert len({turn.workflow for turn in (first, *others)}) == 8
    assert (own.match, own.workflow) == (EXACT, first.workflow)


async def make_key(ledger: Path, tenant: str) -> str:
    """A key, made as an operator makes it."""
    database = await SqlLedger.open(f"sqlite:///{ledger}", write_timeout=5)
    try:
        return (await KeyStore(database).create(tenant, "test"))[0]
    finally:
        await database.close()


async def test_other_tools_break_inside_the_workflow_and_volatile_blocks_do_not(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*FAST)
    read, find = Tool(tool_name="read"), Tool(tool_name="find")
    async with run(engine.url, volatile={"clock": {"pattern": "now: .*"}}) as paceline, caller(paceline) as client:
        first = await client.ask(system("Be brief.\nnow: 1"), user("one"), tools=ToolSet(tools=[read, find]))
        then = (system("Be brief.\nnow: 2"), *first.then("two")[1:])
        second = await client.ask(*then, tools=ToolSet(tools=[find, read]))
        third = await client.ask(*second.then("three"), tools=ToolSet(tools=[find, read]))
        step = await paceline.client.get_step(step_id=second.started.step_id)
    assert [turn.match for turn in (first, second, third)] == [NEW, EXACT, EXACT]
    assert {turn.workflow for turn in (first, second, third)} == {first.workflow}
    assert step.answer.reuse.break_reason == "tools_changed"
    assert third.finished.reuse.break_reason == 0


async def test_conversations_with_the_same_beginning_are_told_apart_as_far_as_they_can_be(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*FAST)
    await engine.script({"reply": "The same."})
    async with run(engine.url) as paceline, caller(paceline) as client:
        one, two = [await client.ask(user("hello")) for _ in range(2)]
        latest = await client.ask(*one.then("a"))
        remaining = await client.ask(*one.then("b"))
        neither = await client.ask(*one.then("c"))
    assert [turn.match for turn in (one, two)] == [NEW, NEW]
    assert (latest.match, latest.workflow) == (AMBIGUOUS, two.workflow)
    assert (remaining.match, remaining.workflow) == (EXACT, one.workflow)
    assert neither.match == AMBIGUOUS
    assert neither.workflow not in {one.workflow, two.workflow}


async def test_a_finished_workflow_goes_on_in_a_fork(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*FAST)
    async with run(engine.url) as paceline, caller(paceline) as client:
        first = await client.ask(user("one"))
        await paceline.client.finish_workflow(first.workflow, t.OutcomeKind.SUCCEEDED)
        second = await client.ask(*first.then("two"))
        third = await client.ask(*second.then("three"))
        other = await client.ask(*first.then("two, otherwise"))
        made = {row["workflow_id"]: row["parent_workflow_id"] for row in workflows(paceline)}
    assert [turn.match for turn in (second, third, other)] == [EXACT, EXACT, AMBIGUOUS]
    assert made[second.workflow] == made[other.workflow] == first.workflow
    assert third.workflow == second.workflow != other.workflow
    assert second.finished.reuse.carried_token_count == first.context


async def test_deleted_content_is_rendered_again_in_the_workflow_that_is_found(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*FAST)
    async with run(engine.url) as paceline, caller(paceline) as client:
        first = await client.ask(user("one"))
        await engine.fault(kind="error", after_tokens=4)
        lost = await client.ask(*first.then("two"))
        await paceline.client.delete_workflow_content(first.workflow)
        second = await client.ask(*first.then("two"))
        other = await client.ask(*first.then("two, otherwise"))
        third = await client.ask(*second.then("three"))
        steps = [await paceline.client.get_step(step_id=one.started.step_id) for one in (second, other, third)]
    assert lost.response.code is grpc.StatusCode.UNAVAILABLE
    assert [turn.match for turn in (second, other, third)] == [EXACT, AMBIGUOUS, EXACT]
    assert [step.answer.reuse.break_reason for step in steps] == ["retention_expired", "retention_expired", ""]
    assert second.workflow == third.workflow == first.workflow


async def test_what_clients_name_is_left_alone(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    engine = emulator(*SLOW)
    async with run(engine.url) as paceline, caller(paceline) as client:
        first = await client.ask(user("one"), tokens=5)
        workflow = await paceline.client.get_workflow(first.workflow)
        named = workflow.step("two", max_output_tokens=40)
        started = (await events_until(named, t.Started)).pop()
        beside = await client.ask(*first.then("two, otherwise"), tokens=5)
        await named.result()
        after = await client.ask(*first.then("two, again"), tokens=5)
        refused = await client.ask(*first.then("two"), workflow_id=first.workflow, model="n")
    assert started.match == ""
    assert refused.response.reason == InvalidArgument.reason
    assert "has the model m, not n" in refused.response.message
    assert [turn.match for turn in (beside, after)] == [AMBIGUOUS, AMBIGUOUS]
    assert first.workflow not in {beside.workflow, after.workflow}


async def test_a_request_id_leads_to_its_step_whatever_was_found_since(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*FAST)
    async with run(engine.url) as paceline:
        hello = t.Message(t.Role.USER, "hello")
        first = await paceline.client.run_conversation([hello], request_id="request-one", labels={"team": "a"})
        again = paceline.client.run_conversation([hello], request_id="request-one", labels={"team": "a"})
        started = (await events_until(again, t.Started)).pop()
        said = t.Message(t.Role.ASSISTANT, first.text)
        twice = [
            paceline.client.run_conversation([hello, said, hello], request_id="request-two") for _ in range(2)
        ]
        answers = await asyncio.gather(*(stream.result() for stream in twice))
        made = workflows(paceline)
    assert (started.replayed, started.match, started.step_id) == (True, NEW, first.step_id)
    assert answers[0] == answers[1]
    assert [row["workflow_id"] for row in made] == [started.workflow_id]


async def test_a_step_that_is_refused_leaves_no_workflow_behind(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0", "--max-model-len=64")
    async with run(engine.url) as paceline, caller(paceline) as client:
        refused = await client.ask(user("too long " * 100))
        made = workflows(paceline)
    assert refused.response.reason == "CONTEXT_TOO_LONG"
    assert made == []
