"""The one table from error class to gRPC code, and the `google.rpc.Status` of an error."""

from __future__ import annotations

from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from paceline import errors
from paceline.rpc.convert.steps import failure_to_proto
from paceline.workflow.events import StepFailureInfo

DOMAIN: Final = "paceline.dev"
RETRY_DELAY: Final = Duration(seconds=1)
MAX_TEXT_BYTES: Final = 512
MAX_VALUE_BYTES: Final = 128
"""Longest text and metadata value: a status travels in HTTP headers, of which clients take 8 KiB altogether."""

CODES: Final[dict[type[errors.PacelineError], StatusCode]] = {
    errors.InternalError: StatusCode.INTERNAL,
    errors.InvalidArgument: StatusCode.INVALID_ARGUMENT,
    errors.InvalidMessage: StatusCode.INVALID_ARGUMENT,
    errors.InvalidTool: StatusCode.INVALID_ARGUMENT,
    errors.ContextTooLong: StatusCode.INVALID_ARGUMENT,
    errors.ModelNotFound: StatusCode.NOT_FOUND,
    errors.WorkflowNotFound: StatusCode.NOT_FOUND,
    errors.StepNotFound: StatusCode.NOT_FOUND,
    errors.WorkflowFinished: StatusCode.FAILED_PRECONDITION,
    errors.WorkflowExists: StatusCode.ALREADY_EXISTS,
    errors.WorkflowBusy: StatusCode.ABORTED,
    errors.StepNotFinished: StatusCode.FAILED_PRECONDITION,
    errors.TranscriptGone: StatusCode.FAILED_PRECONDITION,
    errors.RequestIdReused: StatusCode.ALREADY_EXISTS,
    errors.BudgetExceeded: StatusCode.FAILED_PRECONDITION,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.EngineUnavailable: StatusCode.UNAVAILABLE,
    errors.EngineLost: StatusCode.UNAVAILABLE,
    errors.EngineRefused: StatusCode.FAILED_PRECONDITION,
    errors.QueueFull: StatusCode.RESOURCE_EXHAUSTED,
    errors.StepCancelled: StatusCode.CANCELLED,
    errors.ClientGone: StatusCode.ABORTED,
    errors.ShuttingDown: StatusCode.UNAVAILABLE,
    errors.RuntimeLost: StatusCode.UNAVAILABLE,
    errors.LedgerUnavailable: StatusCode.UNAVAILABLE,
    errors.LedgerInUse: StatusCode.FAILED_PRECONDITION,
    errors.SchemaOutdated: StatusCode.FAILED_PRECONDITION,
    errors.ConfigError: StatusCode.FAILED_PRECONDITION,
    errors.ModelError: StatusCode.FAILED_PRECONDITION,
    errors.EngineStartError: StatusCode.UNAVAILABLE,
}


def to_status(error: errors.PacelineError) -> Status:
    """Return the status of an error: exactly one `ErrorInfo`, and what else helps the client.

    Long texts are cut, so that the status always fits into the headers.
    """
    code = _code(error)
    message = _cut(error.message, MAX_TEXT_BYTES)
    info = ErrorInfo(
        reason=error.reason,
        domain=DOMAIN,
        metadata={key: _cut(value, MAX_VALUE_BYTES) for key, value in error.metadata.items()},
    )
    status = Status(code=code.value[0], message=message)
    for detail in (info, *_further_details(error, code, message)):
        status.details.add().Pack(detail)
    return status


def _cut(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def _code(error: errors.PacelineError) -> StatusCode:
    """Return the code of the class or of its nearest base in the table."""
    return next((CODES[base] for base in type(error).__mro__ if base in CODES), StatusCode.INTERNAL)


def _further_details(error: errors.PacelineError, code: StatusCode, message: str) -> list[Message]:
    details: list[Message] = []
    if isinstance(error, errors.InvalidArgument) and error.field:
        violation = BadRequest.FieldViolation(field=_cut(error.field, MAX_VALUE_BYTES), description=message)
        details.append(BadRequest(field_violations=[violation]))
    if code is StatusCode.RESOURCE_EXHAUSTED:
        details.append(RetryInfo(retry_delay=RETRY_DELAY))
    if isinstance(error.failure, StepFailureInfo):
        details.append(failure_to_proto(error.failure))
    return details


def table() -> str:
    """Return the table of codes and reasons as Markdown, for `docs/api.md`."""
    rows = [
        f"| `{code.name}` | `{error.reason}` | {'yes' if error.retryable else 'no'} | {_meaning(error)} |"
        for error, code in sorted(CODES.items(), key=lambda item: (item[1].value[0], item[0].reason))
    ]
    return "\n".join(["| code | reason | retry | meaning |", "|---|---|---|---|", *rows])


def _meaning(error: type[errors.PacelineError]) -> str:
    return (error.__doc__ or "").splitlines()[0]
