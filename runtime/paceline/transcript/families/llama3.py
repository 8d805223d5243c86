"""Llama 3.1 and later: a tool call is a bare JSON object. Its templates show one call per answer."""

from __future__ import annotations

from paceline.transcript.families.base import CallForm, Family
from paceline.transcript.json_calls import JsonAnswerSplitter

FAMILY = Family(
    name="llama3",
    recognises=lambda signs: "<|start_header_id|>" in signs.template and '"parameters"' in signs.template,
    splitter=JsonAnswerSplitter,
    calls_tools=True,
    call_form=CallForm('{"name": "', '", "parameters": ', "}", between=None),
    end_tokens=("<|eot_id|>", "<|eom_id|>"),
    closing_tokens=("<|eom_id|>",),
)
