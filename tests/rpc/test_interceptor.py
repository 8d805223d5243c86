"""What only a call without a network can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest
from tests.rpc.fakes import FakeKeys

from paceline.rpc.interceptor import CallInterceptor, current_tenant


class GoneReader:
    """A call whose reader went away while an answer was being written."""

    def invocation_metadata(self) -> None:
        return None

    async def write(self, answer: object) -> None:
        raise asyncio.CancelledError


class Details:
    """Names the called method."""

    method = "/paceline.v1.StepService/RunStep"


async def test_a_cancelled_write_closes_the_servicer_before_the_call_ends() -> None:
    tenants: list[str] = []
    streams: list[AsyncGenerator[int, None]] = []  # held, so that the garbage collector does not close them

    async def play() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            tenants.append(current_tenant())

    def serve(request: object, context: object) -> AsyncGenerator[int, None]:
        streams.append(play())
        return streams[-1]

    handler: Any = grpc.unary_stream_rpc_method_handler(serve)

    async def continuation(details: object) -> Any:
        return handler

    interceptor = CallInterceptor(FakeKeys(), require_keys=False)
    details: Any = Details()
    wrapped: Any = await interceptor.intercept_service(continuation, details)
    with pytest.raises(asyncio.CancelledError):
        await wrapped.unary_stream(None, GoneReader())
    assert tenants == ["default"]
