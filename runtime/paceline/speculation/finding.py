"""What a rule looks at and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from paceline import config
from paceline.speculation.modelfiles import ModelFiles

Level = Literal["ok", "warning", "refused"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's answer."""

    rule: str
    """Stable id of the rule."""
    level: Level
    statement: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """A pair under a profile."""

    profile: config.Speculation
    target: ModelFiles
    drafter: ModelFiles | None = None
    """None for methods without one."""
    platform: str = ""
    """Empty where it is not known."""
    max_model_len: int | None = None
    """Longest context of the engine in tokens; None for the target's own."""
    engine: config.Engine | None = None
    """The engine that Paceline starts; None where no configured one is asked about."""

    @property
    def context(self) -> int | None:
        """Longest context that will be served, in tokens."""
        return self.max_model_len or self.target.max_length


Rule = Callable[[Subject], Iterator[Finding]]
"""Yields nothing where it does not apply."""
PairRule = Callable[[Subject, ModelFiles], Iterator[Finding]]
"""A rule about the drafter, which is there."""


def ok(rule: str, statement: str) -> Finding:
    """Everything is as it should be."""
    return Finding(rule, "ok", statement)


def warning(rule: str, statement: str, remedy: str) -> Finding:
    """It will run; somebody should look."""
    return Finding(rule, "warning", statement, remedy)


def refused(rule: str, statement: str, remedy: str) -> Finding:
    """It must not be started."""
    return Finding(rule, "refused", statement, remedy)
