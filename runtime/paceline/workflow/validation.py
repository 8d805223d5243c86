"""Checks commands before anything happens. Fields are named as in the protos: `append.messages[2].role`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from paceline.errors import InvalidArgument, InvalidTool
from paceline.workflow.commands import Append, CreateWorkflow, ForkWorkflow, RunStep, ToolChoiceMode
from paceline.workflow.conversation import check_messages
from paceline.workflow.costs import CostFilter
from paceline.workflow.model import Budget, Outcome, OutcomeSource, Sampling, Tool
from paceline.workflow.schema import schema_defect

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 1000
MAX_PAGE_TOKEN = 1024
MAX_DETACH_GRACE = 60.0
MAX_FILTER_MODELS = 100
MAX_LABELS = 32
MAX_LABEL_VALUE = 256
MAX_NOTE = 1000
DAY = 86_400
MIN_RETENTION, MAX_RETENTION = 60, 36_500 * DAY
"""Seconds."""
MAX_STOPS = 16
MAX_TOOLS = 128
_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_run_step(command: RunStep) -> None:
    """Check a step. Raises `InvalidArgument`, `InvalidMessage` or `InvalidTool`.

    Tools whose schemas were not seen before take milliseconds each (see `schema_defect`).
    """
    if command.workflow_id:
        _check_named(command)
    else:
        _check_unnamed(command)
    check_id(command.request_id, "request_id", optional=True)
    check_id(command.parent_step_id, "parent_step_id", optional=True)
    check_messages(command.input)
    check_sampling(command.sampling)
    if command.tools is not None:
        check_tools(command.tools, "tools.tools")
    _check_answer_form(command)
    if not 0 <= command.detach_grace <= MAX_DETACH_GRACE:
        raise InvalidArgument(f"detach_grace: must be 0 to {MAX_DETACH_GRACE:g} s", field="detach_grace")


def _check_named(command: RunStep) -> None:
    check_id(command.workflow_id, "workflow_id")
    if command.labels:
        raise InvalidArgument(
            "labels: only without workflow_id; the labels of a workflow are set when it is created", field="labels"
        )


def _check_unnamed(command: RunStep) -> None:
    if isinstance(command.input, Append):
        raise InvalidArgument(
            "workflow_id: is required for append; name the workflow, or send the whole conversation",
            field="workflow_id",
        )
    if command.parent_step_id:
        raise InvalidArgument(
            "parent_step_id: only with workflow_id; a conversation without one continues the step that it matches",
            field="parent_step_id",
        )
    check_labels(command.labels)


def _check_answer_form(command: RunStep) -> None:
    """What can be told without knowing the tools."""
    choice, wanted = command.tool_choice, command.response_format
    named = choice.mode is ToolChoiceMode.NAMED
    if named != bool(choice.tool_name):
        rule = "is required for" if named else "is only for"
        raise InvalidArgument(f"tool_choice.tool_name: {rule} the mode NAMED", field="tool_choice.tool_name")
    if wanted is None:
        return
    if choice.mode in {ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED}:
        raise InvalidArgument(
            f"response_format: an answer of this form can be no tool call, which tool_choice {choice.mode.name} "
            "asks for; leave one of them out",
            field="response_format",
        )
    if wanted.json_schema and (defect := schema_defect(wanted.json_schema)):
        raise InvalidArgument(f"response_format.json_schema: {defect}", field="response_format.json_schema")


def check_create(command: CreateWorkflow) -> None:
    """Check a new workflow. Raises `InvalidArgument` or `InvalidTool`."""
    check_id(command.workflow_id, "workflow_id", optional=True)
    check_id(command.parent_workflow_id, "parent_workflow_id", optional=True)
    check_labels(command.labels)
    check_sampling(command.sampling)
    check_budget(command.budget)
    check_tools(command.tools, "tools")
    _check_range(
        command.retention_seconds,
        MIN_RETENTION,
        MAX_RETENTION,
        "retention",
        f"must be {MIN_RETENTION} s to {MAX_RETENTION // DAY} days; leave it out for the server's own",
    )


def check_fork(command: ForkWorkflow) -> None:
    """Check a fork. Raises `InvalidArgument`. The caller checks the labels of both workflows together."""
    check_id(command.workflow_id, "workflow_id")
    check_id(command.step_id, "step_id", optional=True)
    check_id(command.new_workflow_id, "new_workflow_id", optional=True)
    check_labels(command.labels)


def check_outcome(outcome: Outcome) -> None:
    """Check an outcome that a client sets. Raises `InvalidArgument`."""
    by_check = outcome.source is OutcomeSource.CHECK_COMMAND
    if outcome.source is OutcomeSource.RUNTIME:
        raise InvalidArgument("outcome.source: only the runtime itself sets RUNTIME", field="outcome.source")
    if by_check != (outcome.check_exit_code is not None):
        rule = "is required for" if by_check else "is only for"
        raise InvalidArgument(
            f"outcome.check_exit_code: {rule} the source CHECK_COMMAND", field="outcome.check_exit_code"
        )
    if len(outcome.note) > MAX_NOTE:
        raise InvalidArgument(f"outcome.note: at most {MAX_NOTE} characters", field="outcome.note")


def check_page(page_size: int, page_token: str) -> int:
    """Return the page size with its default filled in. Raises `InvalidArgument`; what the token says is for the
    ledger to check."""
    if not 0 <= page_size <= MAX_PAGE_SIZE:
        raise InvalidArgument(
            f"page_size: must be 1 to {MAX_PAGE_SIZE}, or 0 for {DEFAULT_PAGE_SIZE}", field="page_size"
        )
    if len(page_token) > MAX_PAGE_TOKEN:
        raise InvalidArgument("page_token: not from a previous page", field="page_token")
    return page_size or DEFAULT_PAGE_SIZE


def check_id(value: str, field: str, *, optional: bool = False) -> None:
    """Check an id. Raises `InvalidArgument`."""
    if optional and not value:
        return
    if not _ID.fullmatch(value):
        raise InvalidArgument(f"{field}: must be 8 to 64 of A-Z a-z 0-9 _ -", field=field)


def check_labels(labels: Mapping[str, str], field: str = "labels") -> None:
    """Check the labels of a workflow. Raises `InvalidArgument`."""
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(f"{field}: at most {MAX_LABELS} labels", field=field, count=len(labels))
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise InvalidArgument(f"{field}: a key must match [a-z][a-z0-9_.-]{{0,62}}", field=field, key=key)
        if len(value) > MAX_LABEL_VALUE or not value.isprintable():
            raise InvalidArgument(
                f"{field}[{key}]: must be up to {MAX_LABEL_VALUE} printable characters", field=f"{field}[{key}]"
            )


def check_cost_filter(where: CostFilter) -> None:
    """Check the conditions of a cost query. Raises `InvalidArgument`."""
    if len(where.models) > MAX_FILTER_MODELS:
        raise InvalidArgument(f"filter.models: at most {MAX_FILTER_MODELS} models", field="filter.models")
    check_labels(where.labels, "filter.labels")


def check_sampling(sampling: Sampling, field: str = "sampling") -> None:
    """Check sampling parameters; NaN is out of every range. Raises `InvalidArgument`."""
    _check_range(sampling.temperature, 0, 2, f"{field}.temperature")
    _check_range(sampling.top_p, math.nextafter(0, 1), 1, f"{field}.top_p", "must be above 0 and at most 1")
    _check_range(sampling.top_k, 0, math.inf, f"{field}.top_k", "must be at least 0; 0 switches it off")
    _check_range(sampling.max_output_tokens, 1, math.inf, f"{field}.max_output_token_count", "must be at least 1")
    if len(sampling.stop) > MAX_STOPS or not all(sampling.stop):
        raise InvalidArgument(f"{field}.stop: at most {MAX_STOPS} texts, none empty", field=f"{field}.stop")


def check_budget(budget: Budget, field: str = "budget") -> None:
    """Check the limits of a workflow. Raises `InvalidArgument`."""
    for name, value in (
        ("list_cost_usd_nanos", budget.list_nanos),
        ("token_count", budget.tokens),
        ("step_count", budget.steps),
    ):
        _check_range(value, 0, math.inf, f"{field}.{name}", "must not be negative; leave it out for no limit")


def check_tools(tools: Sequence[Tool], field: str) -> None:
    """Check tool definitions. Raises `InvalidTool`."""
    if len(tools) > MAX_TOOLS:
        raise InvalidTool(f"{field}: at most {MAX_TOOLS} tools", field=field, count=len(tools))
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"{field}[{index}]"
        if not _TOOL_NAME.fullmatch(tool.tool_name):
            raise InvalidTool(f"{path}.tool_name: must be 1 to 64 of A-Z a-z 0-9 _ . -", field=f"{path}.tool_name")
        if tool.tool_name in seen:
            raise InvalidTool(f"{path}.tool_name: another tool has this name", field=f"{path}.tool_name")
        seen.add(tool.tool_name)
        if tool.parameters_json and (defect := schema_defect(tool.parameters_json)):
            raise InvalidTool(f"{path}.parameters_json: {defect}", field=f"{path}.parameters_json")


def _check_range(value: float | None, least: float, most: float, field: str, rule: str = "") -> None:
    if value is not None and not least <= value <= most:
        raise InvalidArgument(f"{field}: {rule or f'must be {least:g} to {most:g}'}", field=field, value=value)
