"""From the ids of an answer to its reasoning, text and tool calls, while they are generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.transcript.families.base import Family
from paceline.transcript.pieces import OutputEvent
from paceline.transcript.stops import StopFilter
from paceline.transcript.tokenizer import TokenStream
from paceline.workflow.model import Message, OutputFlag, Role, Tool


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `events` are those that only its end made certain."""

    message: Message
    events: list[OutputEvent]
    malformed_tool_calls: int
    """How many pieces looked like tool calls and were none; they are part of the text."""
    reasoning_tokens: int | None
    """Ids inside the reasoning, markers excluded; None if the family has no reasoning."""
    retokenized: tuple[int, ...] = ()
    """Ids that follow the kept ones in the transcript: what the client saw of the token in which a stop text
    begins."""
    flags: tuple[OutputFlag, ...] = ()


class OutputParser:
    """Parses one answer. How the ids are cut into chunks makes no difference to the result.

    `stopped` becomes true when a stop text is found; what follows is ignored, and so is what follows an end id.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        end_ids: Sequence[int],
        closing_ids: Sequence[int],
        family: Family,
        tools: Sequence[Tool],
        stop: Sequence[str],
        reasoning_open: bool = False,
    ) -> None:
        self._stream = stream
        self._end_ids = frozenset(end_ids)
        self._closing_ids = frozenset(closing_ids)
        self._stops = StopFilter(stop) if stop else None
        self._splitter = family.splitter(tools, reasoning_open)
        self._counts_reasoning = family.reasons
        self._reasoning_tokens = 0
        self._doubtful_tokens = 0
        """Those of them that are reasoning only if it ends."""
        self._taken = 0
        self._piece_start = 0
        self._ended = False
        self.stopped = False

    @property
    def kept_ids(self) -> int:
        """How many of the ids stay in the transcript: all up to the end id, or those before the token in which a
        stop text begins. An end id stays if it closes the turn as the template would."""
        if self._stops is not None and self._stops.kept_ids is not None:
            return self._stops.kept_ids
        return self._taken

    def feed(self, token_ids: Sequence[int]) -> list[OutputEvent]:
        """Take more ids; returns what they made certain."""
        for token_id in token_ids:
            if self._ended:
                break
            if token_id in self._end_ids:
                self._ended = True
                self._taken += token_id in self._closing_ids
            else:
                self._taken += 1
                self._step(token_id)
        return self._splitter.pieces.take_events()

    def finish(self, *, cut: bool = False) -> Answer:
        """End the output: nothing is held back any more. `cut`: the engine ended it, at a limit."""
        self._flush()
        self._splitter.finish(cut or self.stopped)
        pieces = self._splitter.pieces
        flags = set(pieces.flags)
        if OutputFlag.CALL_IN_OPEN_REASONING in flags:
            self._reasoning_tokens -= self._doubtful_tokens
        retokenized = self._retokenized()
        if retokenized:
            flags.add(OutputFlag.RETOKENIZED_END)
        message = Message(
            Role.ASSISTANT,
            content=pieces.text,
            reasoning=pieces.reasoning,
            tool_calls=tuple(pieces.tool_calls),
        )
        reasoning_tokens = self._reasoning_tokens if self._counts_reasoning else None
        return Answer(
            message, pieces.take_events(), pieces.malformed, reasoning_tokens, retokenized, tuple(sorted(flags))
        )

    def _retokenized(self) -> tuple[int, ...]:
        return tuple(self._stream.encode(self._stops.rest)) if self._stops and self._stops.rest else ()

    def _step(self, token_id: int) -> None:
        reasoning_before = self._counts_reasoning and self._splitter.reasoning_now
        if text := self._stream.step(token_id):
            self._take(text)
        if reasoning_before and self._splitter.reasoning_now:
            self._reasoning_tokens += 1
            self._doubtful_tokens += self._splitter.pieces.doubtful

    def _take(self, text: str) -> None:
        if self._stops is not None:
            text = self._stops.feed(text, self._piece_start)
            self.stopped = self._ended = self._stops.kept_ids is not None
        self._piece_start = self._taken
        if text:
            self._splitter.feed(text)

    def _flush(self) -> None:
        if self.stopped:
            return
        if text := self._stream.flush():
            self._take(text)
        if self._stops is not None and not self.stopped and (text := self._stops.flush()):
            self._splitter.feed(text)
