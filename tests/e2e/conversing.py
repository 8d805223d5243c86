"""A client that names neither workflows nor requests, and what it is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from tests.e2e import calls

from paceline.v1.message_pb2 import Message, Role, Sampling
from paceline.v1.step_pb2 import WorkflowMatch
from paceline.v1.step_service_pb2 import Conversation, RunStepRequest, RunStepResponse
from paceline.v1.step_service_pb2_grpc import StepServiceStub


def user(text: str) -> Message:
    return Message(role=Role.ROLE_USER, content=text)


def system(text: str) -> Message:
    return Message(role=Role.ROLE_SYSTEM, content=text)


@dataclass(frozen=True)
class Turn:
    """One answered request."""

    sent: tuple[Message, ...]
    response: calls.Ended

    @property
    def started(self) -> Any:
        return next(one.started for one in self.response.responses if one.HasField("started"))

    @property
    def finished(self) -> Any:
        assert self.response.code is grpc.StatusCode.OK, self.response
        return self.response.responses[-1].finished

    @property
    def workflow(self) -> str:
        return str(self.started.workflow_id)

    @property
    def match(self) -> str:
        return str(WorkflowMatch.Name(self.started.match).removeprefix("WORKFLOW_MATCH_").lower())

    @property
    def context(self) -> int:
        """Tokens that its continuation carries."""
        return int(self.finished.reuse.prompt_token_count + self.finished.usage.output_token_count)

    def then(self, text: str) -> tuple[Message, ...]:
        """The conversation after this turn, with a new message."""
        return (*self.sent, self.finished.message, user(text))


def request(messages: tuple[Message, ...], *, tokens: int = 0, **fields: Any) -> RunStepRequest:
    if tokens:
        fields["sampling"] = Sampling(max_output_token_count=tokens)
    return RunStepRequest(conversation=Conversation(messages=messages), **fields)


@dataclass(frozen=True)
class Caller:
    """A client without retries and without ids."""

    stub: Any
    metadata: tuple[tuple[str, str], ...] = ()

    def call(self, *messages: Message, **fields: Any) -> Any:
        return self.stub.RunStep(request(messages, **fields), metadata=self.metadata)

    async def ask(self, *messages: Message, **fields: Any) -> Turn:
        return Turn(messages, await calls.read(self.call(*messages, **fields)))

    async def begun(self, *messages: Message, **fields: Any) -> tuple[Any, list[RunStepResponse]]:
        """A call whose answer has begun."""
        call, seen = self.call(*messages, **fields), []
        async for response in call:
            seen.append(response)
            if response.HasField("text_delta"):
                break
        return call, seen


@asynccontextmanager
async def caller(paceline: Any, agent: str = "agent", key: str = "") -> AsyncIterator[Caller]:
    """A client with a user agent and an API key."""
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    options = [("grpc.primary_user_agent", agent)]
    async with grpc.aio.insecure_channel(paceline.target, options=options) as channel:
        yield Caller(StepServiceStub(channel), metadata)


def workflows(paceline: Any) -> list[dict[str, Any]]:
    return list(paceline.sql("select * from workflows order by created_at"))
