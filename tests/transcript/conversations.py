"""Conversations that several tests use."""

from __future__ import annotations

from paceline.workflow.model import Message, Role, Tool, ToolCall

READ = Tool(
    "read_file",
    "Read a file.",
    '{"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], '
    '"additionalProperties": false}',
)
RUN = Tool("run_tests", "Run the tests.", '{"type": "object", "properties": {"count": {"type": "integer"}}}')
TOOLS = (READ, RUN)


def user(text: str) -> Message:
    """A user message."""
    return Message(Role.USER, text)


def assistant(text: str, *calls: ToolCall, reasoning: str = "") -> Message:
    """An answer."""
    return Message(Role.ASSISTANT, text, reasoning=reasoning, tool_calls=calls)


def result(text: str, call_id: str = "call_1", name: str = "read_file") -> Message:
    """A tool result."""
    return Message(Role.TOOL, text, tool_call_id=call_id, tool_name=name)


def call(path: str, call_id: str = "call_1") -> ToolCall:
    """A call of `read_file`."""
    return ToolCall(call_id, "read_file", f'{{"path": "{path}"}}')
