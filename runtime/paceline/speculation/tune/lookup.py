"""vLLM's ngram method played again on a text that is known: exact for every K."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.speculation.promptlookup import lookup
from paceline.speculation.tune.forecast import Forecast


@dataclass(frozen=True, slots=True)
class Lookup:
    """Lengths of the endings that are looked up, in tokens."""

    shortest: int
    longest: int

    def play(self, prompt: Sequence[int], answer: Sequence[int], k: int) -> Forecast:
        """What drafts of `k` do for these ids. The first id of an answer comes without a draft."""
        context = array("I", [*prompt, *answer[:1]])
        checks = accepted = plain = 0
        done = 1
        while done < len(answer):
            drafted, held = lookup(context.tobytes(), answer[done:], k, self.shortest, self.longest)
            held = min(held, len(answer) - done - 1)
            checks, accepted, plain = checks + bool(drafted), accepted + held, plain + (not drafted)
            context.extend(answer[done : done + held + 1])
            done += held + 1
        return Forecast(checks, accepted, plain)
