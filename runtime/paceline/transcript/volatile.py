"""Blocks of system prompts that change with every request, found by rules: they must not break the context."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.workflow.model import Message


@dataclass(frozen=True, slots=True)
class VolatileRule:
    """Which whole lines of a system prompt are volatile: one or more that `pattern` matches together."""

    pattern: str
    """A regular expression, valid and not matching the empty text."""
    move: bool = False
    """Whether they go to the end of the step's new messages; otherwise they are left out."""


@dataclass(frozen=True, slots=True)
class Steady:
    """A system prompt without its volatile blocks."""

    system: str
    moved: tuple[str, ...] = ()
    """Blocks that go to the end of the new messages."""
    count: int = 0
    """How many blocks were found."""

    def at_end(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages with the moved blocks at the end of the last one, as they are rendered."""
        if not self.moved:
            return tuple(messages)
        last = messages[-1]
        return (*messages[:-1], replace(last, content="\n\n".join([last.content, *self.moved])))


class VolatileBlocks:
    """Applies rules in their order, each to what the ones before left."""

    def __init__(self, rules: Sequence[VolatileRule] = ()) -> None:
        self._rules = [(re.compile(rf"^(?:{rule.pattern})(?:\n|\Z)", re.MULTILINE), rule.move) for rule in rules]

    def take_out(self, system: str) -> Steady:
        """Take the volatile blocks out of a system prompt. Work for its bytes."""
        moved: list[str] = []
        count = 0
        for pattern, move in self._rules:
            found = [match.group().rstrip("\n") for match in pattern.finditer(system)]
            if found:
                system = pattern.sub("", system)
                count += len(found)
                moved += found if move else []
        return Steady(system, tuple(moved), count)
