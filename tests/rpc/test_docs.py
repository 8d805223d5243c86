"""`docs/api.md` says what is true."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.rpc.fakes import Served

from paceline.config import Server
from paceline.rpc.server import KEEPALIVE_OPTIONS
from paceline.rpc.status import CODES, table
from paceline.v1 import cost_service_pb2, step_service_pb2, workflow_service_pb2

PAGE = (Path(__file__).resolve().parents[2] / "docs/api.md").read_text()


def test_the_table_of_errors_is_current() -> None:
    assert f"-->\n{table()}\n<!-- END generated -->" in PAGE
    assert all(f"`{error.reason}`" in table() for error in CODES)


def test_each_method_and_event_is_there() -> None:
    files = (step_service_pb2, workflow_service_pb2, cost_service_pb2)
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    names = [name for service in services for name in (service.name, *(method.name for method in service.methods))]
    names += [field.name for field in step_service_pb2.RunStepResponse.DESCRIPTOR.fields]
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_the_limits_are_those_of_the_server() -> None:
    options = dict(KEEPALIVE_OPTIONS)
    assert f"every {options['grpc.keepalive_time_ms'] // 1000} s and drops it after" in PAGE
    assert f"after {options['grpc.keepalive_timeout_ms'] // 1000} s without an answer" in PAGE
    assert f"than every {options['grpc.http2.min_recv_ping_interval_without_data_ms'] // 1000} s, else" in PAGE
    assert f"`server.max_message_mib` ({Server().max_message_mib} MiB)" in PAGE


async def test_the_walk_through_runs(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    code = found.group(1).replace("127.0.0.1:7450", f"127.0.0.1:{served.server.port}")
    with capture_logs():
        await asyncio.to_thread(exec, code, {})
    assert capsys.readouterr().out == "16 prompt tokens came from the cache\n7 nano-USD\n"
    assert served.steps.commands[0].request_id == "question-1"
