"""The whole output of a request, decided before it runs: ids, their texts and why it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends an output."""

    max_tokens: int
    end_id: int
    min_tokens: int = 0
    ignore_end: bool = False
    stop_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    """Whether the text leaves them out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`ids` will be emitted; `upcoming` goes on behind them where a limit cut the reply."""

    ids: list[int]
    upcoming: list[int]
    texts: list[str]
    """What each id adds to the text; behind a stop text it is empty."""
    finish_reason: str
    """`stop` or `length`."""
    stop_reason: int | str | None = None
    """The stop id or stop text; None for the end id."""
    logprobs: dict[int, float] = field(default_factory=dict)
    """Of candidates for the first id, as scripted."""
    acceptance: tuple[float, ...] = ()
    """How much of drafts of this output holds, as scripted; empty: as the engine's drafter finds."""


def plan_output(
    reply: list[int], limits: Limits, tokenizer: Tokenizer, filler: Callable[[int], list[int]]
) -> Plan:
    """Decide the output for a reply without its end id. `filler` gives ids to go on with where it may not end."""
    upcoming = _extend(reply, limits, filler)
    ids, finish_reason, stop_reason = _cut(upcoming, limits)
    texts = _texts(tokenizer, ids, skip_special_tokens=limits.skip_special_tokens)
    for stop in limits.stop_texts:
        at = "".join(texts).find(stop)
        if at >= 0:
            texts = _clip(texts, at, len(stop))
            ids, finish_reason, stop_reason = ids[: len(texts)], "stop", stop
    return Plan(ids, upcoming, texts, finish_reason, stop_reason)


def _extend(reply: list[int], limits: Limits, filler: Callable[[int], list[int]]) -> list[int]:
    wanted = limits.max_tokens if limits.ignore_end else min(limits.min_tokens, limits.max_tokens)
    missing = wanted - len(reply)
    longer = reply + filler(missing) if missing > 0 else reply
    return longer if limits.ignore_end else [*longer, limits.end_id]


def _cut(upcoming: list[int], limits: Limits) -> tuple[list[int], str, int | str | None]:
    for at, token in enumerate(upcoming[: limits.max_tokens]):
        if at + 1 < limits.min_tokens:
            continue
        if token == limits.end_id and not limits.ignore_end:
            return upcoming[: at + 1], "stop", None
        if token in limits.stop_ids:
            return upcoming[: at + 1], "stop", token
    return upcoming[: limits.max_tokens], "length", None


def _texts(tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool) -> list[str]:
    stream = DecodeStream(skip_special_tokens=skip_special_tokens)
    return [stream.step(tokenizer, token) or "" for token in ids]


def _clip(texts: list[str], at: int, length: int) -> list[str]:
    """The texts up to the token that completes a stop text of `length` at `at`, without the stop text."""
    kept, seen = [], 0
    for text in texts:
        kept.append(text[: max(0, at - seen)])
        seen += len(text)
        if seen >= at + length:
            break
    return kept
