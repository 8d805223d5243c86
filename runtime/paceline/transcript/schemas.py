"""Checks the arguments of a tool call against the tool's JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from jsonschema import Draft202012Validator, exceptions
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from paceline.workflow.model import Tool, ToolCall

_MAX_DEFECT = 300


def checked(call: ToolCall, tools: Sequence[Tool]) -> ToolCall:
    """Return the call, with `defect` saying what is wrong with it. References out of a schema are not followed."""
    tool = next((tool for tool in tools if tool.tool_name == call.tool_name), None)
    if tool is None:
        return replace(call, defect=f"unknown tool {call.tool_name!r}"[:_MAX_DEFECT])
    if not tool.parameters_json:
        return call
    return replace(call, defect=_defect(call.arguments_json, tool.parameters_json)[:_MAX_DEFECT])


def _defect(arguments_json: str, schema_json: str) -> str:
    try:
        schema = json.loads(schema_json)
        validator = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
        error = exceptions.best_match(validator.iter_errors(json.loads(arguments_json)))
    except (ValueError, Unresolvable, exceptions.UnknownType, re.error, RecursionError) as problem:
        return f"arguments not checked, the tool's schema is unusable: {problem}"
    return f"arguments {error.json_path}: {error.message}" if error else ""
