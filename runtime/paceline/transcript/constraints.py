"""What a backend is told so that an answer has a wanted form: vLLM's `structured_outputs`.

A tool call is enforced in the family's own syntax, so that the transcript is what the template would have written.
Reasoning is left alone: where a model reasons, the form begins behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from paceline.transcript.families.base import CallForm, Family
from paceline.workflow.model import Tool

StructuredOutputs = dict[str, Any]
_Format = dict[str, Any]
_ANY_OBJECT = '{"type": "object"}'
_COMPOSED = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
"""Words beside which XGrammar would read `type` otherwise than meant."""


def enforce_calls(
    form: CallForm, tools: Sequence[Tool], family: Family, *, several: bool, reasoning_open: bool
) -> StructuredOutputs:
    """Have the answer be one call of one of these tools, or more if `several` and the template shows more."""
    tags = [_call(form, tool) for tool in tools]
    calls: _Format = {"type": "or", "elements": tags} if len(tags) > 1 else tags[0]
    if several and form.between is not None:
        calls = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": form.between,
            "at_least_one": True,
        }
    return _tagged(_behind_reasoning(calls, family, reasoning_open))


def enforce_json(schema_json: str, family: Family, *, reasoning_open: bool) -> StructuredOutputs:
    """Have the text of the answer be JSON of a schema; of any object for an empty one."""
    if not family.reasons:
        return {"json": schema_json} if schema_json else {"json_object": True}
    content = {"type": "json_schema", "json_schema": orjson.loads(schema_json or _ANY_OBJECT)}
    return _tagged(_behind_reasoning(content, family, reasoning_open))


def _call(form: CallForm, tool: Tool) -> _Format:
    return {
        "type": "tag",
        "begin": f"{form.before_name}{tool.tool_name}{form.after_name}",
        "content": {"type": form.arguments, "json_schema": _arguments(tool)},
        "end": form.after_arguments,
    }


def _arguments(tool: Tool) -> Any:
    """The tool's schema; arguments are an object even where it does not say so."""
    schema = orjson.loads(tool.parameters_json or _ANY_OBJECT)
    return schema if _COMPOSED & schema.keys() else {"type": "object", **schema}


def _behind_reasoning(answer: _Format, family: Family, reasoning_open: bool) -> _Format:
    """Reasoning first: because the prompt has opened it, or if the model opens it."""
    if not family.reasons:
        return answer
    end, space = family.reasoning_end
    begin = "" if reasoning_open else family.reasoning_opening
    reasoning = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": end}
    gap = {"type": "const_string", "value": space}
    behind = {"type": "sequence", "elements": [reasoning, gap, answer]}
    return behind if reasoning_open else {"type": "or", "elements": [answer, behind]}


def _tagged(answer: _Format) -> StructuredOutputs:
    return {"structural_tag": orjson.dumps({"type": "structural_tag", "format": answer}).decode()}
