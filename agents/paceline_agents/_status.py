"""A failed call back into the error that the server raised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from paceline.errors import PacelineError
from paceline.v1 import step_service_pb2
from paceline_agents import _convert
from paceline_agents.types import StepFailure

M = TypeVar("M", bound=Message)


class _Call(Protocol):
    """What every failed call has, sync and async; the stubs of grpc say it of neither."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...


def code_of(failed: grpc.RpcError) -> grpc.StatusCode:
    """The gRPC code of a failed call."""
    return cast("_Call", failed).code()


def to_error(failed: grpc.RpcError) -> PacelineError:
    """The error of a failed call: its class by the reason in `ErrorInfo`, else `PacelineError`.

    `metadata["grpc_code"]` is the name of the gRPC code; `failure` is set when the status has a `StepFailure`.
    """
    text = cast("_Call", failed).details() or "the call failed without a message"
    info = _detail(failed, error_details_pb2.ErrorInfo())
    metadata: dict[str, object] = {"grpc_code": code_of(failed).name}
    kind: type[PacelineError] = PacelineError
    if info is not None:
        metadata |= {key: value for key, value in info.metadata.items() if key != "message"}
        kind = _CLASSES.get(info.reason, PacelineError)
        if kind is PacelineError:
            metadata["reason"] = info.reason
    error = kind(text, **metadata)
    failure = _detail(failed, step_service_pb2.StepFailure())
    error.failure = None if failure is None else _convert.failure(failure)
    return error


def is_retryable(failed: grpc.RpcError) -> bool:
    """The call may be sent again: UNAVAILABLE, and no reason that says that it would fail again."""
    if code_of(failed) is not grpc.StatusCode.UNAVAILABLE:
        return False
    info = _detail(failed, error_details_pb2.ErrorInfo())
    return info is None or info.reason not in _CLASSES or _CLASSES[info.reason].retryable


def step_failure(error: PacelineError) -> StepFailure | None:
    """What the failed step had cost; None when it failed before its dispatch."""
    return error.failure if isinstance(error.failure, StepFailure) else None


def _detail(failed: grpc.RpcError, into: M) -> M | None:
    """`into`, filled from the status details of a failed call; None when it is not among them."""
    try:
        status: status_pb2.Status | None = rpc_status.from_call(cast("grpc.Call", failed))
    except ValueError:  # the details contradict the status: something on the way rewrote it
        return None
    for detail in status.details if status is not None else ():
        if detail.Unpack(into):
            return into
    return None


def _subclasses(kind: type[PacelineError]) -> Iterator[type[PacelineError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


_CLASSES = {kind.reason: kind for kind in _subclasses(PacelineError)}
