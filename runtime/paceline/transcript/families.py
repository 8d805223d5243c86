"""What differs between model families in their output. A new family is a new row here and, if it has another
tool-call syntax, a parser beside `hermes.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Markers around the parts of an answer; None where the family has no such part."""

    name: str
    tool_markers: tuple[str, str] | None = None
    """Around one tool call, which is a JSON object with `name` and `arguments`."""
    reasoning_markers: tuple[str, str] | None = None
    """Around the reasoning, which comes first."""


_CALL = ("<tool_call>", "</tool_call>")
_THINK = ("<think>", "</think>")

PLAIN = Family("plain")
REASONING = Family("reasoning", reasoning_markers=_THINK)
HERMES = Family("hermes", tool_markers=_CALL)
HERMES_REASONING = Family("hermes-reasoning", tool_markers=_CALL, reasoning_markers=_THINK)


def detect(template_source: str) -> Family:
    """Tell the family by the markers that its template writes. `<function=` inside calls is another syntax."""
    hermes = _CALL[0] in template_source and "<function=" not in template_source
    if _THINK[0] in template_source:
        return HERMES_REASONING if hermes else REASONING
    return HERMES if hermes else PLAIN
