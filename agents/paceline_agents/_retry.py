"""When a call is sent again, and when not. Pure: the clients do the waiting."""

from __future__ import annotations

import random
import time

import grpc

from paceline_agents._status import is_retryable, to_error

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
_TRIES = 6


class Retry:
    """The tries of one call: how much time is left, and how long to wait after a failure."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._failures = 0
        self._furthest = 0

    def remaining(self) -> float | None:
        """Seconds until the deadline, never negative; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def reached(self, position: int) -> None:
        """Count failures anew once the call has come further than ever before. A step that fails again and again
        at the same place is not sent for ever: each try may be billed."""
        if position > self._furthest:
            self._furthest, self._failures = position, 0

    def delay_after(self, failed: grpc.RpcError) -> float:
        """Seconds to wait before the next try.

        Raises the call's error when another try is not safe, when it was the last one, or when the deadline would
        pass meanwhile.
        """
        self._failures += 1
        longest = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (self._failures - 1))
        delay = longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        remaining = self.remaining()
        too_late = remaining is not None and delay >= remaining
        if not is_retryable(failed) or self._failures >= _TRIES or too_late:
            raise to_error(failed) from failed
        return delay
