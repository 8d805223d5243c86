"""One attempt: the stream of one dispatch, and the books about it."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Protocol

from paceline.engines.base import GenerateRequest, GenerationEnd, TokenChunk
from paceline.errors import EngineLost, InternalError
from paceline.transcript.parsing import Answer, OutputParser
from paceline.workflow.events import Event
from paceline.workflow.model import Cost, FinishReason, Speculation, Timings, Usage, UsageSource
from paceline.workflow.ports import AttemptCheckpoint, NewAttempt, Prices
from paceline.workflow.replicas import AcceleratorShare, Replica

OVERSHOOT_TOKENS = 64
"""An engine that goes on so long after a stop text that it was asked to honour is cut off."""


class Attempt:
    """Streams one dispatch into a parser and knows at any moment what it has used."""

    def __init__(
        self,
        new: NewAttempt,
        model: str,
        replica: Replica,
        *,
        parser: OutputParser,
        prices: Prices,
        arrived: float,
    ) -> None:
        self.new = new
        self.replica = replica
        self.request: GenerateRequest | None = None
        """What was asked; None before the dispatch."""
        self.generated = array("I")
        self.end: GenerationEnd | None = None
        self._model = model
        self._parser = parser
        self._prices = prices
        self._arrived = arrived
        self._dispatched = time.monotonic()
        self._first: float | None = None
        self._last: float | None = None
        self._share: AcceleratorShare | None = None
        self._answer: Answer | None = None

    async def stream(self, request: GenerateRequest, emit: Emit) -> None:
        """Run to the engine's end. Raises what the engine raises; what came before is kept."""
        self.request = request
        self._dispatched = time.monotonic()
        self._share = AcceleratorShare(self.replica.time)
        try:
            async with aclosing(self.replica.engine.generate(request)) as items:
                async for item in items:
                    if isinstance(item, GenerationEnd):
                        self.end = item
                    elif not self._took(item, emit):
                        break
        except EngineLost:
            self.replica.suspect()
            raise
        finally:
            self._share.stop()
        if not self._parser.stopped:
            self._check_end()
        self._answer = self._parser.finish(cut=self._cut())
        emit(self._answer.events)

    def _check_end(self) -> None:
        name = self.replica.name
        if self.end is None:
            raise EngineLost(f"replica {name} ended the stream early", replica=name)
        if self.end.finish_reason == "abort":
            raise EngineLost(f"replica {name} aborted the request", replica=name)

    def _took(self, chunk: TokenChunk, emit: Emit) -> bool:
        """Note new ids; False when the engine goes on too long after a stop text."""
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last
        self.generated.extend(chunk.token_ids)
        if not self._parser.stopped:
            emit(self._parser.feed(chunk.token_ids))
        return len(self.generated) - self.kept_count() <= OVERSHOOT_TOKENS

    def kept_count(self) -> int:
        """How many of the generated ids stay in the transcript: see `OutputParser.kept_ids`."""
        return self._parser.kept_ids

    def kept(self) -> array[int]:
        """What the answer adds to the transcript: the generated ids that stay, and what a stop text left of a
        token, tokenized again."""
        return self.generated[: self.kept_count()] + array("I", self.answer.retokenized)

    @property
    def answer(self) -> Answer:
        """The answer, once `stream` has returned."""
        if self._answer is None:
            raise InternalError
        return self._answer

    def finish_reason(self) -> FinishReason:
        """Why the generation ended; a well-formed tool call counts only when the model ended its turn itself."""
        if self._cut() and not self._parser.stopped:
            return FinishReason.LENGTH
        return FinishReason.TOOL_CALLS if self.answer.message.tool_calls else FinishReason.STOP

    def _cut(self) -> bool:
        return self.end is not None and self.end.finish_reason == "length"

    def usage(self, reasoning: int | None = None) -> Usage:
        """Counts so far. Without the engine's word the prompt counts as uncached once a token came, else as not
        reported."""
        if self.end is not None:
            prompt = self.end.prompt_tokens if self.end.prompt_tokens is not None else self.new.prompt_tokens
            cached = self.end.cached_tokens
            output = self.end.output_tokens
            return Usage(
                uncached_prompt=prompt - (cached or 0),
                cached_prompt=cached,
                cache_writes=self.end.cache_writes,
                output=output if output is not None else len(self.generated),
                reasoning=reasoning,
                prompt_source=UsageSource.ENGINE if cached is not None else UsageSource.PREDICTED,
                output_source=UsageSource.ENGINE if output is not None else UsageSource.STREAM,
            )
        computed = bool(self.generated)
        return Usage(
            uncached_prompt=self.new.prompt_tokens if computed else None,
            output=len(self.generated),
            reasoning=reasoning,
            prompt_source=UsageSource.PREDICTED if computed else None,
            output_source=UsageSource.STREAM,
        )

    def speculation(self) -> Speculation:
        """What speculation did, as far as the engine said."""
        profile, end = self.new.speculation_profile, self.end
        if end is None or end.drafted is None:
            return Speculation(profile)
        length = 1 + (end.accepted or 0) / end.draft_steps if end.draft_steps else None
        return Speculation(profile, end.drafted, end.accepted, length, end.draft_steps)

    def cost(self) -> Cost:
        """Money so far; the infrastructure part is provisional."""
        tokens = self._prices.list_cost(self._model, self.usage())
        time_ = self._prices.infrastructure_cost(self.replica.instance_type, self.accelerator_seconds())
        example = tokens.example_price or time_.example_price
        return Cost(tokens.list_nanos, time_.infrastructure_nanos, tokens.price_name, example)

    def accelerator_seconds(self) -> float:
        """Seconds of the replica's time so far, shared with the attempts beside it."""
        return self._share.seconds if self._share else 0.0

    def timings(self) -> Timings:
        """Durations up to now."""
        return Timings(
            queue=self._dispatched - self._arrived,
            first_token=self._first - self._dispatched if self._first is not None else None,
            decode=self._last - self._first if self._first is not None and self._last is not None else None,
            total=time.monotonic() - self._arrived,
        )

    def checkpoint(self) -> AttemptCheckpoint:
        """What to keep in case this process dies."""
        return AttemptCheckpoint(self.new.attempt_id, self.usage(), self.speculation(), self.cost())


class Emit(Protocol):
    """Takes events of the stream."""

    def __call__(self, events: Sequence[Event], /) -> None: ...


def utcnow() -> datetime:
    """The time for the ledger."""
    return datetime.now(UTC)
