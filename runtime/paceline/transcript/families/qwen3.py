"""Qwen3: Hermes tool calls after optional reasoning.

Its template drops earlier reasoning at each user message; appending keeps it. The template argument
`enable_thinking = false` turns reasoning off.
"""

from __future__ import annotations

from functools import partial

from paceline.transcript.families.base import Family
from paceline.transcript.families.plain import THINK
from paceline.transcript.families.qwen2_5 import HERMES_FORM
from paceline.transcript.hermes import HERMES
from paceline.transcript.splitter import MarkerSplitter

FAMILY = Family(
    name="qwen3",
    recognises=lambda signs: HERMES.begin in signs.template and THINK[0] in signs.template,
    splitter=partial(MarkerSplitter, calls=HERMES, reasoning=THINK),
    calls_tools=True,
    call_form=HERMES_FORM,
    reasons=True,
    reasoning_opening=THINK[0],
    reasoning_end=(THINK[1], "\n\n"),
)
