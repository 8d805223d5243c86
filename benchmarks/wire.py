"""Bytes from the client to the runtime: only what is new, against the whole conversation each time.

The conversations are those of recorded agents when PACELINE_DATA names the public traces, else one made up. Traces
have no texts: each block of 64 recorded tokens becomes as many bytes of program text as Qwen's tokenizer makes 64
tokens of. What is counted are serialized `RunStepRequest` messages. A client that appends still has to send the
whole conversation where it was edited or compacted, and at its first step.

    PACELINE_DATA=... python -m benchmarks.wire
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from benchmarks._chains import real_tokenizer
from benchmarks._common import Report, source_text
from benchmarks.matching import again, steps_of
from tests.e2e.traces import Agent, Part, Request, read_trace

from paceline.v1 import message_pb2
from paceline.v1.message_pb2 import Message, ToolCall
from paceline.v1.step_service_pb2 import Append, Conversation, RunStepRequest
from paceline.workflow import model

BLOCK_TOKENS = 64
MADE_UP = (40_000, 400_000)
ROLES = {
    "system": message_pb2.ROLE_SYSTEM,
    "user": message_pb2.ROLE_USER,
    "assistant": message_pb2.ROLE_ASSISTANT,
    "tool": message_pb2.ROLE_TOOL,
}


class Wire:
    """Counts both ways."""

    def __init__(self) -> None:
        self.requests = self.appended = self.resent = self.whole = 0

    def count(self, whole: list[Message], new: list[Message] | None) -> None:
        """One request; `new` is None where there is no other way than to send everything."""
        resent = _size(conversation=Conversation(messages=whole))
        self.requests += 1
        self.resent += resent
        self.whole += new is None
        self.appended += resent if new is None else _size(append=Append(messages=new))

    def row(self, name: str) -> dict[str, object]:
        """Its line of the table."""
        return {
            "conversations": name,
            "requests": self.requests,
            "of them whole": self.whole,
            "resent MB": self.resent / 1e6,
            "appended MB": self.appended / 1e6,
            "ratio": self.resent / self.appended,
        }


def _size(*, append: Append | None = None, conversation: Conversation | None = None) -> int:
    request = RunStepRequest(workflow_id="w" * 26, request_id="r" * 32, append=append, conversation=conversation)
    return request.ByteSize()


class Texts:
    """Stands in for the texts of a trace."""

    def __init__(self, bytes_per_token: float) -> None:
        self._text = "".join(islice(cycle([source_text()]), 8))
        self._block = round(BLOCK_TOKENS * bytes_per_token)

    def message(self, part: Part) -> Message:
        """A message of the size of the recorded one."""
        content = self._text[: part.blocks * self._block] + part.tail
        return Message(role=ROLES[part.role], content=content)


def every_request(agent: Agent) -> Iterator[Request]:
    """The requests of an agent and of its sub-agents."""
    for request in agent.requests:
        yield request
        for child in request.children:
            yield from every_request(child)


def traced(folder: Path, texts: Texts) -> Wire:
    """The recorded agents."""
    wire = Wire()
    for path in sorted(folder.glob("trace_*.json")):
        for request in every_request(read_trace(path)):
            whole = [texts.message(part) for part in request.parts]
            goes_on = not request.new_workflow and not request.reason
            wire.count(whole, whole[-1:] if goes_on else None)
    return wire


def made_up(size: int) -> Wire:
    """One conversation with calls of tools, of about so many bytes."""
    wire = Wire()
    steps = steps_of(size)
    for end, step in enumerate(steps):
        said = [*again(steps[:end])[:-1], *step.input]
        whole = [_message(message) for message in said]
        wire.count(whole, whole[-1:] if end else None)
    return wire


def _message(message: model.Message) -> Message:
    calls = [
        ToolCall(tool_call_id=call.tool_call_id, tool_name=call.tool_name, arguments_json=call.arguments_json)
        for call in message.tool_calls
    ]
    return Message(
        role=ROLES[message.role],
        content=message.content,
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        tool_name=message.tool_name,
    )


def main() -> None:
    """Run it."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    report, rows = Report("wire"), [made_up(size).row(f"made up, {size // 1000} kB") for size in MADE_UP]
    if folder := os.environ.get("PACELINE_DATA"):
        with tempfile.TemporaryDirectory() as scratch:
            tokenizer = asyncio.run(real_tokenizer(Path(scratch))).tokenizer
        text = source_text()
        bytes_per_token = len(text.encode()) / len(tokenizer.encode_now(text))
        report.say(f"recorded tokens count as {bytes_per_token:.2f} bytes each, as in this program's text")
        rows.append(traced(Path(folder) / "agent_traces", Texts(bytes_per_token)).row("40 recorded sessions"))
    else:
        report.say("PACELINE_DATA is not set: without the recorded sessions")
    report.table("rows", "Bytes from client to runtime", rows)
    report.write()


if __name__ == "__main__":
    main()
