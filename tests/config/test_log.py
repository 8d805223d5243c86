"""What a process writes to its log, seen from outside."""

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import logging, sys
import structlog
from paceline.config import Log
from paceline.log import configure
configure(Log(**{settings!r}))
configure(Log(**{settings!r}))
log = structlog.get_logger()
{body}
"""


def output(body: str, **settings: object) -> str:
    """Standard error of a child that logs; its standard output must stay empty."""
    program = PROGRAM.format(settings=settings, body=body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def lines(body: str, **settings: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output(body, **settings).splitlines()]


def test_json_where_there_is_no_terminal() -> None:
    body = "structlog.contextvars.bind_contextvars(step_id='s1')\nlog.info('step.finished', output_tokens=7)"
    (line,) = lines(body)
    assert line.pop("time").endswith("Z")
    assert line == {"event": "step.finished", "level": "info", "step_id": "s1", "output_tokens": 7}


def test_pretty_on_a_terminal() -> None:
    master, slave = pty.openpty()
    program = PROGRAM.format(settings={}, body="log.info('step.finished', output_tokens=7)")
    subprocess.run([sys.executable, "-c", program], stderr=slave, check=True)
    os.close(slave)
    text = os.read(master, 10_000).decode()
    os.close(master)
    assert "step.finished" in text
    assert not text.lstrip().startswith("{")


def test_pretty_on_request() -> None:
    assert "{" not in output("log.info('step.finished', output_tokens=7)", format="pretty")


def test_level() -> None:
    assert [line["event"] for line in lines("log.info('a'); log.warning('b')", level="warning")] == ["b"]


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_content_and_secrets_are_withheld(form: str) -> None:
    body = (
        "log.info('e', prompt='hidden', request={'messages': ['hidden'], 'x': [{'api_key': 'hidden'}]}, "
        "prompt_json=b'hidden', generated=['hidden'], tokens=1)"
    )
    assert "hidden" not in output(body, format=form)


def test_content_on_request_but_never_secrets() -> None:
    (line,) = lines("log.info('e', prompt='shown', authorization='hidden')", content=True)
    assert line["prompt"] == "shown"
    assert line["authorization"] == "[withheld]"


RAISING = """
def fail():
    prompt = 'hid' + 'den'
    raise KeyError('broken')
try:
    fail()
except KeyError:
    log.exception('failed')
"""


def test_traceback_is_data_in_json() -> None:
    (line,) = lines(RAISING)
    (error,) = line["exception"]
    assert (error["exc_type"], error["exc_value"]) == ("KeyError", "'broken'")
    assert error["frames"][-1]["name"] == "fail"


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_traceback_holds_no_local_variables(form: str) -> None:
    text = output(RAISING, format=form)
    assert "broken" in text
    assert "hidden" not in text


def test_libraries_take_the_same_way_from_warning_on() -> None:
    body = "logging.getLogger('alembic').info('a'); logging.getLogger('grpc.aio').warning('b %s', 'c')"
    (line,) = lines(body, level="debug")
    line.pop("time")
    assert line == {"event": "b c", "level": "warning", "logger": "grpc.aio"}


def test_values_without_a_json_form_do_not_lose_the_line() -> None:
    (line,) = lines("log.info('e', path=__import__('pathlib').Path('x'), counts={1: 2})")
    assert "x" in line["path"]
    assert line["counts"] == {"1": 2}
