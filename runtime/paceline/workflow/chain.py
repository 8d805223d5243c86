"""A chain of steps without its texts."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.workflow.model import CallRef, Segments, StepState, Tool


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A step of a chain without its texts: what it takes to continue the chain's last step."""

    step_id: str
    workflow_id: str
    parent_step_id: str | None
    state: StepState
    segments: Segments | None
    keys: tuple[bytes, ...] | None
    """Hashes of its messages and its answer, see `transcript.fingerprint`; None if it did not finish, or before
    they were kept."""
    calls: tuple[CallRef, ...]
    """The calls of its answer."""
    system: str
    tools: tuple[Tool, ...]
    reasoning_tokens: int
    kept_reasoning_tokens: int
    replica: str
    tokens: int | None = None
    """Its prompt and its answer; None if it did not finish."""

    @property
    def gone(self) -> bool:
        """Whether it is finished and its ids are deleted, or were never stored."""
        return self.state is StepState.FINISHED and self.segments is None
