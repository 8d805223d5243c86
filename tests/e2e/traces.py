"""Recorded sessions of coding agents as conversations.

A trace has no texts, only one id for each full block of 64 tokens of each prompt, and an id stands for the whole
prompt up to there. So each block becomes a line of text with its id, and the conversation of a request is built
from that of the request before it of the same agent:

- The blocks of the recorded tool and system tokens are the system prompt, the rest of the first request is a
  message of the user.
- A request that begins with all blocks of the one before has its messages, the answer that came, and one new
  message. Blocks that the recorded output fills stand for the answer and have no lines; the others are the new
  message: a tool's result if the answer called a tool and the trace has a result, else the user's.
- Where the first block differs, the message that has it was edited: it gets the new lines. The messages after it
  are sent again as they were.
- A request that is over 30 % shorter is a compaction: the message with the first block that differs and all after
  it become one summary. When the answer before called a tool, that call and its result still follow.
- Another model is another workflow, as the same conversation.

What has to come out is told from the block ids alone. Answers call a tool, and think, where the recorded ones do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

END_OF_LINE = ";\n"
THINK, CALL = "Think first.", "Call a tool."


@dataclass(frozen=True)
class Part:
    """A message. An answer gets its content when it is there."""

    role: str
    lines: tuple[int, ...] = ()
    """Ids of its blocks."""
    blocks: int = 0
    """How many blocks of the prompt it stands for."""
    tail: str = ""
    answer: int | None = None
    """Index of the request whose answer it is. With lines, it is an edited one."""

    @property
    def text(self) -> str:
        """Its content, but for an answer that was not edited."""
        return "".join(f"{line}{END_OF_LINE}" for line in self.lines) + self.tail


@dataclass(frozen=True)
class Request:
    """One request of an agent, and what has to come out."""

    number: int
    parts: tuple[Part, ...]
    calls: bool
    """Whether its answer calls a tool."""
    new_workflow: bool
    reason: str = ""
    """Why it does not continue the request before."""
    at: int | None = None
    """The first part that is another one."""
    kept_lines: int = 0
    """Lines before the first block that differs."""
    children: tuple[Agent, ...] = ()
    """Sub-agents that run after its answer, before the next request."""


@dataclass(frozen=True)
class Agent:
    """The requests of one agent."""

    name: str
    requests: tuple[Request, ...] = field(repr=False)


def read_trace(path: Path) -> Agent:
    """The main agent of a trace."""
    return _agent(path.stem, json.loads(path.read_text()))


def _agent(name: str, recorded: dict[str, Any]) -> Agent:
    system = (recorded["tool_tokens"] + recorded["system_tokens"]) // 64
    requests: list[Request] = []
    before: dict[str, Any] | None = None
    for entry in recorded["requests"]:
        if entry["type"] == "subagent":
            # It ran between two requests of the parent, whenever exactly; those of one pause ran side by side.
            child = _agent(f"{name}/{entry['agent_id']}", entry)
            requests[-1] = replace(requests[-1], children=(*requests[-1].children, child))
            continue
        requests.append(_request(requests[-1] if requests else None, before, entry, system))
        before = entry
    return Agent(name, tuple(requests))


def _request(last: Request | None, before: dict[str, Any] | None, now: dict[str, Any], system: int) -> Request:
    ids = tuple(now["hash_ids"])
    calls = "tool_use" in now["output_types"]
    tail = _tail(now, last.number + 1 if last else 0)
    if last is None or before is None or before["model"] != now["model"]:
        system = min(system, len(ids))
        first = Part("system", ids[:system], system), Part("user", ids[system:], len(ids) - system, tail)
        return Request(last.number + 1 if last else 0, first, calls, new_workflow=True)
    old = tuple(before["hash_ids"])
    kept = next((at for at, pair in enumerate(zip(old, ids, strict=False)) if pair[0] != pair[1]), len(old))
    assert kept <= len(ids), "a prompt that only ends earlier is in none of the traces"
    role = "tool" if last.calls and "tool_result" in now["input_types"] else "user"
    answer = Part("assistant", blocks=min(before["out"] // 64, max(0, len(ids) - len(old))), answer=last.number)
    draft = Request(last.number + 1, (), calls, new_workflow=False)
    if kept == len(old):
        return replace(draft, parts=(*last.parts, answer, _rest(role, ids, len(old) + answer.blocks, tail)))
    at, start = _part_at(last.parts, kept)
    kept_lines = sum(len(part.lines) for part in last.parts[:at])
    edited = last.parts[at]
    shrinks = now["in"] < 0.7 * before["in"]
    if edited.role == "user" or not shrinks:
        kept_lines += min(kept - start, len(edited.lines))
    draft = replace(draft, at=at, kept_lines=kept_lines)
    if shrinks:
        summary = _rest("user", ids, start, "" if role == "tool" else tail)
        recent = (replace(answer, blocks=0), Part(role, tail=tail)) if role == "tool" else ()
        return replace(draft, parts=(*last.parts[:at], summary, *recent), reason="compacted")
    edited = replace(edited, lines=ids[start : start + edited.blocks])
    again = (*last.parts[:at], edited, *last.parts[at + 1 :], answer)
    parts = (*again, _rest(role, ids, sum(part.blocks for part in again), tail))
    return replace(draft, parts=parts, reason="edited_history" if at else "system_changed")


def _tail(recorded: dict[str, Any], number: int) -> str:
    """What lets the emulated engine answer as the recorded answer was made."""
    marks = [mark for kind, mark in (("thinking", THINK), ("tool_use", CALL)) if kind in recorded["output_types"]]
    return " ".join([f"Request {number}.", *marks])


def _rest(role: str, ids: tuple[int, ...], start: int, tail: str) -> Part:
    return Part(role, ids[start:], max(0, len(ids) - start), tail)


def _part_at(parts: tuple[Part, ...], block: int) -> tuple[int, int]:
    """The part that has a block, and its first block."""
    start = 0
    for at, part in enumerate(parts):
        if block < start + part.blocks:
            return at, start
        start += part.blocks
    raise AssertionError("the parts stand for all blocks of the prompt")


@dataclass(frozen=True)
class ModelCall:
    """One call of a recorded graph of agents."""

    name: str
    messages: tuple[tuple[str, str], ...]
    """Role and content."""
    output: str
    start: str
    end: str

    @property
    def said(self) -> tuple[tuple[str, str], ...]:
        """The conversation with its answer."""
        return (*self.messages, ("assistant", self.output))


def read_graph(path: Path) -> list[ModelCall]:
    """The calls of OpenTelemetry spans, by their start."""
    spans = json.loads(path.read_text())["spans"]
    return sorted((_call(span) for span in spans), key=lambda call: call.start)


def _call(span: dict[str, Any]) -> ModelCall:
    attributes = span["attributes"]
    output = attributes.get("gen_ai.output.text")
    if output is None:
        output = json.loads(attributes["gen_ai.output.messages"])[0]["content"]
    messages = json.loads(attributes["gen_ai.input.messages"])
    said = tuple((message["role"], message["content"]) for message in messages)
    return ModelCall(span["span_id"], said, output, span["start_time"], span["end_time"])


def waves(calls: list[ModelCall]) -> Iterator[list[ModelCall]]:
    """The calls that run side by side: each began before the first of its wave had ended."""
    wave: list[ModelCall] = []
    for call in calls:
        if wave and call.start >= min(one.end for one in wave):
            yield wave
            wave = []
        wave.append(call)
    if wave:
        yield wave
