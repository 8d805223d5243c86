"""Accelerator time of one replica, shared equally among the steps that run at the same moment."""

from __future__ import annotations


class SharedTime:
    """Integrates 1/n over time, where n is the number of running steps: O(1) per step, and the shares of all
    steps sum to the replica's busy time exactly. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._running = 0
        self._share = 0.0
        self._last = 0.0
        self.busy = 0.0
        """Seconds with at least one step."""

    def enter(self, now: float) -> float:
        """A step begins; returns the mark to hand back to `leave`."""
        self._advance(now)
        self._running += 1
        return self._share

    def leave(self, now: float, mark: float) -> float:
        """A step ends; returns its share in seconds."""
        self._advance(now)
        self._running -= 1
        return self._share - mark

    def peek(self, now: float, mark: float) -> float:
        """The share so far of a step that goes on."""
        self._advance(now)
        return self._share - mark

    def _advance(self, now: float) -> None:
        if self._running:
            self.busy += now - self._last
            self._share += (now - self._last) / self._running
        self._last = now
