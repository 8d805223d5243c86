"""The replicas at work: admission with waiting callers, engine ports, and shared accelerator time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from paceline.engines.base import Engine, EngineInfo
from paceline.errors import EngineUnavailable, QueueFull
from paceline.routing.admission import Admission, Waiter
from paceline.routing.placement import ReplicaLoad, ReplicaPhase
from paceline.workflow.events import Phase
from paceline.workflow.shares import SharedTime


@dataclass(slots=True)
class Replica:
    """One engine with what the runtime knows about it. `info` is set by the monitor once the engine answered."""

    load: ReplicaLoad
    engine: Engine
    instance_type: str = ""
    speculation_profile: str = ""
    draft_tokens: int = 0
    """Most tokens that it drafts at once (K)."""
    greedy_only: str = ""
    """Why it must not be asked to sample; empty if it may."""
    may_enforce: bool = True
    """Whether it may be asked for structured outputs."""
    info: EngineInfo | None = None
    detail: str = ""
    """What a starting engine is doing, or why it is down."""
    suspect: Callable[[], None] = lambda: None
    """Called when a step lost its stream, so that somebody looks at the engine."""
    time: SharedTime = field(default_factory=SharedTime)

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.load.name

    @property
    def enforces(self) -> bool:
        """Whether it has structured outputs, as far as is known."""
        return self.may_enforce and self.info is not None and self.info.structured_outputs


@dataclass(eq=False, slots=True)
class _Seat:
    waiter: Waiter
    granted: asyncio.Future[ReplicaLoad]
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class NoSparePlace(Exception):
    """Every place is needed for steps."""


@dataclass(eq=False, slots=True)
class _Guest:
    """Who holds a place that no step uses; it does not count as running."""

    load: ReplicaLoad
    stay: asyncio.Timeout


@dataclass(frozen=True, slots=True)
class Waiting:
    """A step waits: for which phase, and behind how many others."""

    phase: Phase
    position: int


class Replicas:
    """All replicas. Waiting callers are woken when their position or an engine's phase changes."""

    def __init__(self, max_queued: int) -> None:
        self._admission = Admission()
        self._replicas: dict[str, Replica] = {}
        self._seats: dict[Waiter, _Seat] = {}
        self._guests: list[_Guest] = []
        self._max_queued = max_queued

    def add(self, replica: Replica) -> None:
        """Register a replica."""
        self._replicas[replica.name] = replica
        self._admission.add(replica.load)

    def all(self) -> list[Replica]:
        """Every replica, in the order of the configuration."""
        return list(self._replicas.values())

    def serving(self, model: str) -> list[Replica]:
        """The replicas of a model, in the order of the configuration."""
        return [replica for replica in self._replicas.values() if replica.load.model == model]

    def queued(self) -> int:
        """How many steps wait for a place."""
        return len(self._seats)

    def set_phase(self, name: str, phase: ReplicaPhase, detail: str = "") -> None:
        """Note what happened to an engine."""
        self._replicas[name].detail = detail
        self._grant(self._admission.set_phase(name, phase))

    def context_limit(self, model: str) -> int | None:
        """Longest context in tokens that every known replica of the model takes; None while none is known."""
        limits = [replica.info.max_model_len for replica in self.serving(model) if replica.info]
        return min(limits, default=None)

    @asynccontextmanager
    async def place(
        self, waiter: Waiter, on_queued: Callable[[], Awaitable[None]], on_wait: Callable[[Waiting], None]
    ) -> AsyncIterator[Replica]:
        """Hold a place on a replica while the block runs.

        A step that has to wait first awaits `on_queued`, then calls `on_wait` at each change.
        Raises `EngineUnavailable` when every replica that may run it is down, `QueueFull` when too many wait.
        """
        load = self._admission.request(waiter) or await self._wait(waiter, on_queued, on_wait)
        try:
            self._send_guests_away(load)
            yield self._replicas[load.name]
        finally:
            self._grant(self._admission.release(load.name))

    @asynccontextmanager
    async def spare(self, names: Iterable[str]) -> AsyncIterator[Replica]:
        """Hold a place that no step uses on one of these replicas while the block runs.

        Steps do not see it: one that is placed there takes the place at once, and the block is cancelled.
        Raises `NoSparePlace` then, and when there is no such place now or a step waits for the model.
        """
        replica = next(
            (self._replicas[name] for name in names if self._has_spare(self._replicas[name].load)), None
        )
        if replica is None:
            raise NoSparePlace("no replica that fits has a free place")
        guest = _Guest(replica.load, asyncio.timeout(None))
        self._guests.append(guest)
        try:
            async with guest.stay:
                yield replica
        except TimeoutError:
            if guest.stay.expired():
                raise NoSparePlace("a step took the place") from None
            raise
        finally:
            if guest in self._guests:
                self._guests.remove(guest)

    def _has_spare(self, load: ReplicaLoad) -> bool:
        return (
            load.free
            and load.running + len(self._guests_on(load)) < load.capacity
            and not self._admission.waiting(load.model)
        )

    def _guests_on(self, load: ReplicaLoad) -> list[_Guest]:
        return [guest for guest in self._guests if guest.load is load]

    def _send_guests_away(self, load: ReplicaLoad) -> None:
        """Make room for the steps of a replica."""
        guests = self._guests_on(load)
        for guest in guests[max(0, load.capacity - load.running) :]:
            self._guests.remove(guest)
            guest.stay.reschedule(asyncio.get_running_loop().time())

    async def _wait(
        self, waiter: Waiter, on_queued: Callable[[], Awaitable[None]], on_wait: Callable[[Waiting], None]
    ) -> ReplicaLoad:
        seat = _Seat(waiter, asyncio.get_running_loop().create_future())
        self._seats[waiter] = seat
        try:
            self._check_room()
            self._waiting(waiter)
            await on_queued()
            while not seat.granted.done():
                seat.changed.clear()
                on_wait(self._waiting(waiter))
                await seat.changed.wait()
            return seat.granted.result()
        except BaseException:
            self._give_up(seat)
            raise
        finally:
            self._seats.pop(waiter, None)

    def _check_room(self) -> None:
        if len(self._seats) > self._max_queued:
            raise QueueFull(f"{self._max_queued} steps are waiting already; try again later")

    def _waiting(self, waiter: Waiter) -> Waiting:
        phase = self._admission.phase_for(waiter)
        if phase in {None, ReplicaPhase.DOWN}:
            serving = (r for r in self.serving(waiter.model) if r.name not in waiter.barred)
            details = "; ".join(f"{r.name}: {r.detail or 'down'}" for r in serving)
            raise EngineUnavailable(f"no replica of {waiter.model} is up ({details or 'none configured'})")
        starting = phase is ReplicaPhase.STARTING
        return Waiting(Phase.ENGINE_STARTING if starting else Phase.QUEUED, self._admission.position(waiter))

    def _grant(self, admitted: list[tuple[Waiter, ReplicaLoad]]) -> None:
        for waiter, load in admitted:
            self._seats[waiter].granted.set_result(load)
        for seat in self._seats.values():
            seat.changed.set()

    def _give_up(self, seat: _Seat) -> None:
        if seat.granted.done():
            self._grant(self._admission.release(seat.granted.result().name))
        else:
            self._admission.withdraw(seat.waiter)


class AcceleratorShare:
    """The share of a replica's time that one attempt has taken, in seconds."""

    def __init__(self, time_: SharedTime) -> None:
        self._time = time_
        self._mark = time_.enter(time.monotonic())
        self._final: float | None = None

    @property
    def seconds(self) -> float:
        """The share so far, or the final one."""
        return self._final if self._final is not None else self._time.peek(time.monotonic(), self._mark)

    def stop(self) -> None:
        """End the attempt; further calls change nothing."""
        if self._final is None:
            self._final = self._time.leave(time.monotonic(), self._mark)
