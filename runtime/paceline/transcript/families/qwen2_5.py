"""Qwen2.5 and others with Hermes tool calls: a JSON object between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from functools import partial

from paceline.transcript.families.base import Family
from paceline.transcript.hermes import HERMES
from paceline.transcript.splitter import MarkerSplitter

FAMILY = Family(
    name="qwen2.5",
    recognises=lambda signs: HERMES.begin in signs.template,
    splitter=partial(MarkerSplitter, calls=HERMES),
    calls_tools=True,
)
