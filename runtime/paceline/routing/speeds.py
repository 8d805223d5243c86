"""What finished attempts teach about one pool: the time of prefill and of decode, and how workflows draft there.

A forward pass takes about as long whoever asks; how many tokens come out of it depends on the workflow far more
than on anything else. So a pool has seconds per pass, and a workflow has passes per token: 1 without speculation,
less with it. An engine that does not report what it accepted gives its passes by their time.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

PRIOR_PREFILL_SECONDS = 2e-4
PRIOR_PASS_SECONDS = 0.03
"""Only until the first attempt of the model has finished."""
KEPT_BY_POOL = 0.95
"""What an attempt leaves of the weight of earlier ones in a pool's times, and a workflow of earlier workflows."""
KEPT_BY_WORKFLOW = 0.5
"""The same for what a workflow showed at one age: its newest step counts as much as all before."""
PSEUDO_TOKENS = 64.0
"""Output tokens of its own after which a workflow is believed as much as its likes."""
RECENT_WORKFLOWS = 64
"""Workflows that a pool remembers."""
LIKENESS = 0.15
"""Workflows whose passes per token differ by this share are somewhat alike, by thrice as much not at all."""

UNKNOWN_LIKENESS = 0.1
"""Likeness of workflows that were never seen at the same age."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished attempt. None: not reported."""

    replica: str
    context_tokens: int
    """Prompt and output: what is in the replica's cache now."""
    uncached_tokens: int | None
    first_token_seconds: float | None
    output_tokens: int
    accepted_tokens: int | None
    decode_seconds: float | None


def age_of(step: int) -> int:
    """The age of a workflow at its step number `step`, by half octaves: 1, 2, 3, 4, 5-6, 7-9, 10-13, ..."""
    return round(2 * math.log2(step)) + 1


@dataclass(slots=True)
class Drafting:
    """How one workflow drafted in one pool, by age: output tokens and passes, the newest step weighing most."""

    by_age: dict[int, tuple[float, float]] = field(default_factory=dict)

    def add(self, age: int, tokens: float, passes: float) -> None:
        """Note a step."""
        known_tokens, known_passes = self.by_age.get(age, (0.0, 0.0))
        self.by_age[age] = (known_tokens * KEPT_BY_WORKFLOW + tokens, known_passes * KEPT_BY_WORKFLOW + passes)

    def at(self, age: int) -> float | None:
        """Passes per token at an age."""
        tokens, passes = self.by_age.get(age, (0.0, 0.0))
        return passes / tokens if tokens else None

    def latest(self, age: int) -> float | None:
        """Passes per token when last seen, not later than `age`."""
        return self.at(max((known for known in self.by_age if known <= age), default=0))

    def tokens_at(self, age: int) -> float:
        """Weight of what is known at an age."""
        return self.by_age.get(age, (0.0, 0.0))[0]

    def copy(self) -> Drafting:
        """The same, for a fork."""
        return Drafting(dict(self.by_age))


class Futures(list[tuple[float, float]]):
    """Possible passes per token, each with a weight."""

    def mean(self, value: Callable[[float], float]) -> float:
        """The expected value of a function of the passes per token."""
        return sum(weight * value(passes) for weight, passes in self) / sum(weight for weight, _ in self)


@dataclass(slots=True)
class _Line:
    """Least squares of seconds over tokens; earlier points fade."""

    n: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        keep = KEPT_BY_POOL
        self.n, self.x, self.y = self.n * keep + 1, self.x * keep + x, self.y * keep + y
        self.xx, self.xy = self.xx * keep + x * x, self.xy * keep + x * y

    def slope(self) -> float | None:
        """Seconds per token; the plain ratio while all points are about as long."""
        if not self.x:
            return None
        spread = self.n * self.xx - self.x**2
        fitted = (self.n * self.xy - self.x * self.y) / spread if spread > 0.1 * self.x**2 else 0.0
        return fitted if fitted > 0 else self.y / self.x


class PoolSpeed:
    """One pool of one model."""

    def __init__(self, profile: str) -> None:
        self.drafts = bool(profile)
        """A pool without a profile makes one pass per token, whoever asks."""
        self.workflows: OrderedDict[str, Drafting] = OrderedDict()
        """Of those that ran here lately."""
        self._prefill = _Line()
        self._passes = 0.0
        self._seconds = 0.0

    @property
    def prefill_seconds(self) -> float | None:
        """Seconds per uncached prompt token; None while unknown."""
        return self._prefill.slope()

    @property
    def pass_seconds(self) -> float | None:
        """Seconds per forward pass of decode; None while unknown."""
        return self._seconds / self._passes if self._passes else None

    def learn(self, workflow: str, drafting: Drafting, age: int, seen: Measured) -> None:
        """Note a finished attempt of a workflow whose `drafting` here is given."""
        if seen.first_token_seconds is not None and seen.uncached_tokens:
            self._prefill.add(seen.uncached_tokens, seen.first_token_seconds)
        tokens = seen.output_tokens - 1  # the first one came with the prefill
        if tokens < 1 or seen.decode_seconds is None:
            return
        passes = self._passes_of(tokens, seen.decode_seconds, seen.accepted_tokens)
        drafting.add(age, tokens, passes)
        self.workflows[workflow] = drafting
        self.workflows.move_to_end(workflow)
        if len(self.workflows) > RECENT_WORKFLOWS:
            self.workflows.popitem(last=False)
        unreported = self.drafts and seen.accepted_tokens is None
        self._passes = self._passes * KEPT_BY_POOL + (tokens if unreported else passes)
        self._seconds = self._seconds * KEPT_BY_POOL + seen.decode_seconds

    def _passes_of(self, tokens: int, seconds: float, accepted: int | None) -> float:
        if not self.drafts:
            return tokens
        if accepted is not None:
            return max(1, tokens - accepted)
        return seconds / self.pass_seconds if self.pass_seconds else tokens

    def futures(self, workflow: str, own: Drafting | None, age: int) -> Futures:
        """What may become of a workflow here; empty while nothing is known.

        It goes on as it was last seen, or as one of the recent workflows that drafted like it up to here did at
        this age. One that was never seen here may be like any of them.
        """
        if not self.drafts:
            return Futures([(1.0, 1.0)])
        others = self._recent(workflow)
        last = own.latest(age) if own else None
        if own is None or last is None:
            found = Futures((weight, rate) for weight, theirs in others if (rate := theirs.at(age)) is not None)
            return found or Futures(
                (weight, rate) for weight, theirs in others if (rate := theirs.latest(age)) is not None
            )
        known = own.tokens_at(age)
        result = Futures([(1.0, last)])
        for recency, theirs in others:
            rate = theirs.at(age)
            if rate is not None and (weight := recency * _likeness(own, theirs, age)):
                mixed = (known * last + PSEUDO_TOKENS * rate) / (known + PSEUDO_TOKENS)
                result.append((weight, mixed))
        return result

    def _recent(self, workflow: str) -> list[tuple[float, Drafting]]:
        """The other workflows that ran here lately, the latest weighing most."""
        weight, result = 1.0, []
        for name in reversed(self.workflows):
            if name != workflow:
                result.append((weight, self.workflows[name]))
                weight *= KEPT_BY_POOL
        return result


def _likeness(own: Drafting, theirs: Drafting, age: int) -> float:
    """From 0 to 1, by the latest age at which both were seen."""
    shared = max((known for known in own.by_age if known <= age and known in theirs.by_age), default=None)
    if shared is None:
        return UNKNOWN_LIKENESS
    mine, other = own.at(shared), theirs.at(shared)
    if not mine or not other:
        return 0.0
    apart = math.log(mine / other) / LIKENESS
    return math.exp(-apart * apart / 2)
