"""Faults that the next requests run into, set over the admin path."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class Fault(BaseModel):
    """One fault; it hits the next `times` completion requests."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["refuse", "delay", "stall", "abort", "error", "drop", "exit"]
    """refuse: error body instead of a stream. delay: the request reaches the scheduler late. stall: no more
    tokens, the stream stays open. abort: ended with finish reason `abort`. error: an error event in the stream.
    drop: the connection breaks. exit: an error event, then the process exits, as an engine that dies."""
    after_tokens: Annotated[int, Field(ge=0)] = 0
    """Output tokens before a stall, abort, error, drop or exit."""
    status: Annotated[int, Field(ge=400, le=599)] = 503
    """HTTP status of a refusal."""
    seconds: Annotated[float, Field(ge=0)] = 0.0
    """Length of a delay; the time scale does not apply."""
    times: Annotated[int, Field(ge=1)] = 1

    @property
    def cuts(self) -> bool:
        """Whether the output stops at `after_tokens`."""
        return self.kind not in {"refuse", "delay"}


FAULTS = TypeAdapter(list[Fault])


class FaultPlan:
    """Faults in the order in which they hit."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def replace(self, faults: list[Fault]) -> None:
        """Wait with these faults, each as often as it says, and drop those before."""
        self._faults = [fault for fault in faults for _ in range(fault.times)]

    def take(self) -> Fault | None:
        """The fault of the next request."""
        return self._faults.pop(0) if self._faults else None
