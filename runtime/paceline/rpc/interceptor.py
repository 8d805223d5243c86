"""Wraps every call of `paceline.v1`: log context, API key, and the status of errors."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, cast

import grpc
import structlog
from grpc_status import rpc_status
from structlog.contextvars import bind_contextvars, clear_contextvars

from paceline.errors import InternalError, PacelineError, Unauthenticated
from paceline.rpc.status import to_status

PREFIX = "/paceline.v1."
DEFAULT_TENANT = "default"
_BEARER = "bearer "
_tenant: ContextVar[str] = ContextVar("tenant")
_caller: ContextVar[str] = ContextVar("caller")
_log = structlog.get_logger(__name__)

# An interceptor sees the messages of any method, so they are Any here.
_Context = grpc.aio.ServicerContext[Any, Any]
_Unary = Callable[[Any, _Context], Awaitable[Any]]
_Stream = Callable[[Any, _Context], AsyncGenerator[Any, None]]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class KeyVerifier(Protocol):
    """Knows the API keys."""

    async def verify(self, key: str) -> Owner:
        """Return whose key it is. Raises `Unauthenticated`."""
        ...


class Owner(Protocol):
    """Whose key it is."""

    @property
    def tenant(self) -> str:
        """The tenant."""
        ...

    @property
    def key_id(self) -> str:
        """The public part of the key."""
        ...


def current_tenant() -> str:
    """Return the tenant of the call that is being served."""
    return _tenant.get()


def current_caller() -> str:
    """Return what stands for the API key and the user agent of the call that is being served."""
    return _caller.get()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the calls of `paceline.v1`; health and reflection pass untouched and need no key."""

    def __init__(self, keys: KeyVerifier, *, require_keys: bool) -> None:
        self._keys = keys
        self._require_keys = require_keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Return the wrapped handler of one call."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(PREFIX):
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._wrap_stream(cast("_Stream", handler.unary_stream), method),  # the stubs know sync ones only
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._wrap_unary(cast("_Unary", handler.unary_unary), method),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _wrap_unary(self, serve: _Unary, method: str) -> _Unary:
        async def call(request: Any, context: _Context) -> Any:
            async with self._guard(context, method):
                return await serve(request, context)

        return call

    def _wrap_stream(self, serve: _Stream, method: str) -> Any:
        # Writes by itself instead of yielding: a call that is cancelled while it waits for a slow reader then
        # closes the servicer's generator here and now, not when the garbage collector finds it.
        async def call(request: Any, context: _Context) -> None:
            async with self._guard(context, method), aclosing(serve(request, context)) as responses:
                async for response in responses:
                    await context.write(response)

        return call

    @asynccontextmanager
    async def _guard(self, context: _Context, method: str) -> AsyncIterator[None]:
        """Authenticate, run the body, and end the call with the status of its error."""
        started = time.monotonic()
        clear_contextvars()
        bind_contextvars(method=method)
        try:
            metadata = dict(context.invocation_metadata() or ())
            tenant, key_id = await self._authenticate(metadata.get("authorization"))
            _tenant.set(tenant)
            _caller.set(f"{key_id} {metadata.get('user-agent', '')!s}")
            bind_contextvars(tenant=tenant)
            yield
        except PacelineError as error:
            failure = error
        except Exception:  # noqa: BLE001 - a defect of ours: the log has it, the client learns nothing
            _log.exception("call.crashed")
            failure = InternalError()
        else:
            _log.debug("call.served", milliseconds=_since(started))
            return
        status = to_status(failure)
        _log.info("call.failed", code=status.code, reason=failure.reason, milliseconds=_since(started))
        final = rpc_status.to_status(status)
        await context.abort(final.code, final.details, final.trailing_metadata)

    async def _authenticate(self, header: str | bytes | None) -> tuple[str, str]:
        """Return tenant and id of the call's key. A key that is given must be good even where none is required."""
        if header is None:
            if self._require_keys:
                raise Unauthenticated("authorization: send the metadata `authorization: Bearer pl_...`")
            return DEFAULT_TENANT, ""
        if not isinstance(header, str) or not header.lower().startswith(_BEARER):
            raise Unauthenticated("authorization: must be `Bearer pl_...`")
        owner = await self._keys.verify(header[len(_BEARER) :].strip())
        return owner.tenant, owner.key_id


def _since(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 3)
