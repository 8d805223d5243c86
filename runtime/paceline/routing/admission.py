"""Admission: never more steps on a replica than it takes; the rest waits, tenants in turn, first come first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.routing.placement import ReplicaLoad, ReplicaPhase, choose


@dataclass(eq=False, slots=True)
class Waiter:
    """A step that wants a place."""

    tenant: str
    model: str
    bound: str | None = None
    """The replica that holds its prefix."""
    preferred: frozenset[str] = frozenset()
    """The replicas of the pool that was chosen for it."""
    barred: frozenset[str] = frozenset()
    """Replicas that must not run it."""


class Admission:
    """Replicas, their load and the waiting steps. Every method that frees room returns who was admitted where."""

    def __init__(self) -> None:
        self.replicas: dict[str, ReplicaLoad] = {}
        self._waiting: OrderedDict[str, list[Waiter]] = OrderedDict()

    def add(self, replica: ReplicaLoad) -> None:
        """Register a replica. Names are unique."""
        self.replicas[replica.name] = replica

    def request(self, waiter: Waiter) -> ReplicaLoad | None:
        """Take a place at once, or join the queue and return None.

        Nobody is overtaken: a free place means that no waiting step could use it.
        """
        replica = self._choose(waiter)
        if replica:
            replica.running += 1
            return replica
        self._waiting.setdefault(waiter.tenant, []).append(waiter)
        return None

    def withdraw(self, waiter: Waiter) -> None:
        """Leave the queue; does nothing for a step that is not in it."""
        queue = self._waiting.get(waiter.tenant, [])
        if waiter in queue:
            queue.remove(waiter)
        if not queue:
            self._waiting.pop(waiter.tenant, None)

    def release(self, name: str) -> list[tuple[Waiter, ReplicaLoad]]:
        """Give a place back and admit whoever can use it."""
        self.replicas[name].running -= 1
        return self._admit()

    def set_phase(self, name: str, phase: ReplicaPhase) -> list[tuple[Waiter, ReplicaLoad]]:
        """Note that a replica changed and admit whoever can run now."""
        self.replicas[name].phase = phase
        return self._admit()

    def waiting(self, model: str) -> int:
        """How many steps wait for this model."""
        return sum(1 for waiter in self._in_turn() if waiter.model == model)

    def position(self, waiter: Waiter) -> int:
        """How many steps of the same model are ahead of this one."""
        ahead = 0
        for other in self._in_turn():
            if other is waiter:
                return ahead
            ahead += other.model == waiter.model
        return 0

    def phase_for(self, waiter: Waiter) -> ReplicaPhase | None:
        """The best phase among the replicas that may run a step; None when there are none."""
        phases = {replica.phase for replica in self._serving(waiter)}
        order = (ReplicaPhase.READY, ReplicaPhase.STARTING, ReplicaPhase.DOWN)
        return next((phase for phase in order if phase in phases), None)

    def _serving(self, waiter: Waiter) -> list[ReplicaLoad]:
        return [
            replica
            for replica in self.replicas.values()
            if replica.model == waiter.model and replica.name not in waiter.barred
        ]

    def _choose(self, waiter: Waiter) -> ReplicaLoad | None:
        return choose(self._serving(waiter), waiter.bound, waiter.preferred)

    def _in_turn(self) -> Iterator[Waiter]:
        """All waiting steps in the order of admission: one of each tenant, then the next of each."""
        depth = max(map(len, self._waiting.values()), default=0)
        for index in range(depth):
            for queue in self._waiting.values():
                if index < len(queue):
                    yield queue[index]

    def _admit(self) -> list[tuple[Waiter, ReplicaLoad]]:
        admitted = []
        while pair := self._next():
            waiter, replica = pair
            replica.running += 1
            self.withdraw(waiter)
            if waiter.tenant in self._waiting:
                self._waiting.move_to_end(waiter.tenant)
            admitted.append(pair)
        return admitted

    def _next(self) -> tuple[Waiter, ReplicaLoad] | None:
        if not any(replica.free for replica in self.replicas.values()):
            return None
        for waiter in self._in_turn():
            if replica := self._choose(waiter):
                return waiter, replica
        return None
