"""The form that a client wants of an answer: which tools are called, what its text is, and who can see to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import EngineRefused, InvalidArgument
from paceline.transcript.chat import ChatModel
from paceline.transcript.constraints import StructuredOutputs
from paceline.workflow.commands import RunStep, ToolChoiceMode
from paceline.workflow.model import Tool
from paceline.workflow.replicas import Replica


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What the engine has to see to, and the field that asked for it."""

    field: str
    structured_outputs: StructuredOutputs

    def check(self, replica: Replica) -> None:
        """Raise `EngineRefused` if the replica cannot see to it."""
        if not replica.enforces:
            raise EngineRefused(
                f"{self.field}: replica {replica.name} has no structured outputs; leave the field out, or use a "
                "backend that has them",
                field=self.field,
                replica=replica.name,
            )


_ENFORCED = {ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED}


async def form_of(command: RunStep, tools: Sequence[Tool], chat: ChatModel) -> AnswerForm | None:
    """The form that a step asks for; None if any will do. `tools` are those of the step.

    Raises `InvalidArgument` for what does not fit the tools, and for what the model's family cannot have.
    """
    if command.response_format is None and command.tool_choice.mode not in _ENFORCED:
        return None
    return await asyncio.to_thread(_form, command, tools, chat)  # schemas may be long


def _form(command: RunStep, tools: Sequence[Tool], chat: ChatModel) -> AnswerForm:
    choice, wanted = command.tool_choice, command.response_format
    if wanted is not None:
        if tools and choice.mode is ToolChoiceMode.AUTO:
            raise InvalidArgument(
                "response_format: an answer of this form can be no tool call; set tool_choice to NONE",
                field="response_format",
            )
        return AnswerForm("response_format", chat.enforce_json(wanted.json_schema))
    if not tools:
        raise InvalidArgument("tool_choice: there are no tools; set tools, or use AUTO", field="tool_choice")
    several = choice.mode is ToolChoiceMode.REQUIRED
    asked = [tool for tool in tools if several or tool.tool_name == choice.tool_name]
    if not asked:
        names = ", ".join(tool.tool_name for tool in tools)
        raise InvalidArgument(
            f"tool_choice.tool_name: no tool has this name; name one of {names[:200]}",
            field="tool_choice.tool_name",
        )
    return AnswerForm("tool_choice", chat.enforce_calls(asked, several=several))


def callable_tools(command: RunStep, tools: Sequence[Tool]) -> Sequence[Tool]:
    """The tools whose calls are looked for in the answer."""
    quiet = command.tool_choice.mode is ToolChoiceMode.NONE
    return () if quiet else tools
