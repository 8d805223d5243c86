"""Content that is deleted, expires or is never stored: what goes on, and what is refused, over gRPC."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.e2e.calls import read, request, stub
from tests.e2e.servers import to_toml
from typer.testing import CliRunner

from paceline import app
from paceline.cli import tenant, workflow
from paceline.errors import StepNotFound, TranscriptGone, WorkflowBusy
from paceline.v1.message_pb2 import Message, Role
from paceline.v1.step_service_pb2 import Conversation, RunStepRequest
from paceline_agents import types as t

SYSTEM = t.Message(t.Role.SYSTEM, "Mind the marker. " * 10)
READ = t.Tool("read", "Read a marker.")
COMMANDS = typer.Typer()
COMMANDS.add_typer(workflow.app, name="workflow")
COMMANDS.add_typer(tenant.app, name="tenant")


def user(content: str) -> t.Message:
    return t.Message(t.Role.USER, content)


class Talk:
    """A workflow and all that was said in it."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.said: list[t.Message] = [SYSTEM]
        self.answers: list[t.Answer] = []

    async def append(self, content: str, **options: Any) -> t.Answer:
        """Say it, and only it."""
        return self._heard(content, await self.handle.step(content, **options))

    async def whole(self, content: str, **options: Any) -> t.Answer:
        """Say everything again, and this."""
        said = [*self.said, user(content)]
        return self._heard(content, await self.handle.step(said, whole_conversation=True, **options))

    def _heard(self, content: str, answer: t.Answer) -> t.Answer:
        self.said += [user(content), t.Message(t.Role.ASSISTANT, answer.text, reasoning=answer.reasoning)]
        self.answers.append(answer)
        return answer

    @property
    def tokens(self) -> int:
        """Of the whole context."""
        last = self.answers[-1]
        return last.reuse.prompt_tokens + (last.usage.output or 0)


async def begun(paceline: Any, request_id: str = "request-1", **options: Any) -> Talk:
    """Two steps."""
    talk = Talk(await paceline.client.create_workflow(system=SYSTEM.content, **options))
    await talk.append("first marker", request_id=request_id)
    await talk.append("second marker")
    return talk


def as_before(talk: Talk) -> bool:
    """Whether the last step carried the whole context before it."""
    before, last = talk.answers[-2:]
    return last.reuse.carried_tokens == before.reuse.prompt_tokens + (before.usage.output or 0)


async def test_after_a_deletion(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        talk = await begun(paceline, tools=[READ])
        first, second = talk.answers
        deleted = await talk.handle.delete_content()
        assert deleted.content_deleted_at is not None
        assert (await talk.handle.delete_content()).content_deleted_at is not None
        with pytest.raises(TranscriptGone, match="send `tools`"):
            await talk.append("third")
        with pytest.raises(TranscriptGone, match="the whole conversation"):
            await talk.append("third", tools=[READ])
        with pytest.raises(TranscriptGone, match="new workflow"):
            await talk.handle.fork()
        asked = len(await engine.counts())
        async with stub(paceline.target) as steps:
            again = await read(
                steps.RunStep(request(talk.handle.workflow_id, "first marker", request_id="request-1"))
            )
        assert again.verdict == ("FAILED_PRECONDITION", "TRANSCRIPT_GONE")
        assert again.failure
        assert again.failure.cost.list_cost_usd_nanos == first.cost.list_nanos
        assert not again.responses
        assert len(await engine.counts()) == asked
        before = talk.tokens
        third = await talk.whole("third", tools=[READ])
        assert (third.reuse.break_reason, third.reuse.carried_tokens) == ("retention_expired", 0)
        assert third.reuse.dropped_tokens == before
        await talk.append("fourth", tools=[READ])
        assert as_before(talk)
        stored = await paceline.client.get_step(step_id=second.step_id)
        assert stored.answer is None or stored.answer.text == ""
        rows = paceline.sql(
            "SELECT carried_tokens, list_nanos FROM steps JOIN attempts USING (step_id) ORDER BY created_at"
        )
        assert [row["list_nanos"] for row in rows] == [answer.cost.list_nanos for answer in talk.answers]
    async with run(engine.url) as paceline:
        talk.handle = await paceline.client.get_workflow(talk.handle.workflow_id)
        await talk.whole("fifth", tools=[READ])
        assert as_before(talk)
        fork = Talk(await talk.handle.fork())
        fork.said, fork.answers = list(talk.said), list(talk.answers)
        await fork.append("sixth", tools=[READ])
        assert as_before(fork)


async def test_a_fork_loses_what_it_shares(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    async with run(emulator("--time-scale=0").url) as paceline:
        talk = await begun(paceline)
        fork = Talk(await talk.handle.fork())
        fork.said, fork.answers = list(talk.said), list(talk.answers)
        await fork.append("third")
        assert as_before(fork)
        await talk.handle.delete_content()
        assert (await paceline.client.get_workflow(fork.handle.workflow_id)).info.content_deleted_at
        with pytest.raises(TranscriptGone):
            await fork.append("fourth")
        assert (await fork.whole("fourth")).reuse.break_reason == "retention_expired"
        await fork.append("fifth")
        assert as_before(fork)
        other = await paceline.client.create_workflow()
        with pytest.raises(StepNotFound):
            await other.step("mine", parent_step_id=talk.answers[0].step_id)


async def test_a_workflow_without_a_name_is_found_and_rendered_again(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    """In the same workflow while that is open, else in a fork, which the deletion does not refuse here."""
    async with run(emulator("--time-scale=0").url) as paceline:
        client, said = paceline.client, [SYSTEM, user("first")]

        async def go_on(content: str) -> t.Answer:
            answer: t.Answer = await client.run_conversation(list(said))
            said.extend([t.Message(t.Role.ASSISTANT, answer.text, reasoning=answer.reasoning), user(content)])
            return answer

        first = await go_on("second")
        workflow_id = (await client.get_step(step_id=first.step_id)).workflow_id
        await client.delete_workflow_content(workflow_id)
        second = await go_on("third")
        third = await go_on("fourth")
        await client.finish_workflow(workflow_id, t.OutcomeKind.SUCCEEDED)
        await client.delete_workflow_content(workflow_id)
        fourth = await go_on("fifth")
        fifth = await go_on("sixth")
        places = [
            (await client.get_step(step_id=one.step_id)).workflow_id for one in (second, third, fourth, fifth)
        ]
    reasons = [answer.reuse.break_reason for answer in (first, second, third, fourth, fifth)]
    assert reasons == ["", "retention_expired", "", "retention_expired", ""]
    assert places[:2] == [workflow_id] * 2
    assert places[2] == places[3] != workflow_id


async def test_an_unnamed_step_whose_messages_were_deleted_is_a_new_one(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline, stub(paceline.target) as steps:
        said = RunStepRequest(conversation=Conversation(messages=[Message(role=Role.ROLE_USER, content="hello")]))
        await engine.fault(kind="drop")
        failed = await read(steps.RunStep(said))
        assert failed.verdict == ("UNAVAILABLE", "ENGINE_LOST")
        await paceline.client.delete_workflow_content(failed.responses[0].started.workflow_id)
        again = await read(steps.RunStep(said))
    assert again.verdict == ("OK", "")
    assert again.responses[0].started.step_id != failed.responses[0].started.step_id


async def test_not_while_a_step_runs(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    async with run(emulator("--step-seconds=0.05", "--reply-tokens=200").url) as paceline:
        handle = await paceline.client.create_workflow()
        stream = handle.step("go on")
        async for event in stream:
            if isinstance(event, t.TextDelta | t.ReasoningDelta):
                break
        with pytest.raises(WorkflowBusy):
            await handle.delete_content()
        await stream.close()


async def test_content_expires(
    emulator: Callable[..., Any], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "RETENTION_CHECK_SECONDS", 0.05)
    async with run(emulator("--time-scale=0").url, retention={"hours": 0.5 / 3600}) as paceline:
        kept = await begun(paceline, "request-2", retention=timedelta(hours=1))
        talk = await begun(paceline)
        async with asyncio.timeout(20):
            while not (await paceline.client.get_workflow(talk.handle.workflow_id)).info.content_deleted_at:
                await asyncio.sleep(0.05)
        with pytest.raises(TranscriptGone):
            await talk.append("third")
        await kept.append("third")
        assert as_before(kept)
        assert (await paceline.client.get_workflow(kept.handle.workflow_id)).info.retention == timedelta(hours=1)


async def test_nothing_is_stored(emulator: Callable[..., Any], run: Callable[..., Any], ledger: Path) -> None:
    engine = emulator("--time-scale=0", "--reply-tokens=64")
    async with run(engine.url) as paceline:
        talk = await begun(paceline, store=t.StorePolicy.NONE, tools=[READ])
        await talk.whole("third marker")
        assert as_before(talk)
        assert talk.answers[-1].reuse.break_reason == ""
        fork = Talk(await talk.handle.fork())
        fork.answers = list(talk.answers)
        await fork.append("in a fork")
        assert as_before(fork)
        with pytest.raises(TranscriptGone):
            await talk.append("first marker", request_id="request-1")
        rows = paceline.sql("SELECT * FROM steps")
        for row in rows:
            assert (row["input"], row["output"], row["calls"], row["preamble_id"]) == ("[]", None, None, None)
            assert (row["rendered_ids"], row["generated_ids"]) == (None, None)
            assert row["message_keys"]
            assert row["reuse_prompt_tokens"]
        assert paceline.sql("SELECT * FROM preambles") == []
        generated = [row["generated_ids"] for row in rows]
        assert generated == [None] * 4
    async with run(engine.url) as paceline:
        talk.handle = await paceline.client.get_workflow(talk.handle.workflow_id)
        assert talk.handle.info.store == "none"
        with pytest.raises(TranscriptGone):
            await talk.append("fourth", tools=[READ])
        with pytest.raises(TranscriptGone, match="`tools`"):
            await talk.whole("fourth")
        fourth = await talk.whole("fourth", tools=[READ])
        assert (fourth.reuse.break_reason, fourth.reuse.carried_tokens) == ("retention_expired", 0)
        await talk.append("fifth", tools=[READ])
        assert as_before(talk)
    _no_words(ledger)


async def test_a_fork_of_a_busy_workflow_that_stores_nothing_goes_on(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        talk = await begun(paceline, store=t.StorePolicy.NONE, tools=[READ])
        before = talk.tokens
        await engine.fault(kind="stall", after_tokens=4)
        stream = talk.handle.step("third")
        async for event in stream:
            if isinstance(event, t.TextDelta | t.ReasoningDelta):
                break
        forked = await talk.handle.step("instead", on_busy=t.OnBusy.FORK)
        await stream.close()
        assert forked.reuse.carried_tokens == before
        (row,) = paceline.sql("SELECT workflow_id FROM steps WHERE step_id = :step_id", step_id=forked.step_id)
        assert row["workflow_id"] != talk.handle.workflow_id
        fork = await paceline.client.get_workflow(row["workflow_id"])
        assert (await fork.step("and on")).reuse.break_reason == ""


def _no_words(ledger: Path) -> None:
    connection = sqlite3.connect(ledger)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    for file in ledger.parent.iterdir():
        if file.is_file():
            assert b"marker" not in file.read_bytes(), file


async def test_a_failed_step_that_stored_nothing_runs_again(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        talk = await begun(paceline, store=t.StorePolicy.NONE)
        await engine.fault(kind="drop")
        async with stub(paceline.target) as steps:
            asked = request(talk.handle.workflow_id, "third marker", request_id="request-3")
            failed = await read(steps.RunStep(asked))
            (row,) = paceline.sql("SELECT * FROM steps WHERE request_id = 'request-3'")
            again = await read(steps.RunStep(asked))
    assert failed.verdict == ("UNAVAILABLE", "ENGINE_LOST")
    assert (row["input"], row["state"], row["error_message"]) == ("[]", "failed", "")
    assert again.verdict == ("OK", "")
    assert again.responses[-1].finished.reuse.carried_token_count == talk.tokens


async def test_a_failed_step_whose_messages_were_deleted_does_not_run_again(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        handle = await paceline.client.create_workflow()
        await engine.fault(kind="drop")
        async with stub(paceline.target) as steps:
            asked = request(handle.workflow_id, request_id="request-1")
            await read(steps.RunStep(asked))
            await handle.delete_content()
            again = await read(steps.RunStep(asked))
        assert again.verdict == ("FAILED_PRECONDITION", "TRANSCRIPT_GONE")
        assert (await handle.step("hello")).reuse.break_reason == ""


async def test_the_operator_deletes(
    emulator: Callable[..., Any], run: Callable[..., Any], ledger: Path, tmp_path: Path
) -> None:
    """Beside the running server, which does not continue what it still has in memory."""
    config = tmp_path / "paceline.toml"
    config.write_text(to_toml({"ledger": {"url": f"sqlite:///{ledger}"}}))

    async def command(*words: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, COMMANDS, [*words, "--config", str(config)])
        assert result.exit_code == 0, result.output
        return result.stdout

    async with run(emulator("--time-scale=0").url) as paceline:
        talk, other = await begun(paceline), await begun(paceline, "request-2")
        await (await talk.handle.fork()).step("in a fork")
        name = str(talk.handle.workflow_id)
        await command("workflow", "delete-content", name)
        with pytest.raises(TranscriptGone):
            await talk.append("third")
        await talk.whole("third")
        shown = await command("workflow", "show", name)
        assert "content gone" in shown
        found = json.loads(await command("workflow", "show", name, "--json"))
        assert [step["input"] == [] for step in found["steps"]] == [True, True, False]
        explained = json.loads(await command("workflow", "explain", name, "--json"))
        assert [turn["break_reason"] for turn in explained["turns"]] == [None, None, "retention_expired"]
        assert [cause["reason"] for cause in explained["causes"]] == ["retention_expired"]
        owner = found["workflow"]["tenant"]
        day = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
        assert "of 0 workflows" in await command("tenant", "delete-content", owner, "--before", day)
        assert "of 3 workflows" in await command("tenant", "delete-content", owner)
        assert "of 0 workflows" in await command("tenant", "delete-content", owner)
        with pytest.raises(TranscriptGone):
            await other.append("third")
