"""What is refused before anything happens, and by which name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from paceline.errors import InvalidArgument, InvalidMessage, InvalidTool
from paceline.workflow.commands import Append, Conversation, CreateWorkflow, ForkWorkflow, RunStep
from paceline.workflow.model import (
    Budget,
    Message,
    Outcome,
    OutcomeKind,
    OutcomeSource,
    Role,
    Sampling,
    Tool,
    ToolCall,
)
from paceline.workflow.validation import (
    check_create,
    check_fork,
    check_outcome,
    check_page,
    check_run_step,
)

USER = Message(Role.USER, "Hi")
SYSTEM = Message(Role.SYSTEM, "Be brief")
CALL_A, CALL_B = ToolCall("a", "read", "{}"), ToolCall("b", "read", "{}")
CALLS = Message(Role.ASSISTANT, tool_calls=(CALL_A, CALL_B))
ONE_CALL = Message(Role.ASSISTANT, tool_calls=(CALL_A,))
NAMELESS = Message(Role.ASSISTANT, tool_calls=(ToolCall("", "read", "{}"), ToolCall("", "read", "{}")))
RUN = RunStep("t", "workflow-1", "", Append((USER,)))
CREATE = CreateWorkflow("t")


def result(call_id: str = "", content: str = "ok") -> Message:
    """Return a tool message."""
    return Message(Role.TOOL, content, tool_call_id=call_id)


@pytest.mark.parametrize("value", ["abcdefgh", "A_-09zZz", "x" * 64])
def test_good_ids(value: str) -> None:
    check_run_step(replace(RUN, workflow_id=value, request_id=value, parent_step_id=value))


def test_a_conversation_needs_no_workflow() -> None:
    check_run_step(
        replace(RUN, workflow_id="", input=Conversation((SYSTEM, USER)), labels={"team": "a"}, model="m")
    )


@pytest.mark.parametrize(
    ("change", "field", "remedy"),
    [
        ({"workflow_id": ""}, "workflow_id", "send the whole conversation"),
        (
            {"workflow_id": "", "input": Conversation((USER,)), "parent_step_id": "step-0001"},
            "parent_step_id",
            "only with workflow_id",
        ),
        ({"workflow_id": "", "input": Conversation((USER,)), "labels": {"Team": "a"}}, "labels", "must match"),
        ({"labels": {"team": "a"}}, "labels", "only without workflow_id"),
    ],
    ids=["append", "parent", "bad label", "labels of a named one"],
)
def test_what_needs_a_workflow_and_what_needs_none(change: dict[str, Any], field: str, remedy: str) -> None:
    with pytest.raises(InvalidArgument, match=remedy) as caught:
        check_run_step(replace(RUN, **change))
    assert caught.value.field == field


@pytest.mark.parametrize("value", ["short", "x" * 65, "with space", "abcdefgh\n", "äbcdefgh", "a/b/c/d/e/f"])
@pytest.mark.parametrize("field", ["workflow_id", "request_id", "parent_step_id"])
def test_bad_ids(field: str, value: str) -> None:
    change: dict[str, Any] = {field: value}
    with pytest.raises(InvalidArgument) as caught:
        check_run_step(replace(RUN, **change))
    assert caught.value.field == field


def test_a_workflow_must_be_named() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_run_step(replace(RUN, workflow_id=""))
    assert caught.value.field == "workflow_id"


@pytest.mark.parametrize(
    "messages",
    [
        (SYSTEM, USER),
        (USER, Message(Role.ASSISTANT, "Yes?"), USER),
        (USER, Message(Role.ASSISTANT), USER),  # a model can answer nothing
        (USER, Message(Role.ASSISTANT, reasoning="hm"), USER),
        (USER, ONE_CALL, result()),
        (USER, ONE_CALL, result("a", "")),
        (USER, CALLS, result("b"), result("a")),
        (USER, CALLS, result("b"), USER),  # the other call stays open
        (USER, ONE_CALL, result("a"), ONE_CALL, result("a")),  # clients number the calls of each turn anew
        (USER, NAMELESS, result(), result()),  # answered in their order
        (USER, NAMELESS, result()),
    ],
)
def test_good_conversations(messages: tuple[Message, ...]) -> None:
    check_run_step(replace(RUN, input=Conversation(messages)))


@pytest.mark.parametrize(
    "messages", [(result("x"), result("y")), (result(),), (result("x"), USER), (ONE_CALL, result())]
)
def test_good_appends(messages: tuple[Message, ...]) -> None:
    check_run_step(replace(RUN, input=Append(messages)))


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ((), ""),
        ((Message(Role.USER, ""),), "[0].content"),
        ((Message(Role.SYSTEM, ""), USER), "[0].content"),
        ((USER, SYSTEM, USER), "[1].role"),
        ((SYSTEM,), "[0].role"),
        ((USER, Message(Role.ASSISTANT, "Yes?")), "[1].role"),
        ((replace(USER, tool_calls=(CALL_A,)),), "[0].tool_calls"),
        ((replace(USER, reasoning="hm"),), "[0].reasoning"),
        ((replace(USER, tool_call_id="a"),), "[0].tool_call_id"),
        ((replace(USER, tool_name="a"),), "[0].tool_name"),
        (
            (USER, replace(ONE_CALL, tool_calls=(CALL_A, ToolCall("", "read", "{}"))), USER),
            "[1].tool_calls[1].tool_call_id",
        ),
        ((USER, NAMELESS, result(), result(), result()), "[4].tool_call_id"),
        ((USER, NAMELESS, result("a")), "[2].tool_call_id"),
        ((USER, replace(ONE_CALL, tool_calls=(CALL_A, CALL_A)), USER), "[1].tool_calls[1].tool_call_id"),
        ((USER, replace(ONE_CALL, tool_calls=(ToolCall("a", "", "{}"),)), USER), "[1].tool_calls[0].tool_name"),
        ((USER, result("a")), "[1].tool_call_id"),
        ((USER, result()), "[1].tool_call_id"),
        ((USER, CALLS, result()), "[2].tool_call_id"),
        ((USER, CALLS, result("c")), "[2].tool_call_id"),
        ((USER, CALLS, result("a"), result("a")), "[3].tool_call_id"),
        ((USER, ONE_CALL, result("a"), Message(Role.ASSISTANT, "x"), result("a")), "[4].tool_call_id"),
    ],
)
def test_bad_conversations(messages: tuple[Message, ...], field: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        check_run_step(replace(RUN, input=Conversation(messages)))
    assert caught.value.field == f"conversation.messages{field}"
    assert caught.value.message.startswith(caught.value.field)


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ((), ""),
        ((SYSTEM, USER), "[0].role"),
        ((result("x"), result("x")), "[1].tool_call_id"),
        ((result(), result()), "[1].tool_call_id"),
        ((ONE_CALL, result("b")), "[1].tool_call_id"),
    ],
)
def test_bad_appends(messages: tuple[Message, ...], field: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        check_run_step(replace(RUN, input=Append(messages)))
    assert caught.value.field == f"append.messages{field}"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_output_tokens": 1, "seed": -1},
        {"temperature": 2.0, "top_p": 5e-324, "stop": ("x",) * 16},
    ],
)
def test_good_sampling(values: dict[str, Any]) -> None:
    check_run_step(replace(RUN, sampling=Sampling(**values)))


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        *[("temperature", value, "temperature") for value in (-0.1, 2.1, math.nan, math.inf)],
        *[("top_p", value, "top_p") for value in (0.0, -1.0, 1.0001, math.nan)],
        ("top_k", -1, "top_k"),
        ("max_output_tokens", 0, "max_output_token_count"),
        ("stop", ("x",) * 17, "stop"),
        ("stop", ("x", ""), "stop"),
    ],
)
def test_bad_sampling(name: str, value: Any, field: str) -> None:
    sampling = Sampling(**{name: value})
    for check in (
        partial(check_run_step, replace(RUN, sampling=sampling)),
        partial(check_create, replace(CREATE, sampling=sampling)),
    ):
        with pytest.raises(InvalidArgument) as caught:
            check()
        assert caught.value.field == f"sampling.{field}"


@pytest.mark.parametrize("grace", [-0.1, 60.1, math.nan, math.inf])
def test_bad_grace(grace: float) -> None:
    check_run_step(replace(RUN, detach_grace=60.0))
    with pytest.raises(InvalidArgument) as caught:
        check_run_step(replace(RUN, detach_grace=grace))
    assert caught.value.field == "detach_grace"


DEFINED = '{"$defs": {"a": {}}, "properties": {"x": {"$ref": "#/$defs/a"}}}'
OLD_DIALECT = '{"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}]}'


@pytest.mark.parametrize("schema", ["", "{}", '{"type": "object"}', DEFINED, OLD_DIALECT])
def test_good_tools(schema: str) -> None:
    check_create(replace(CREATE, tools=(Tool("read_file.v-1", "", schema), Tool("x", "", schema))))


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[]",
        "null",
        '{"type": "objekt"}',
        '{"minimum": NaN}',
        '{"$schema": "http://example.com/dialect"}',
        '{"$schema": 7}',
        '{"$ref": "http://example.com/schema"}',
        '{"$ref": "file:///etc/passwd"}',
        '{"$ref": "#/$defs/absent"}',
        '{"$ref": "http://["}',
        '{"properties": {"x": {"$dynamicRef": "#absent"}}}',
        '{"not":' * 900 + "{}" + "}" * 900,
        "[" * 100_000,
        json.dumps({"description": "x" * 65_536}),
    ],
    ids=lambda schema: schema[:20],
)
def test_bad_tool_schemas(schema: str) -> None:
    tools = (Tool("ok"), Tool("bad", "", schema))
    with pytest.raises(InvalidTool) as caught:
        check_create(replace(CREATE, tools=tools))
    assert caught.value.field == "tools[1].parameters_json"
    with pytest.raises(InvalidTool) as caught:
        check_run_step(replace(RUN, tools=tools))
    assert caught.value.field == "tools.tools[1].parameters_json"


@pytest.mark.parametrize("name", ["", "x" * 65, "read file", "réad", "read\n"])
def test_bad_tool_names(name: str) -> None:
    with pytest.raises(InvalidTool) as caught:
        check_create(replace(CREATE, tools=(Tool(name),)))
    assert caught.value.field == "tools[0].tool_name"


def test_tool_names_differ() -> None:
    with pytest.raises(InvalidTool) as caught:
        check_create(replace(CREATE, tools=(Tool("read"), Tool("read"))))
    assert caught.value.field == "tools[1].tool_name"


def test_too_many_tools() -> None:
    check_create(replace(CREATE, tools=tuple(Tool(f"t{i}") for i in range(128))))
    with pytest.raises(InvalidTool) as caught:
        check_create(replace(CREATE, tools=tuple(Tool(f"t{i}") for i in range(129))))
    assert caught.value.field == "tools"


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ({"Team": "a"}, "labels"),
        ({"": "a"}, "labels"),
        ({"x" * 64: "a"}, "labels"),
        ({"team\n": "a"}, "labels"),
        ({f"k{i}": "" for i in range(33)}, "labels"),
        ({"team": "x" * 257}, "labels[team]"),
        ({"team": "a\nb"}, "labels[team]"),
        ({"team": "\x00"}, "labels[team]"),
    ],
)
def test_bad_labels(labels: dict[str, str], field: str) -> None:
    for check in (
        partial(check_create, replace(CREATE, labels=labels)),
        partial(check_fork, ForkWorkflow("t", "workflow-1", labels=labels)),
    ):
        with pytest.raises(InvalidArgument) as caught:
            check()
        assert caught.value.field == field


def test_good_labels() -> None:
    check_create(replace(CREATE, labels={f"k{i}._-": "Ünï code " + "x" * 247 for i in range(32)}))


@pytest.mark.parametrize("name", ["list_nanos", "tokens", "steps"])
def test_budgets_are_not_negative(name: str) -> None:
    check_create(replace(CREATE, budget=Budget(**{name: 0})))
    with pytest.raises(InvalidArgument) as caught:
        check_create(replace(CREATE, budget=Budget(**{name: -1})))
    assert caught.value.field.startswith("budget.")


@pytest.mark.parametrize("seconds", [-1, 0, 59, 36_501 * 86_400])
def test_bad_retention(seconds: int) -> None:
    for good in (None, 60, 36_500 * 86_400):
        check_create(replace(CREATE, retention_seconds=good))
    with pytest.raises(InvalidArgument, match="60 s to 36500 days") as caught:
        check_create(replace(CREATE, retention_seconds=seconds))
    assert caught.value.field == "retention"


@pytest.mark.parametrize("field", ["workflow_id", "parent_workflow_id"])
def test_bad_ids_of_a_new_workflow(field: str) -> None:
    change: dict[str, Any] = {field: "short"}
    with pytest.raises(InvalidArgument) as caught:
        check_create(replace(CREATE, **change))
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["workflow_id", "step_id", "new_workflow_id"])
def test_bad_ids_of_a_fork(field: str) -> None:
    fork = ForkWorkflow("t", "workflow-1")
    check_fork(fork)
    change: dict[str, Any] = {field: "short"}
    with pytest.raises(InvalidArgument) as caught:
        check_fork(replace(fork, **change))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("source", "exit_code", "note", "field"),
    [
        (OutcomeSource.RUNTIME, None, "", "outcome.source"),
        (OutcomeSource.CHECK_COMMAND, None, "", "outcome.check_exit_code"),
        (OutcomeSource.CLIENT, 0, "", "outcome.check_exit_code"),
        (OutcomeSource.PERSON, None, "x" * 1001, "outcome.note"),
    ],
)
def test_bad_outcomes(source: OutcomeSource, exit_code: int | None, note: str, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_outcome(Outcome(OutcomeKind.FAILED, source, exit_code, note))
    assert caught.value.field == field


def test_good_outcomes() -> None:
    check_outcome(Outcome(OutcomeKind.FAILED, OutcomeSource.CHECK_COMMAND, 1, "x" * 1000))
    check_outcome(Outcome(OutcomeKind.UNKNOWN, OutcomeSource.CI))


def test_pages() -> None:
    assert check_page(0, "") == 50
    assert [check_page(size, "t") for size in (1, 1000)] == [1, 1000]
    for size, token, field in ((-1, "", "page_size"), (1001, "", "page_size"), (1, "x" * 1025, "page_token")):
        with pytest.raises(InvalidArgument) as caught:
            check_page(size, token)
        assert caught.value.field == field
