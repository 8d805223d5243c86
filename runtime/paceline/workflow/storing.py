"""What is stored of a workflow whose content is not, and what is kept of that in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from paceline.workflow.model import Step, StorePolicy, Tool, Workflow
from paceline.workflow.ports import AttemptEnd

UNSTORED_BYTES = 32 << 20
"""Memory for system prompts and tools that are not stored."""


def stored_step(step: Step, store: StorePolicy) -> Step:
    """The step as the ledger gets it."""
    return step if store is StorePolicy.FULL else replace(step, input=(), system="", tools=())


def stored_end(end: AttemptEnd, store: StorePolicy) -> AttemptEnd:
    """The end of a step as the ledger gets it. What an engine says of an error may quote the request."""
    if store is StorePolicy.FULL:
        return end
    return replace(end, output=None, calls=(), segments=None, error_message="")


class Unstored:
    """System prompts and tools of workflows that store no content; the least recently used leave first."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[str, tuple[Tool, ...]]] = OrderedDict()
        self._room = UNSTORED_BYTES

    def keep(self, workflow: Workflow) -> None:
        """Remember what the ledger does not get of a new workflow."""
        key = (workflow.tenant, workflow.workflow_id)
        if workflow.store is StorePolicy.FULL or not (workflow.system or workflow.tools):
            return
        self.forget([key])
        self._known[key] = workflow.system, workflow.tools
        self._room -= _size(*self._known[key])
        while self._room < 0 and len(self._known) > 1:
            self.forget([next(iter(self._known))])

    def fill(self, workflow: Workflow) -> Workflow:
        """The workflow with its system prompt and tools, if they are known."""
        key = (workflow.tenant, workflow.workflow_id)
        if key not in self._known:
            return workflow
        self._known.move_to_end(key)
        system, tools = self._known[key]
        return replace(workflow, system=system, tools=tools, system_gone=False, tools_gone=False)

    def forget(self, workflows: Iterable[tuple[str, str]]) -> None:
        """Drop what is known of workflows, given by tenant and id."""
        for key in workflows:
            if known := self._known.pop(key, None):
                self._room += _size(*known)


def _size(system: str, tools: tuple[Tool, ...]) -> int:
    return len(system) + sum(len(tool.description) + len(tool.parameters_json) for tool in tools)
