"""Whatever a client may send to any method of a running server."""

from __future__ import annotations

import asyncio
import base64
import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from tests.e2e.conftest import Emulator, serve

from paceline.v1 import cost_service_pb2, step_service_pb2, workflow_service_pb2

WORKFLOW = "workflow-1"
SECONDS = 10.0
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
}
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in (step_service_pb2, workflow_service_pb2, cost_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["", "\0", "\ud7ff\U0010ffff", "a" * 5000, "e\u0301\u202e", "{}", "[" * 2000, "<tool_call>", "m"]
    ),
)
ids = st.sampled_from(
    [*[WORKFLOW] * 12, "workflow-2", "unknown-id", "", "\0" * 8, "wf/../../x", "ü" * 8, "a" * 5000]
)
tokens = st.sampled_from(
    [
        base64.urlsafe_b64encode(text.encode()).decode()
        for text in ('[1,"a"]', '[-1,"\\u0000"]', f'[{10**30},"a"]', '["a"]', "[1.5]", "{}", "[" * 500, "[]")
    ]
)
schemas = st.sampled_from(
    [
        "",
        "{}",
        "[]",
        "nul",
        '{"type":7}',
        '{"$ref":"#/none"}',
        '{"$ref":"http://["}',
        '{"$ref":"#"}',
        '{"$schema":"x"}',
        '{"$schema":{}}',
        '{"$id":"::","properties":{"a":{"$ref":"b"}}}',
        '{"pattern":"("}',
        '{"a":' * 900 + "1" + "}" * 900,
    ]
)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "workflow_id": ids,
    "parent_workflow_id": ids,
    "page_token": st.one_of(st.just(""), tokens, texts),
    "page_size": st.sampled_from([0, 1, 2, -1, 1001, 2**31 - 1]),
    "parameters_json": schemas,
    "tool_name": st.one_of(st.just("tool"), texts),
    "model": st.one_of(st.just("m"), texts),
    "role": st.sampled_from([*[2] * 9, *[4] * 6, 3, 1, 0, 5, 2**31 - 1]),
    "content": texts.map(lambda text: text or "hello"),
    "on_busy": st.sampled_from([0, 1, 2, 3, 4, -1]),
    "group_by": st.one_of(
        st.sampled_from(["model", "outcome", "workflow", "day", "tenant", "label:a", "label:"]), texts
    ),
}
USUAL = {"workflow_id", "append", "messages", "role", "content", "outcome"}
"""Fields that are set always: without them most requests would end at the first check."""
numbers = [0.0, -0.0, 1.0, 0.5, 2.0, math.nan, math.inf, -math.inf, 5e-324, 1.7e308]


def integers(bits: int) -> st.SearchStrategy[int]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.sampled_from([0, 1, -1, least, most]), st.integers(least, most))


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values of one field, or of one item of it."""
    if field.name in BY_NAME:
        return BY_NAME[field.name]
    kinds: dict[int, st.SearchStrategy[Any]] = {
        FieldDescriptor.TYPE_STRING: texts,
        FieldDescriptor.TYPE_BOOL: st.booleans(),
        FieldDescriptor.TYPE_DOUBLE: st.sampled_from(numbers),
        FieldDescriptor.TYPE_INT32: integers(32),
        FieldDescriptor.TYPE_INT64: integers(64),
        FieldDescriptor.TYPE_ENUM: st.integers(-1, 8),
    }
    return messages(field.message_type) if field.message_type else kinds[field.type]


def fields_of(message: Descriptor) -> dict[str, st.SearchStrategy[Any]]:
    """A strategy for each field."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for field in message.fields:
        if field.message_type and field.message_type.GetOptions().map_entry:
            found[field.name] = st.dictionaries(st.one_of(st.just("a"), texts), texts, max_size=3)
        elif field.is_repeated:
            found[field.name] = st.lists(values(field), min_size=field.name in USUAL, max_size=3)
        else:
            found[field.name] = values(field)
    return found


def messages(message: Descriptor) -> st.SearchStrategy[Message]:
    """Messages with a few of their fields set; of a oneof the last wins."""
    make, fields = GetMessageClass(message), fields_of(message)
    usual = [name for name in fields if name in USUAL]
    others = [name for name in fields if name not in USUAL]
    chosen = st.lists(st.sampled_from(others), max_size=2, unique=True) if others else st.just(list[str]())
    return chosen.flatmap(lambda some: st.fixed_dictionaries({name: fields[name] for name in usual + some})).map(
        lambda given: make(**given)
    )


@contextmanager
def runtime(ledger: Path) -> Iterator[grpc.Channel]:
    """A channel to a runtime in a thread of its own, with one workflow."""
    engine = Emulator("--time-scale=0", "--reply-tokens=5", "--max-model-len=4096")
    ready: list[str] = []
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        try:
            async with serve(ledger, engine.url) as paceline:
                await paceline.client.create_workflow(workflow_id=WORKFLOW)
                ready.append(paceline.target)
                started.set()
                await stop.wait()
        finally:
            started.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    started.wait()
    try:
        with grpc.insecure_channel(ready[0]) as opened:
            yield opened
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
        engine.kill()


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a method."""

    method: str
    request: Message


def code_of(channel: grpc.Channel, call: Call) -> grpc.StatusCode:
    """Make a call and read it to its end."""
    method = METHODS[call.method]
    answer = GetMessageClass(method.output_type)
    kind: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
    begin = kind(call.method, type(call.request).SerializeToString, answer.FromString)
    try:
        answered = begin(call.request, timeout=SECONDS)
        for _ in answered if method.server_streaming else ():
            pass
    except grpc.RpcError as error:
        return cast("grpc.StatusCode", cast("Any", error).code())
    return grpc.StatusCode.OK


def check(channel: grpc.Channel, call: Call) -> None:
    """Send a request: there is an answer, or an error that says what to change, and soon."""
    code = code_of(channel, call)
    assert code in ANSWERS, code


@contextmanager
def checked() -> Iterator[Callable[[Any], None]]:
    """Start a runtime, and return what sends it a request."""
    with tempfile.TemporaryDirectory() as folder, runtime(Path(folder) / "ledger.db") as channel:
        yield lambda call: check(channel, call)


def spared(request: Any) -> Any:
    """A request that deletes nothing of the workflow that all others use."""
    if request.workflow_id == WORKFLOW:
        request.workflow_id = "workflow-2"
    return request


def calls_of(path: str) -> st.SearchStrategy[Call]:
    """Calls of a method."""
    requests = messages(METHODS[path].input_type)
    spares = METHODS[path].name.startswith("Delete")
    return st.builds(Call, method=st.just(path), request=requests.map(spared) if spares else requests)


cases = st.sampled_from(list(METHODS)).flatmap(calls_of)
