"""Placement: the replica that holds the prefix, else the least loaded one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class ReplicaPhase(StrEnum):
    """Whether a replica can take steps."""

    STARTING = "starting"
    READY = "ready"
    DOWN = "down"


@dataclass(slots=True)
class ReplicaLoad:
    """One replica as the router sees it; `running` never exceeds `capacity` (concurrent steps)."""

    name: str
    model: str
    capacity: int
    phase: ReplicaPhase = ReplicaPhase.STARTING
    running: int = 0

    @property
    def free(self) -> bool:
        """Whether it can take a step now."""
        return self.phase is ReplicaPhase.READY and self.running < self.capacity


def choose(
    replicas: Iterable[ReplicaLoad], bound: str | None, preferred: frozenset[str] = frozenset()
) -> ReplicaLoad | None:
    """Return the replica to run on now, or None to wait.

    A workflow bound to a ready replica waits for it, since its prefix is there. When that replica is not ready
    the workflow moves: to a preferred replica with a free place, else to any. Ties go to the name that sorts
    first, so that placement is reproducible.
    """
    candidates = sorted(
        replicas,
        key=lambda replica: (replica.name not in preferred, replica.running / replica.capacity, replica.name),
    )
    for replica in candidates:
        if replica.name == bound and replica.phase is ReplicaPhase.READY:
            return replica if replica.free else None
    return next((replica for replica in candidates if replica.free), None)
