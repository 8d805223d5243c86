"""Chat templates in Jinja, rendered as Hugging Face does, which is the text that models were trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from paceline.errors import InvalidMessage, InvalidTool, ModelError
from paceline.workflow.model import Message, Role, Tool, ToolCall

_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplate:
    """One template. `special_tokens` are the variables such as `bos_token` that it may use, `arguments` what else
    it is told."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._arguments = dict(arguments or {})
        if taken := sorted(_OWN_VARIABLES & self._arguments.keys()):
            raise ModelError(f"template_arguments: {taken[0]} is set by every step; leave it out")
        # Without arguments the hash stays what it was before there were any: stored transcripts go on.
        parts = [source, self._special_tokens, *([self._arguments] if self._arguments else [])]
        bound = json.dumps(parts, sort_keys=True)
        self.hash = hashlib.sha256(bound.encode()).hexdigest()
        try:
            self._compiled = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"chat template: {error}; set `template` to one that works", detail=error) from error

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], add_generation_prompt: bool) -> str:
        """Return the conversation as text. Raises `InvalidMessage` when the template refuses it."""
        try:
            text = self._compiled.render(
                messages=[_message(message) for message in messages],
                tools=[_tool(tool) for tool in tools] or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{**self._special_tokens, **self._arguments},
            )
            text.encode()  # half a surrogate pair, escaped in JSON, is not text
            return text
        except (jinja2.TemplateError, TypeError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidMessage(
                f"messages: the model's chat template refuses them: {error}", field="messages", detail=error
            ) from error


def _message(message: Message) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": str(message.role), "content": message.content}
    if message.reasoning:
        rendered["reasoning_content"] = message.reasoning
    if message.tool_calls:
        rendered["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.role is Role.TOOL:
        rendered["tool_call_id"] = message.tool_call_id
        rendered["name"] = message.tool_name
    return rendered


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.tool_name, "arguments": _arguments(call.arguments_json)}
    return {"id": call.tool_call_id, "type": "function", "function": function}


def _arguments(arguments_json: str) -> Any:
    """Templates expect an object; what is none is shown as the text that it is."""
    try:
        value = json.loads(arguments_json or "{}")
    except (ValueError, RecursionError):
        return arguments_json
    return value if isinstance(value, dict) else arguments_json


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.tool_name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters_json:
        function["parameters"] = tool_parameters(tool)
    return {"type": "function", "function": function}


def tool_parameters(tool: Tool) -> Any:
    """Return the schema of a tool's arguments, None if it has none. Raises `InvalidTool`."""
    try:
        return json.loads(tool.parameters_json) if tool.parameters_json else None
    except ValueError as error:
        field = f"tools[{tool.tool_name}].parameters_json"
        raise InvalidTool(f"{field}: not JSON: {error}", field=field, detail=error) from error


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; rendering passes it through."""

    tags = {"generation"}  # noqa: RUF012 - Jinja reads this class attribute

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
