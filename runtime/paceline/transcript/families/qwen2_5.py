"""Qwen2.5 and others with Hermes tool calls: a JSON object between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from functools import partial

from paceline.transcript.families.base import CallForm, Family
from paceline.transcript.hermes import HERMES
from paceline.transcript.splitter import MarkerSplitter

HERMES_FORM = CallForm('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", between="\n")

FAMILY = Family(
    name="qwen2.5",
    recognises=lambda signs: HERMES.begin in signs.template,
    splitter=partial(MarkerSplitter, calls=HERMES),
    calls_tools=True,
    call_form=HERMES_FORM,
)
