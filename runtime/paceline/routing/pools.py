"""Which pool of a model runs a step: the replicas with the same model and speculation profile are one pool.

Pools have separate KV caches, so a workflow that moves has everything prefilled again that is not resident in the
other pool. With nothing resident anywhere the pool of the least expected time is taken. In mid-workflow a switch
must save more decode time over the steps that remain than that prefill costs.

The expected time in a pool that the workflow is not in is its prefill, one step there, and the rest in whichever
pool is better by then: a step shows how the workflow drafts, and who does not like what it sees moves on. So a
pool can be worth a try that would not be worth a stay.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from paceline.routing.speeds import (
    PRIOR_PASS_SECONDS,
    PRIOR_PREFILL_SECONDS,
    Drafting,
    Futures,
    Measured,
    PoolSpeed,
    age_of,
)

MARGIN = 0.5
"""What a switch must save beyond its prefill, as a share of it: against flapping."""
TRIES = 3
"""Workflows by which a pool is tried at each age before its measurements are believed."""
RETRY_EVERY = 32
"""A pool that this many steps of an age have passed by is tried again."""
TRY_SHARE = 0.01
"""Of the time served, what trying may cost at most."""
KNOWN_WORKFLOWS = 1024
"""Workflows of a model that are remembered; the one that was idle longest is taken for ended."""
PRIOR_REMAINING = 8.0
PRIOR_WEIGHT = 4.0
"""Steps that a workflow goes on, until enough have ended; counts as this many ended workflows."""
PRIOR_OUTPUT = 200.0
"""Output tokens of a step, until a step has ended."""
PSEUDO_STEPS = 3.0
"""Steps after which a workflow's own mean output is believed as much as the model's."""
ENDED_WORKFLOWS = 256


class PoolReason(StrEnum):
    """Why a step runs in its pool. The first three: the least expected time, since no prefix had to be left."""

    FIRST_STEP = "first_step"
    FORK = "fork"
    COMPACTED = "compacted"
    """Nothing of the context is left in any cache: compacted, edited from the start, other tools."""
    STAYED = "stayed"
    SWITCHED = "switched"
    UNTRIED = "untried"
    """To measure a pool that was never used at this age of a workflow, or not for long."""
    NO_PLACE = "no_place"
    """The preferred pool is down or full."""
    ONLY_POOL = "only_pool"
    """No other pool may run the step."""


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """The pool, and what spoke for and against the other one.

    Both terms compare with the pool that the workflow is in, of a switch or of the best alternative to staying;
    where it is in none, with the best other pool. None where there is no other pool.
    """

    profile: str
    reason: PoolReason
    saving_seconds: float | None = None
    """Decode time that the other pool is expected to save over the remaining steps; negative: lose."""
    prefill_seconds: float | None = None
    """Time to prefill there what is not resident, less what staying has to prefill."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a step should go."""

    choice: PoolChoice
    replica: str | None = None
    """The replica of the pool that holds the workflow's prefix, or most of it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A step that looks for its pool. Workflows are named by keys that are unique over all tenants."""

    model: str
    workflow: str
    prompt_tokens: int
    carried_tokens: int
    """Ids at the start of the prompt that the workflow's context had before."""
    pools: Mapping[str, bool]
    """The pools that may run the step: whether a replica of each has a place for it now."""
    bound: str | None = None
    bound_profile: str | None = None
    """The replica that holds the prefix by the ledger, and its pool."""
    forked_from: str = ""


@dataclass(slots=True)
class _Visit:
    replica: str
    tokens: int


@dataclass(slots=True)
class _Known:
    """One workflow."""

    beginning: PoolReason | None = PoolReason.FIRST_STEP
    """How it began, until its first step has finished."""
    steps: int = 0
    """Of its own and of the history that it was forked from."""
    output: float = 0.0
    current: str | None = None
    visits: dict[str, _Visit] = field(default_factory=dict)
    drafting: dict[str, Drafting] = field(default_factory=dict)

    def fork(self) -> _Known:
        visits = {profile: _Visit(visit.replica, visit.tokens) for profile, visit in self.visits.items()}
        drafting = {profile: known.copy() for profile, known in self.drafting.items()}
        return _Known(PoolReason.FORK, self.steps, self.output, self.current, visits, drafting)

    def resident(self, profile: str) -> int:
        visit = self.visits.get(profile)
        return visit.tokens if visit else 0

    def replica(self, profile: str) -> str | None:
        visit = self.visits.get(profile)
        return visit.replica if visit and visit.tokens else None


@dataclass(slots=True)
class _Trials:
    """How often a pool was tried at one age, and how many steps have passed it by since."""

    done: int = 0
    passed_by: int = 0

    @property
    def due(self) -> bool:
        return self.done < TRIES or self.passed_by >= RETRY_EVERY


@dataclass(frozen=True, slots=True)
class _Expected:
    """Seconds from this step to the workflow's end, beginning in one pool."""

    prefill: float
    decode: float
    """Decode, with the prefill of a later switch where one is expected."""

    @property
    def total(self) -> float:
        return self.prefill + self.decode


class _Model:
    """The pools of one model."""

    def __init__(self) -> None:
        self.speeds: dict[str, PoolSpeed] = {}
        self.workflows: OrderedDict[str, _Known] = OrderedDict()
        self.lengths: deque[int] = deque(maxlen=ENDED_WORKFLOWS)
        self.steps = 0
        self.output = 0.0
        self.served_seconds = 0.0
        self.tried_seconds = 0.0
        self._trials: dict[tuple[str, int], _Trials] = {}

    def speed(self, profile: str) -> PoolSpeed:
        return self.speeds.setdefault(profile, PoolSpeed(profile))

    def trials(self, profile: str, age: int) -> _Trials:
        """A pool without drafts is the same at every age."""
        return self._trials.setdefault((profile, age if profile else 0), _Trials())

    def end(self, workflow: str) -> None:
        known = self.workflows.pop(workflow, None)
        if known and not known.beginning:
            self.lengths.append(known.steps)

    def remember(self, workflow: str, known: _Known) -> None:
        self.workflows[workflow] = known
        self.workflows.move_to_end(workflow)
        if len(self.workflows) > KNOWN_WORKFLOWS:
            self.end(next(iter(self.workflows)))

    def remaining(self, steps: int) -> float:
        """Steps that follow the one after `steps`: how many more ended workflows had that had that one."""
        more = [length - steps - 1 for length in self.lengths if length > steps]
        return (sum(more) + PRIOR_REMAINING * PRIOR_WEIGHT) / (len(more) + PRIOR_WEIGHT)

    def output_tokens(self, known: _Known) -> float:
        """Expected output tokens of a step."""
        mean = self.output / self.steps if self.steps else PRIOR_OUTPUT
        return (known.output + PSEUDO_STEPS * mean) / (known.steps + PSEUDO_STEPS)

    def prefill_seconds(self, profile: str) -> float:
        """Per token: of the pool, else of another one, which runs the same model."""
        return self._first(profile, "prefill_seconds", PRIOR_PREFILL_SECONDS)

    def pass_seconds(self, profile: str) -> float:
        """Per pass: of the pool, else of another one."""
        return self._first(profile, "pass_seconds", PRIOR_PASS_SECONDS)

    def _first(self, profile: str, name: str, prior: float) -> float:
        speeds = [self.speed(profile), *self.speeds.values()]
        found = (value for speed in speeds if (value := getattr(speed, name)) is not None)
        return next(found, prior)


class Pools:
    """Chooses pools, and learns from finished attempts. Holds soft state only: losing it costs time, not truth."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def choose(self, ask: Ask) -> Route:
        """Choose a pool for the next step of a workflow. `ask.pools` must not be empty."""
        model = self._models.setdefault(ask.model, _Model())
        known = self._known(model, ask)
        if len(ask.pools) > 1:
            choice = _Decision(model, known, ask).choice()
        else:
            choice = PoolChoice(next(iter(ask.pools)), PoolReason.ONLY_POOL)
        return Route(choice, known.replica(choice.profile))

    def learn(self, model: str, workflow: str, profile: str, seen: Measured) -> None:
        """Note a finished attempt."""
        books = self._models.setdefault(model, _Model())
        known = books.workflows.get(workflow) or _Known()
        books.remember(workflow, known)
        known.beginning = None
        known.steps += 1
        if seen.uncached_tokens is None:
            prompt = seen.context_tokens - seen.output_tokens
            seen = replace(seen, uncached_tokens=max(0, prompt - known.resident(profile)))
        drafting = known.drafting.setdefault(profile, Drafting())
        books.speed(profile).learn(workflow, drafting, age_of(known.steps), seen)
        known.current = profile
        known.visits[profile] = _Visit(seen.replica, seen.context_tokens)
        known.output += seen.output_tokens
        books.steps += 1
        books.output += seen.output_tokens
        books.served_seconds += (seen.first_token_seconds or 0.0) + (seen.decode_seconds or 0.0)

    def end(self, model: str, workflow: str) -> None:
        """Note that a workflow has ended; does nothing for one that is not known."""
        if books := self._models.get(model):
            books.end(workflow)

    def _known(self, model: _Model, ask: Ask) -> _Known:
        """The workflow, its visits cut to what the prompt still begins with."""
        known = model.workflows.get(ask.workflow)
        if known is None:
            origin = model.workflows.get(ask.forked_from)
            known = origin.fork() if origin and ask.carried_tokens else _from_ledger(ask)
            model.remember(ask.workflow, known)
        for visit in known.visits.values():
            visit.tokens = min(visit.tokens, ask.carried_tokens)
        return known


def _from_ledger(ask: Ask) -> _Known:
    """A workflow that was not seen here yet: a new one, or one from before a restart."""
    known = _Known()
    if ask.bound and ask.bound_profile is not None and ask.carried_tokens:
        known.beginning = PoolReason.FORK if ask.forked_from else None
        known.current = ask.bound_profile
        known.visits[ask.bound_profile] = _Visit(ask.bound, ask.carried_tokens)
    return known


class _Decision:
    """One choice."""

    def __init__(self, model: _Model, known: _Known, ask: Ask) -> None:
        self._model, self._known, self._ask = model, known, ask
        self._why = known.beginning or (PoolReason.STAYED if ask.carried_tokens else PoolReason.COMPACTED)
        self._age = age_of(known.steps + 1)
        self._output = model.output_tokens(known)
        self._remaining = model.remaining(known.steps)
        current = known.current if ask.carried_tokens else None
        self._current = current if current in ask.pools else None
        self._futures = {profile: self._futures_in(profile) for profile in ask.pools}
        self._expected = {profile: self._expect(profile) for profile in ask.pools}

    def choice(self) -> PoolChoice:
        """The pool to take, and what it was compared with."""
        wanted, reason = self._untried() or self._best(list(self._ask.pools))
        if not self._ask.pools[wanted] and any(self._ask.pools.values()):
            wanted, _ = self._best([profile for profile, place in self._ask.pools.items() if place])
            reason = PoolReason.NO_PLACE
        for profile in self._ask.pools:
            trials = self._model.trials(profile, self._age)
            trials.passed_by = 0 if profile == wanted else trials.passed_by + 1
        saving, prefill = self._terms(wanted)
        return PoolChoice(wanted, reason, saving, prefill)

    def _best(self, profiles: list[str]) -> tuple[str, PoolReason]:
        """The pool of the least expected time; one that must be switched to has to save enough."""
        best = min(profiles, key=lambda profile: (self._expected[profile].total, profile))
        if self._why is not PoolReason.STAYED:
            return best, self._why
        if self._current not in profiles:
            return best, PoolReason.NO_PLACE
        saving, prefill = self._against(self._current, best)
        if best != self._current and saving > (1 + MARGIN) * prefill:
            return best, PoolReason.SWITCHED
        return self._current, PoolReason.STAYED

    def _untried(self) -> tuple[str, PoolReason] | None:
        """A pool that is to be measured, if the time for it is there."""
        model = self._model
        due = [
            (trials.done, profile, trials)
            for profile, place in self._ask.pools.items()
            if place and (trials := model.trials(profile, self._age)).due
        ]
        if not due:
            return None
        _, profile, trials = min(due, key=lambda item: item[:2])
        best, _ = self._best([name for name, place in self._ask.pools.items() if place])
        cost = max(0.0, self._expected[profile].total - self._expected[best].total)
        free = not self._known.steps and trials.done < TRIES
        if not free and model.tried_seconds + cost > TRY_SHARE * model.served_seconds:
            return None
        model.tried_seconds += cost
        trials.done += 1
        return (profile, PoolReason.UNTRIED) if profile != best else None

    def _terms(self, wanted: str) -> tuple[float, float]:
        """Saving and prefill of the other pool against where the workflow is."""
        home = wanted if self._current is None else self._current
        others = [profile for profile in self._ask.pools if profile != home]
        other = wanted if wanted != home else min(others, key=lambda profile: self._expected[profile].total)
        return self._against(home, other)

    def _against(self, home: str, other: str) -> tuple[float, float]:
        here, there = self._expected[home], self._expected[other]
        return here.decode - there.decode, there.prefill - here.prefill

    def _futures_in(self, profile: str) -> Futures:
        own = self._known.drafting.get(profile)
        return self._model.speed(profile).futures(self._ask.workflow, own, self._age) or Futures([(1.0, 1.0)])

    def _step_seconds(self, profile: str, passes: float) -> float:
        return self._output * passes * self._model.pass_seconds(profile)

    def _prefill(self, profile: str, context: float) -> float:
        missing = max(0.0, context - self._known.resident(profile))
        return missing * self._model.prefill_seconds(profile)

    def _mean_step(self, profile: str) -> float:
        return self._step_seconds(profile, self._futures[profile].mean(float))

    def _expect(self, profile: str) -> _Expected:
        """Staying is for good; elsewhere it is one step, then the rest there or in the other pool if better."""
        prefill = self._prefill(profile, self._ask.prompt_tokens)
        if profile == self._current and self._why is PoolReason.STAYED:
            return _Expected(prefill, (1 + self._remaining) * self._mean_step(profile))
        context = self._ask.prompt_tokens + self._output
        others = [name for name in self._ask.pools if name != profile]
        leave = min(self._prefill(name, context) + self._remaining * self._mean_step(name) for name in others)
        decode = self._futures[profile].mean(
            lambda passes: (step := self._step_seconds(profile, passes)) + min(self._remaining * step, leave)
        )
        return _Expected(prefill, decode)
