"""Models whose tool calls nobody has described here: text, and reasoning if the template shows it."""

from __future__ import annotations

from functools import partial

from paceline.transcript.families.base import Family
from paceline.transcript.splitter import MarkerSplitter

THINK = ("<think>", "</think>")

FAMILY = Family(name="plain", recognises=lambda _signs: True, splitter=MarkerSplitter)
REASONING = Family(
    name="reasoning",
    recognises=lambda signs: THINK[0] in signs.template,
    splitter=partial(MarkerSplitter, reasoning=THINK),
    reasons=True,
    reasoning_opening=THINK[0],
    reasoning_end=(THINK[1], "\n\n"),
)
