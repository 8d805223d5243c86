"""What a shorter draft would have done in a step that was measured with a longer one. Pure.

Three ways, by what is known of the drafter. A model that drafts token by token proposes the same token at one
place of the answer wherever its draft began, so the measured drafts tell which places it gets right, and the step
can be played again with any K. A lookup in the text can be played again exactly, too, from the text itself
(`tune.lookup`). Of any other drafter only the shares per position of a draft are taken: the first K tokens of a
longer draft are accepted as those of a draft of K.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class Forecast(msgspec.Struct, frozen=True):
    """Steps of the engine in one answer, after its first token. No whole numbers where they are expected ones."""

    checks: float = 0
    """That verify a draft."""
    accepted: float = 0
    """Drafted tokens that hold."""
    plain: float = 0
    """That have no draft."""

    def __add__(self, other: Forecast) -> Forecast:
        return Forecast(self.checks + other.checks, self.accepted + other.accepted, self.plain + other.plain)

    @property
    def acceptance_length(self) -> float:
        """Tokens per check, the model's own one included. 1 without a check."""
        return 1 + self.accepted / self.checks if self.checks else 1.0


def total(forecasts: Iterable[Forecast]) -> Forecast:
    """All of them together."""
    return sum(forecasts, Forecast())


def places(checks: Iterable[Sequence[int]]) -> list[bool]:
    """Whether the drafter knows each token of an answer, from (drafted, accepted) of every check of it.

    The token after a draft that held in full was not drafted: it counts as what most of the others are.
    """
    found: list[bool | None] = []
    for drafted, accepted in checks:
        found += [True] * accepted
        found.append(False if accepted < drafted else None)
    known = [place for place in found if place is not None]
    usual = 2 * sum(known) >= len(known)
    return [usual if place is None else place for place in found]


def by_places(checks: Sequence[Sequence[int]], plain: int, k: int) -> Forecast:
    """The answer played again with drafts of `k` by a drafter that knows the same places."""
    known = places(checks)
    done = count = 0
    while done < len(known):
        ahead = known[done : done + k]
        held = ahead.index(False) if False in ahead else len(ahead)
        done += min(held, len(known) - done - 1) + 1
        count += 1
    return Forecast(count, len(known) - count, plain)


def by_positions(checks: Sequence[Sequence[int]], plain: int, k: int) -> Forecast:
    """Drafts of `k` that hold as the first `k` tokens of the measured ones did."""
    if not checks:
        return Forecast(plain=plain)
    length = 1 + sum(min(accepted, k) for _, accepted in checks) / len(checks)
    covered = sum(accepted + 1 for _, accepted in checks)
    return Forecast(covered / length, covered - covered / length, plain)
