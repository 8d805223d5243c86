"""Which prompt tokens of a workflow were computed again, why, and what that cost.

Two kinds: tokens that were carried as ids but were not in the cache, and tokens rendered in place of history that
the context had. Of the second kind new text is part, too, so they are an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeVar

from paceline.workflow.model import ReuseBreak, Step, StepState, WorkflowMatch
from paceline.workflow.remedies import CACHE_ONLY, NOT_CONTENT, REMEDIES, changed, moved

_Number = TypeVar("_Number", int, float)
MissPrice = Callable[[int], int | None]
"""Nano-USD that so many prompt tokens cost more computed than cached; None without a price."""


@dataclass(frozen=True, slots=True)
class Again:
    """Tokens of one prompt that were computed again for one reason. None: unknown."""

    reason: ReuseBreak
    detail: str
    start: int
    """Position in the prompt of the first of them."""
    tokens: int
    at_most: bool
    """Whether new text may be among them."""
    seconds: float | None
    """Estimate: the step's own time to its first token, in proportion."""
    list_nanos: int | None
    infrastructure_nanos: int | None
    """Estimate: the step's infrastructure cost, in proportion to the time."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step. None: unknown, as of a step without an answer or from an engine that reports no cached tokens."""

    number: int
    step_id: str
    state: StepState
    break_reason: ReuseBreak | None
    prompt_tokens: int | None
    carried_tokens: int | None
    cached_tokens: int | None
    rendered_tokens: int | None
    rounding_tokens: int | None
    """Carried tokens that no whole block of the cache held: they are always computed again."""
    again_tokens: int | None
    """Computed again, without rounding; at most."""
    block_tokens: int | None
    """Size of the cache's blocks; where that was not kept, as the counts show it."""
    again: tuple[Again, ...]
    match: WorkflowMatch | None
    """How the workflow was found; None when the client named it."""


@dataclass(frozen=True, slots=True)
class Cause:
    """All turns of one reason. Sums have what is known; None where nothing is."""

    reason: ReuseBreak
    turns: int
    tokens: int
    at_most: bool
    seconds: float | None
    list_nanos: int | None
    infrastructure_nanos: int | None
    incomplete: bool
    """Whether a sum lacks some of the turns."""
    detail: str
    """The commonest one."""
    remedy: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A workflow's turns, and the causes, largest first."""

    turns: tuple[Turn, ...]
    causes: tuple[Cause, ...]
    prompt_tokens: int
    rounding_tokens: int
    again_tokens: int
    unknown_turns: int
    """Turns of which it is not known what was computed again."""


def explain(
    steps: Sequence[Step], outside: Iterable[Step], draft_tokens: Mapping[str, int], miss_price: MissPrice
) -> Explanation:
    """Explain the steps of a workflow, oldest first.

    `outside` are parents that other workflows have. `draft_tokens` is how much each speculation profile drafts at
    once: that much of an answer's end is not yet in the cache. Where the size of blocks was not kept, it is the
    largest that fits all counts of cached tokens, so with few turns more may count as rounding than is.
    """
    others = tuple(outside)
    guess = gcd(*(step.usage.cached_prompt or 0 for step in (*others, *steps))) or None
    known = {step.step_id: step for step in (*others, *steps)}
    turns, before = [], None
    for number, step in enumerate(steps, 1):
        parent = known.get(step.parent_step_id or "", before)
        block = (step.reuse.block_tokens if step.reuse else None) or guess
        reader = _Reader(step, parent, before, block, draft_tokens.get(step.speculation.profile, 0), miss_price)
        turns.append(reader.turn(number))
        before = step if step.state is StepState.FINISHED else before
    causes = [_cause(reason, turns) for reason in ReuseBreak if _of(reason, turns)]
    return Explanation(
        turns=tuple(turns),
        causes=tuple(sorted(causes, key=lambda cause: -cause.tokens)),
        prompt_tokens=sum(turn.prompt_tokens or 0 for turn in turns),
        rounding_tokens=sum(turn.rounding_tokens or 0 for turn in turns),
        again_tokens=sum(cause.tokens for cause in causes),
        unknown_turns=sum(turn.again_tokens is None for turn in turns),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one step."""

    step: Step
    before: Step | None
    """Its parent."""
    latest: Step | None
    """The step that had finished last: the client may have gone back behind it."""
    block: int | None
    draft_tokens: int
    miss_price: MissPrice

    def turn(self, number: int) -> Turn:
        step, reuse, cached = self.step, self.step.reuse, self.step.usage.cached_prompt
        unknown = reuse is None or cached is None
        rounding = None if unknown else self._rounding()
        parts = () if unknown else tuple(part for part in (self._lost(), self._rewritten()) if part)
        unknown = unknown or self._dropped() is None
        return Turn(
            number=number,
            step_id=step.step_id,
            state=step.state,
            break_reason=reuse.break_reason if reuse else None,
            prompt_tokens=reuse.prompt_tokens if reuse else None,
            carried_tokens=reuse.carried_tokens if reuse else None,
            cached_tokens=cached,
            rendered_tokens=reuse.rendered_tokens if reuse else None,
            rounding_tokens=rounding,
            again_tokens=None if unknown else sum(part.tokens for part in parts),
            block_tokens=self.block,
            again=parts,
            match=step.match,
        )

    @property
    def _reason(self) -> ReuseBreak | None:
        return self.step.reuse.break_reason if self.step.reuse else None

    @property
    def _carried(self) -> int:
        return self.step.reuse.carried_tokens if self.step.reuse else 0

    @property
    def _cached(self) -> int:
        return self.step.usage.cached_prompt or 0

    def _dropped(self) -> int | None:
        """Tokens of the context so far that are not in their place; a reason that keeps the context has none."""
        if self._reason is None or self._reason in NOT_CONTENT:
            return 0
        return self.step.reuse.dropped_tokens if self.step.reuse else None

    def _rounding(self) -> int:
        """Carried tokens behind the last block that could be cached: the last token of a context was never
        computed, nor are blocks cached that the last draft filled. Where the runtime named no reason, all is."""
        missing = max(0, self._carried - self._cached)
        if self._reason in {None, ReuseBreak.UNCLOSED_TURN}:
            return missing
        if self.block is None:
            return 0
        whole = max(0, self._carried - 1 - self.draft_tokens) // self.block * self.block
        return min(missing, self._carried - whole)

    def _lost(self) -> Again | None:
        """What was carried and is missing in the cache. A change of content hides why: the replicas tell."""
        tokens = max(0, self._carried - self._cached) - self._rounding()
        reason = self._reason
        if reason not in CACHE_ONLY:
            elsewhere = self.before is not None and self.before.replica != self.step.replica
            reason = ReuseBreak.MOVED if elsewhere else ReuseBreak.EVICTED
        detail = moved(self.step, self.before) if reason is ReuseBreak.MOVED else ""
        assert reason  # noqa: S101 - for the type checker: no reason is none of CACHE_ONLY
        return self._again(reason, detail, self._cached, tokens)

    def _rewritten(self) -> Again | None:
        """What was rendered, and is not cached, where the context had something else."""
        reason, dropped = self._reason, self._dropped()
        if self.step.reuse is None or reason is None or not dropped:
            return None
        start = max(self._carried, self._cached)
        tokens = min(dropped, self.step.reuse.prompt_tokens - start)
        return self._again(
            reason, changed(reason, self.step, self.before, self.latest), start, tokens, at_most=True
        )

    def _again(
        self, reason: ReuseBreak, detail: str, start: int, tokens: int, *, at_most: bool = False
    ) -> Again | None:
        if tokens <= 0:
            return None
        seconds = self._seconds(tokens)
        return Again(
            reason=reason,
            detail=detail,
            start=start,
            tokens=tokens,
            at_most=at_most,
            seconds=seconds,
            list_nanos=self.miss_price(tokens),
            infrastructure_nanos=self._infrastructure(seconds),
        )

    def _seconds(self, tokens: int) -> float | None:
        timings, uncached = self.step.timings, self.step.usage.uncached_prompt
        if timings is None or timings.first_token is None or not uncached:
            return None
        return timings.first_token * tokens / uncached

    def _infrastructure(self, seconds: float | None) -> int | None:
        timings, nanos = self.step.timings, self.step.cost.infrastructure_nanos
        if seconds is None or nanos is None or timings is None or not timings.first_token:
            return None
        return round(nanos * seconds / (timings.first_token + (timings.decode or 0.0)))


def _known_sum(values: Iterable[_Number | None]) -> _Number | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def _of(reason: ReuseBreak, turns: Iterable[Turn]) -> list[Again]:
    return [part for turn in turns for part in turn.again if part.reason is reason]


def _cause(reason: ReuseBreak, turns: Iterable[Turn]) -> Cause:
    parts = _of(reason, turns)
    seconds = [part.seconds for part in parts]
    amounts = [part.list_nanos for part in parts]
    shares = [part.infrastructure_nanos for part in parts]
    return Cause(
        reason=reason,
        turns=len(parts),
        tokens=sum(part.tokens for part in parts),
        at_most=any(part.at_most for part in parts),
        seconds=_known_sum(seconds),
        list_nanos=_known_sum(amounts),
        infrastructure_nanos=_known_sum(shares),
        incomplete=any(0 < values.count(None) < len(parts) for values in (seconds, amounts, shares)),
        detail=Counter(part.detail for part in parts).most_common(1)[0][0],
        remedy=REMEDIES[reason],
    )
