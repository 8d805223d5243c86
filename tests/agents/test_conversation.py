"""Both clients without a workflow: the whole conversation is all that they send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from tests.agents.scripted import Failure, Served, finished, started

from paceline.v1 import step_pb2
from paceline_agents import Answer, AsyncClient, Client, Event, Message, Role, Started

GONE = Failure(grpc.StatusCode.UNAVAILABLE)
Run = Callable[..., Awaitable[tuple[list[Event], Answer]]]


async def conversation_async(target: str, **options: Any) -> tuple[list[Event], Answer]:
    async with AsyncClient(target) as client:
        stream = client.run_conversation([Message(Role.USER, "hi")], **options)
        return [event async for event in stream], await stream


async def conversation_sync(target: str, **options: Any) -> tuple[list[Event], Answer]:
    def run() -> tuple[list[Event], Answer]:
        with Client(target) as client:
            stream = client.run_conversation([Message(Role.USER, "hi")], **options)
            return list(stream), stream.result()

    return await asyncio.to_thread(run)


@pytest.mark.parametrize("run", [conversation_async, conversation_sync])
async def test_a_conversation_names_no_workflow_and_learns_how_it_was_found(served: Served, run: Run) -> None:
    begun = started()
    begun.started.match = step_pb2.WORKFLOW_MATCH_EXACT
    served.script.runs = [[begun, GONE], [begun, finished("hey")]]

    events, answer = await run(served.target, model="m", labels={"team": "a"}, max_output_tokens=5)

    assert isinstance(events[0], Started)
    assert (events[0].match, answer.text) == ("exact", "hey")
    first, again = served.script.requests
    assert first == again
    assert (first.workflow_id, first.model, dict(first.labels)) == ("", "m", {"team": "a"})
    assert [message.content for message in first.conversation.messages] == ["hi"]
    assert first.request_id
    assert first.sampling.max_output_token_count == 5
