"""Qwen3-Coder, and Qwen3.5 and later, which reason before: tool calls in XML."""

from __future__ import annotations

from functools import partial

from paceline.transcript.families.base import CallForm, Family, Signs
from paceline.transcript.families.plain import THINK
from paceline.transcript.splitter import MarkerSplitter
from paceline.transcript.xml_calls import XML_CALLS


def _writes_xml(signs: Signs) -> bool:
    return XML_CALLS.begin in signs.template and XML_CALLS.opening in signs.template


FORM = CallForm("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "\n", "qwen_xml_parameter")

FAMILY = Family(
    name="qwen3-coder",
    recognises=_writes_xml,
    splitter=partial(MarkerSplitter, calls=XML_CALLS),
    calls_tools=True,
    call_form=FORM,
)
REASONING = Family(
    name="qwen3.5",
    recognises=lambda signs: _writes_xml(signs) and THINK[0] in signs.template,
    splitter=partial(MarkerSplitter, calls=XML_CALLS, reasoning=THINK),
    calls_tools=True,
    call_form=FORM,
    reasons=True,
    reasoning_opening=THINK[0],
    reasoning_end=(THINK[1], "\n\n"),
)
