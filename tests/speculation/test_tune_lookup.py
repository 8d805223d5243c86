"""A lookup played again on a text that is known."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from paceline.speculation.tune.forecast import Forecast
from paceline.speculation.tune.lookup import Lookup


def reference(prompt: list[int], answer: list[int], k: int, shortest: int, longest: int) -> Forecast:
    """The same, by lists and from scratch at every step."""
    checks = accepted = plain = 0
    done = 1
    while done < len(answer):
        context = prompt + answer[:done]
        draft: list[int] = []
        for length in range(longest, shortest - 1, -1):
            starts = [at for at in range(len(context) - length) if context[at : at + length] == context[-length:]]
            if length < len(context) and starts:
                draft = context[starts[0] + length : starts[0] + length + k]
                break
        held = 0
        while held < min(len(draft), len(answer) - done - 1) and draft[held] == answer[done + held]:
            held += 1
        checks, accepted, plain = checks + bool(draft), accepted + held, plain + (not draft)
        done += held + 1
    return Forecast(checks, accepted, plain)


@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    answer=st.lists(st.integers(0, 5), max_size=40),
    k=st.integers(1, 6),
    lengths=st.tuples(st.integers(1, 3), st.integers(0, 3)),
)
def test_it_does_what_the_rule_says(
    prompt: list[int], answer: list[int], k: int, lengths: tuple[int, int]
) -> None:
    shortest, more = lengths
    found = Lookup(shortest, shortest + more).play(prompt, answer, k)
    assert found == reference(prompt, answer, k, shortest, shortest + more)
    assert found.checks + found.accepted + found.plain == max(0, len(answer) - 1)


def test_a_repeated_text_is_drafted() -> None:
    text = random.Random(1).sample(range(1000, 100_000), 50)
    assert Lookup(2, 5).play(text, text[:31], 4) == Forecast(6, 23, 1)
