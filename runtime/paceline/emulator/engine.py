"""The emulated scheduler: one asyncio task that advances all requests step by step, as vLLM's engine core does.

Model. At most `max_num_seqs` requests run; the rest waits, first come first served or by (priority, arrival). A
request starts when the block cache has room for its prompt. One step computes up to `max_num_batched_tokens`
uncached prompt tokens, in the order of starting, and one decode step of every request past its prompt, and lasts

    prefill_token * computed prompt tokens + prefill_fixed * started requests
    + step + step_per_request * (batch - 1) + step_per_draft * K * batch

seconds times `scale`. A prompt's last step emits its first token. Each decode step emits the accepted drafts and
one token. When blocks run out, the request that started last, or with priorities the least urgent one, loses its
blocks and waits again at the head (preemption). Aborted requests leave at the next step; their full
blocks stay cached.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prometheus_client.registry import Collector

from paceline.emulator.kvcache import BlockCache, CachedSequence
from paceline.emulator.output import Plan
from paceline.emulator.settings import Settings
from paceline.emulator.speculation import AcceptanceCurve, DraftCounts, Drafter, PromptLookup

DRAFT_MODEL_ACCEPTANCE = 0.8


@dataclass(slots=True, eq=False)
class Request:
    """One request in the engine. `chunks` carries (first, end) ranges of the plan's ids, then None."""

    request_id: str
    prompt: bytes
    """uint32 little-endian ids."""
    plan: Plan
    salt: str = ""
    priority: int = 0
    session_id: str | None = None
    seed: int = 0
    hold_after: int | None = None
    """Emit so many tokens and then nothing more, until the client leaves."""
    chunks: asyncio.Queue[tuple[int, int] | None] = field(default_factory=asyncio.Queue)
    arrived: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    """Monotonic seconds; 0 until it happens."""
    emitted: int = 0
    cached_tokens: int | None = None
    drafts: DraftCounts | None = None
    draft_steps: list[tuple[int, int]] = field(default_factory=list)
    """(accepted, drafted) of each step with a draft."""
    finish_reason: str = ""
    """Empty while it runs."""
    sequence: CachedSequence | None = None
    rng: random.Random = field(default_factory=random.Random)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt) // 4

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one is emitted."""
        return self.sequence.tokens - self.sequence.computed if self.sequence else 0

    @property
    def prefilling(self) -> bool:
        """Whether more is to be computed than the last emitted token."""
        return not self.emitted or self.pending > 1

    @property
    def starting(self) -> bool:
        """Whether nothing was computed yet."""
        return self.sequence is not None and self.sequence.computed == self.sequence.hit_tokens

    @property
    def held(self) -> bool:
        """Whether it shall emit nothing more."""
        return self.hold_after is not None and self.emitted >= self.hold_after


@dataclass(slots=True)
class Totals:
    """Counters since the start, as /metrics shows them."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    preemptions: int = 0
    aborts: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    drafts: DraftCounts = field(default_factory=lambda: DraftCounts.empty(0))


class EmulatedEngine:
    """Runs requests until closed. `on_end` is called with every request that ended, aborted ones included."""

    def __init__(self, settings: Settings, on_end: Callable[[Request], None]) -> None:
        self.settings = settings
        self.cache = BlockCache(settings.num_blocks, settings.block_size)
        self.drafter = make_drafter(settings)
        self.totals = Totals(drafts=DraftCounts.empty(self.drafter.most if self.drafter else 0))
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self._on_end = on_end
        self._work = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="emulated-engine")

    @property
    def more_metrics(self) -> Sequence[Collector]:
        """Metrics beside vLLM's own."""
        return ()

    async def close(self) -> None:
        """Stop the loop and end what runs."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for request in [*self.running, *self.waiting]:
            self.abort(request)
        self._sweep()

    def submit(self, request: Request) -> None:
        """Queue a request; its chunks come through `request.chunks`."""
        request.arrived = time.monotonic()
        request.rng.seed(request.seed ^ zlib.crc32(request.prompt))
        if self.drafter:
            request.drafts = DraftCounts.empty(self.drafter.most)
        self.waiting.append(request)
        if self.settings.priority_scheduling:
            self.waiting.sort(key=_urgency)
        self._work.set()

    def abort(self, request: Request) -> None:
        """End a request at the next step. Its reader gets no more chunks."""
        if not request.finish_reason:
            request.finish_reason = "abort"
            self._work.set()

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            due = time.monotonic()
            while step := self._next_step():
                # From the moment the last step was due, so that waking late does not add up over a reply.
                due = max(due + self._seconds(step) * self.settings.timing.scale, time.monotonic())
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                for request, tokens in step:
                    self._advance(request, tokens)

    def _next_step(self) -> list[tuple[Request, int]]:
        """What to compute now: requests and their numbers of tokens. Empty: nothing can be done."""
        self._sweep()
        self._admit()
        budget = self.settings.max_num_batched_tokens
        step = []
        for request in self.running:
            tokens = min(request.pending, max(budget, 1)) if request.prefilling else 1
            if request.held or (request.prefilling and budget <= 0):
                continue
            budget -= tokens
            step.append((request, tokens))
        return step

    def _seconds(self, step: list[tuple[Request, int]]) -> float:
        timing = self.settings.timing
        prefills = [(request, tokens) for request, tokens in step if request.prefilling]
        computed = sum(tokens for _, tokens in prefills)
        starts = sum(1 for request, _ in prefills if request.starting)
        decode = timing.decode_step(len(step) - len(prefills), self.drafter.most if self.drafter else 0)
        return computed * timing.prefill_token + starts * timing.prefill_fixed + decode

    def _advance(self, request: Request, tokens: int) -> None:
        """Compute tokens of one request; the last pending one emits."""
        if request.finish_reason or request.sequence is None:  # aborted or preempted while the step ran
            return
        if request.prefilling:
            self.cache.compute(request.sequence, request.sequence.computed + tokens)
            if request.pending:
                return
            if not request.emitted:
                self.totals.prompt_tokens += request.prompt_tokens
            self._emit(request, 1)
        else:
            self._emit(request, 1 + self._accept(request, request.sequence))

    def _accept(self, request: Request, sequence: CachedSequence) -> int:
        """Draft and verify; returns the accepted tokens."""
        if self.drafter is None or request.drafts is None:
            return 0
        upcoming = request.plan.upcoming[request.emitted :]
        scripted = request.plan.acceptance[: self.drafter.most]
        drafter = self._scripted(scripted, self.drafter) if scripted else self.drafter
        drafted, accepted = drafter.draft(sequence.ids, upcoming, request.rng)
        if drafted:
            request.drafts.add(drafted, accepted)
            request.draft_steps.append((accepted, drafted))
            self.totals.drafts.add(drafted, accepted)
        return accepted

    def _scripted(self, rates: tuple[float, ...], drafter: Drafter) -> Drafter:
        """What drafts in place of `drafter` where a script has rates of its own."""
        del drafter
        return AcceptanceCurve(rates)

    def _emit(self, request: Request, count: int) -> None:
        first, ids = request.emitted, request.plan.ids
        end = min(first + count, len(ids), request.hold_after or len(ids))
        while request.sequence and not self.cache.append(request.sequence, array("I", ids[first:end]).tobytes()):
            self._preempt(self._least_urgent())
        if request.sequence is None:
            return
        request.last_token = time.monotonic()
        request.first_token = request.first_token or request.last_token
        request.emitted = end
        self.totals.generation_tokens += end - first
        request.chunks.put_nowait((first, end))
        if end == len(ids):
            request.finish_reason = request.plan.finish_reason

    def _least_urgent(self) -> Request:
        if self.settings.priority_scheduling:
            return max(self.running, key=_urgency)
        return self.running[-1]

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; it waits at the head and computes again what is evicted until then."""
        self.totals.preemptions += 1
        self.running.remove(request)
        self.waiting.insert(0, request)
        if request.sequence is not None:
            self.cache.release(request.sequence)
            request.sequence = None

    def _sweep(self) -> None:
        """Let ended requests go."""
        for queue in (self.running, self.waiting):
            for request in [request for request in queue if request.finish_reason]:
                queue.remove(request)
                self._leave(request)

    def _leave(self, request: Request) -> None:
        if request.sequence is not None:
            self.cache.release(request.sequence)
        if request.finish_reason == "abort":
            self.totals.aborts += 1
        else:
            self.totals.finished[request.finish_reason] += 1
        request.chunks.put_nowait(None)
        self._on_end(request)

    def _can_admit(self) -> bool:
        return bool(self.waiting) and len(self.running) < self.settings.max_num_seqs

    def _admit(self) -> None:
        while self._can_admit():
            request = self.waiting[0]
            emitted = array("I", request.plan.ids[: request.emitted]).tobytes()
            sequence = self.cache.start(request.prompt + emitted, self._salt(request))
            if sequence is None:
                return
            self.waiting.pop(0)
            self.running.append(request)
            request.sequence = sequence
            self._count_start(request, sequence)

    def _salt(self, request: Request) -> str:
        """Without prefix caching, one that no other request has."""
        return request.salt if self.settings.prefix_caching else f"{request.request_id}/{id(request)}"

    def _count_start(self, request: Request, sequence: CachedSequence) -> None:
        if request.cached_tokens is not None:
            return
        request.cached_tokens = sequence.hit_tokens
        request.scheduled = time.monotonic()
        self.totals.cache_queries += request.prompt_tokens
        self.totals.cache_hits += sequence.hit_tokens


def _urgency(request: Request) -> tuple[int, float]:
    """Smaller is more urgent."""
    return request.priority, request.arrived


def make_drafter(settings: Settings) -> Drafter | None:
    """The drafter of these settings. Raises `ValueError` for an impossible acceptance curve."""
    if settings.spec_method == "none":
        return None
    if settings.acceptance:
        return AcceptanceCurve(settings.acceptance[: settings.spec_tokens])
    if settings.neuron is not None:
        return AcceptanceCurve(settings.neuron.times.acceptance_of(settings.spec_tokens))
    if settings.spec_method == "draft_model":
        return AcceptanceCurve(tuple(DRAFT_MODEL_ACCEPTANCE ** (at + 1) for at in range(settings.spec_tokens)))
    return PromptLookup(settings.spec_tokens, *settings.lookup)
