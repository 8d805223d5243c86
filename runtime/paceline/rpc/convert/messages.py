"""Conversion of messages, tools and sampling parameters."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.errors import InvalidMessage
from paceline.rpc.convert.values import EnumTable
from paceline.v1 import message_pb2 as pb
from paceline.workflow.model import Message, Role, Sampling, Tool, ToolCall

ROLES = EnumTable(Role, pb.Role, "ROLE", InvalidMessage)


def messages_from_proto(messages: Iterable[pb.Message], field: str) -> tuple[Message, ...]:
    """Convert messages; `field` names the list in errors."""
    return tuple(message_from_proto(message, f"{field}[{index}]") for index, message in enumerate(messages))


def message_from_proto(message: pb.Message, field: str) -> Message:
    """Convert one message. Raises `InvalidMessage` for an unknown role."""
    return Message(
        role=ROLES.to_domain(message.role, f"{field}.role"),
        content=message.content,
        reasoning=message.reasoning,
        tool_calls=tuple(
            ToolCall(call.tool_call_id, call.tool_name, call.arguments_json, call.defect)
            for call in message.tool_calls
        ),
        tool_call_id=message.tool_call_id,
        tool_name=message.tool_name,
    )


def message_to_proto(message: Message) -> pb.Message:
    """Convert one message."""
    return pb.Message(
        role=ROLES.to_proto(message.role),
        content=message.content,
        reasoning=message.reasoning,
        tool_calls=[tool_call_to_proto(call) for call in message.tool_calls],
        tool_call_id=message.tool_call_id,
        tool_name=message.tool_name,
    )


def tool_call_to_proto(call: ToolCall) -> pb.ToolCall:
    """Convert one tool call."""
    return pb.ToolCall(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        arguments_json=call.arguments_json,
        defect=call.defect,
    )


def tools_from_proto(tools: Iterable[pb.Tool]) -> tuple[Tool, ...]:
    """Convert tool definitions."""
    return tuple(Tool(tool.tool_name, tool.description, tool.parameters_json) for tool in tools)


def tools_to_proto(tools: Iterable[Tool]) -> list[pb.Tool]:
    """Convert tool definitions."""
    return [
        pb.Tool(tool_name=tool.tool_name, description=tool.description, parameters_json=tool.parameters_json)
        for tool in tools
    ]


def sampling_from_proto(sampling: pb.Sampling) -> Sampling:
    """Convert sampling parameters; an unset field becomes None."""
    return Sampling(
        temperature=sampling.temperature if sampling.HasField("temperature") else None,
        top_p=sampling.top_p if sampling.HasField("top_p") else None,
        top_k=sampling.top_k if sampling.HasField("top_k") else None,
        seed=sampling.seed if sampling.HasField("seed") else None,
        max_output_tokens=(
            sampling.max_output_token_count if sampling.HasField("max_output_token_count") else None
        ),
        stop=tuple(sampling.stop),
    )


def sampling_to_proto(sampling: Sampling) -> pb.Sampling:
    """Convert sampling parameters."""
    return pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        max_output_token_count=sampling.max_output_tokens,
        stop=sampling.stop,
    )
