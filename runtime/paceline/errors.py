"""Every error that a client can see, with its stable reason.

`rpc/status.py` gives each class its gRPC code; a test fails when one has none. Messages name the field and the
remedy. `metadata` repeats every variable of the message and travels in `google.rpc.ErrorInfo`. Nothing here
depends on the server: the client raises the same classes.
"""

from __future__ import annotations

from typing import ClassVar


class PacelineError(Exception):
    """Something went wrong."""

    reason: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False
    """The same request can succeed later; a step that failed so runs again under its request id."""

    def __init__(self, message: str | None = None, **metadata: object) -> None:
        self.message = message or (type(self).__doc__ or "").splitlines()[0]
        self.metadata = {key: str(value) for key, value in metadata.items()}
        self.failure: object | None = None
        """What a step had used when it failed after its dispatch: `StepFailureInfo` of `workflow.events` in the
        server, `StepFailure` of `paceline.v1` in the client."""
        super().__init__(self.message)


class InternalError(PacelineError):
    """The server failed; its log has the details."""


# -- requests ---------------------------------------------------------------------------------------------------


class InvalidArgument(PacelineError):
    """A field of the request is invalid."""

    reason = "INVALID_ARGUMENT"

    def __init__(self, message: str | None = None, *, field: str = "", **metadata: object) -> None:
        super().__init__(message, **({"field": field} if field else {}), **metadata)
        self.field = field


class InvalidMessage(InvalidArgument):
    """A message of the conversation is invalid."""

    reason = "INVALID_MESSAGE"


class InvalidTool(InvalidArgument):
    """A tool definition is invalid."""

    reason = "INVALID_TOOL"


class ContextTooLong(InvalidArgument):
    """The prompt does not fit into the model's context."""

    reason = "CONTEXT_TOO_LONG"


class ModelNotFound(PacelineError):
    """No such model is configured."""

    reason = "MODEL_NOT_FOUND"


class WorkflowNotFound(PacelineError):
    """No such workflow."""

    reason = "WORKFLOW_NOT_FOUND"


class StepNotFound(PacelineError):
    """No such step."""

    reason = "STEP_NOT_FOUND"


class WorkflowFinished(PacelineError):
    """The workflow is finished; fork it to go on."""

    reason = "WORKFLOW_FINISHED"


class WorkflowExists(PacelineError):
    """Another workflow has this id."""

    reason = "WORKFLOW_EXISTS"


class WorkflowBusy(PacelineError):
    """Another step of the workflow is running."""

    reason = "WORKFLOW_BUSY"


class StepNotFinished(PacelineError):
    """The step has no answer to continue from."""

    reason = "STEP_NOT_FINISHED"


class TranscriptGone(PacelineError):
    """Texts and token ids are deleted or were never stored; send the whole conversation."""

    reason = "TRANSCRIPT_GONE"


class RequestIdReused(PacelineError):
    """The request id was used for another request."""

    reason = "REQUEST_ID_REUSED"


class BudgetExceeded(PacelineError):
    """The step's worst case does not fit into the workflow's budget."""

    reason = "BUDGET_EXCEEDED"


class Unauthenticated(PacelineError):
    """The API key is missing, unknown or revoked."""

    reason = "UNAUTHENTICATED"


# -- engines ----------------------------------------------------------------------------------------------------


class EngineUnavailable(PacelineError):
    """No replica of the model can take the step."""

    reason = "ENGINE_UNAVAILABLE"
    retryable = True


class EngineLost(PacelineError):
    """The replica was lost while it ran the step."""

    reason = "ENGINE_LOST"
    retryable = True


class EngineRefused(PacelineError):
    """The engine refused the request."""

    reason = "ENGINE_REFUSED"


class QueueFull(PacelineError):
    """Too many steps are waiting."""

    reason = "QUEUE_FULL"
    retryable = True


class StepCancelled(PacelineError):
    """The step was cancelled."""

    reason = "STEP_CANCELLED"


class ClientGone(PacelineError):
    """The last reader of the step went away, or its deadline passed."""

    reason = "CLIENT_GONE"
    retryable = True


class ShuttingDown(PacelineError):
    """The runtime is shutting down."""

    reason = "SHUTTING_DOWN"
    retryable = True


class RuntimeLost(PacelineError):
    """The runtime that ran the step died."""

    reason = "RUNTIME_LOST"
    retryable = True


# -- ledger -----------------------------------------------------------------------------------------------------


class LedgerUnavailable(PacelineError):
    """The database does not accept writes."""

    reason = "LEDGER_UNAVAILABLE"
    retryable = True


class LedgerInUse(PacelineError):
    """Another runtime uses this SQLite file."""

    reason = "LEDGER_IN_USE"


class SchemaOutdated(PacelineError):
    """The database schema does not fit this version; run `paceline db upgrade`."""

    reason = "SCHEMA_OUTDATED"


# -- set-up -----------------------------------------------------------------------------------------------------


class ConfigError(PacelineError):
    """The configuration is invalid."""

    reason = "INVALID_CONFIG"


class ModelError(PacelineError):
    """The model's files are missing or unusable."""

    reason = "MODEL_UNUSABLE"


class EngineStartError(PacelineError):
    """The engine could not be started."""

    reason = "ENGINE_START_FAILED"
