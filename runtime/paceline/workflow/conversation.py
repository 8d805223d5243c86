"""Checks the messages of a step."""

from __future__ import annotations

from paceline.errors import InvalidMessage
from paceline.workflow.commands import Append, Conversation
from paceline.workflow.model import Message, Role


def check_messages(given: Append | Conversation) -> None:
    """Check the messages of a step, each by itself and their order. Raises `InvalidMessage`."""
    field = "append.messages" if isinstance(given, Append) else "conversation.messages"
    messages = given.messages
    if not messages:
        raise InvalidMessage(f"{field}: at least one message is needed", field=field)
    for index, message in enumerate(messages):
        _check_fields(message, f"{field}[{index}]")
        if message.role is Role.SYSTEM and (index > 0 or isinstance(given, Append)):
            raise InvalidMessage(
                f"{field}[{index}].role: only the first message of a conversation may be of the system; "
                "a workflow's system prompt is set when it is created",
                field=f"{field}[{index}].role",
            )
    if messages[-1].role not in {Role.USER, Role.TOOL}:
        path = f"{field}[{len(messages) - 1}].role"
        raise InvalidMessage(f"{path}: the last message must be of a user or a tool", field=path)
    _check_tool_results(messages, field, calls_before=isinstance(given, Append))


def _check_fields(message: Message, field: str) -> None:
    if not message.content and message.role in {Role.SYSTEM, Role.USER}:
        raise InvalidMessage(f"{field}.content: must not be empty", field=f"{field}.content")
    for name, value, owner in (
        ("reasoning", message.reasoning, Role.ASSISTANT),
        ("tool_calls", message.tool_calls, Role.ASSISTANT),
        ("tool_call_id", message.tool_call_id, Role.TOOL),
        ("tool_name", message.tool_name, Role.TOOL),
    ):
        if value and message.role is not owner:
            raise InvalidMessage(
                f"{field}.{name}: only for the role {owner}, not {message.role}", field=f"{field}.{name}"
            )
    _check_calls(message, field)


def _check_calls(message: Message, field: str) -> None:
    seen: set[str] = set()
    named = any(call.tool_call_id for call in message.tool_calls)
    for index, call in enumerate(message.tool_calls):
        path = f"{field}.tool_calls[{index}]"
        if (call.tool_call_id in seen and call.tool_call_id) or bool(call.tool_call_id) != named:
            raise InvalidMessage(
                f"{path}.tool_call_id: each call of a message needs an id of its own, or none has one",
                field=f"{path}.tool_call_id",
            )
        if not call.tool_name:
            raise InvalidMessage(f"{path}.tool_name: must not be empty", field=f"{path}.tool_name")
        seen.add(call.tool_call_id)


def _check_tool_results(messages: tuple[Message, ...], field: str, *, calls_before: bool) -> None:
    """Check that each tool message answers one call of the latest assistant message, each call once.

    `calls_before`: the first messages answer calls of a stored step, whose ids are not known here. Calls without
    ids are answered in their order.
    """
    open_calls: set[str] | None = None if calls_before else set()
    answered: set[str] = set()
    for index, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            calls = enumerate(message.tool_calls)
            open_calls, answered = {call.tool_call_id or _nth(at) for at, call in calls}, set()
        elif message.role is Role.TOOL:
            path = f"{field}[{index}].tool_call_id"
            answer = message.tool_call_id or _unnamed(open_calls, len(answered), path)
            if open_calls is not None and answer not in open_calls:
                raise InvalidMessage(f"{path}: no call of the latest assistant message has this id", field=path)
            if answer in answered:
                raise InvalidMessage(f"{path}: this call is answered already", field=path)
            answered.add(answer)


def _unnamed(open_calls: set[str] | None, answered: int, path: str) -> str:
    """The call that a result without an id answers."""
    if open_calls is None:
        return ""
    if _nth(answered) in open_calls:
        return _nth(answered)
    if len(open_calls) != 1:
        raise InvalidMessage(
            f"{path}: the latest assistant message has {len(open_calls)} calls; only one can be left unnamed",
            field=path,
        )
    return next(iter(open_calls))


def _nth(at: int) -> str:
    """Stands for the id of a call without one."""
    return f"#{at}"
