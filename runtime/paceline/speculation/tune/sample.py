"""The steps that are replayed: from workflows of the ledger, or from a file."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import msgspec

from paceline.errors import ConfigError
from paceline.transcript.chat import ChatModel
from paceline.transcript.context import context_of
from paceline.workflow.model import Message, Page, Role, Segments, Step, StepClass, StepState, Workflow
from paceline.workflow.stepclass import classify

PAGE = 500
ID_BYTES = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One prompt to generate from."""

    step_id: str
    prompt_json: bytes
    """Its token ids as a JSON array."""
    prompt_tokens: int
    max_tokens: int
    kind: StepClass


class StepReader(Protocol):
    """The reads of the ledger that a sample needs."""

    async def list_steps(self, tenant: str, workflow_id: str, page_size: int, page_token: str) -> Page[Step]:
        """Oldest first."""
        ...

    async def load_chain(self, tenant: str, step_id: str) -> list[Step]:
        """The step and its ancestors, root first."""
        ...


class _FileMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: Role
    content: str = ""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a sample file."""

    prompt_ids: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    messages: list[_FileMessage] = []
    max_tokens: Annotated[int, msgspec.Meta(ge=2)] | None = None
    kind: StepClass = msgspec.field(default="unknown", name="class")


async def finished_steps(ledger: StepReader, workflows: Sequence[Workflow]) -> list[tuple[Workflow, list[Step]]]:
    """The workflows with their finished steps."""
    return [(workflow, await _finished(ledger, workflow)) for workflow in workflows]


async def of_steps(
    ledger: StepReader, steps: Sequence[Step], tokenizer_hash: str, count: int, most_tokens: int
) -> list[ReplayStep]:
    """At most `count` finished steps with their prompts, token by token as they were sent.

    Each may generate what it generated then, at most `most_tokens`. Raises `ConfigError` where there is none, or
    only ones whose ids another tokenizer made.
    """
    found = [
        (step, step.segments) for step in steps if step.segments and step.segments.tokenizer_hash == tokenizer_hash
    ]
    chosen = [await _replay(ledger, step, segments, most_tokens) for step, segments in choose(found, count)]
    replays = [replay for replay in chosen if replay]
    if not replays:
        why = (
            f"{len(steps)} have ids of another tokenizer than the target's, or their content is deleted"
            if steps
            else "none is finished"
        )
        raise ConfigError(f"--workflow, --label: no step to replay: {why}")
    return replays


async def of_file(path: Path, chat: ChatModel, most_tokens: int) -> list[ReplayStep]:
    """The steps of a JSONL file. Raises `ConfigError`, naming the line, for what is no step."""
    try:
        lines = (await asyncio.to_thread(path.read_text, encoding="utf-8")).splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--steps-file {path}: {error}; name a readable file") from None
    found = []
    for number, text in enumerate(lines, start=1):
        if text.strip():
            found.append(await _from_line(f"--steps-file {path}, line {number}", text, number, chat, most_tokens))
    if not found:
        raise ConfigError(f"--steps-file {path}: is empty")
    return found


def choose(steps: Sequence[T], count: int) -> list[T]:
    """At most `count` of them, evenly spread, so that early and late steps of workflows are in."""
    if len(steps) <= count:
        return list(steps)
    return [steps[place * len(steps) // count] for place in range(count)]


def digest(steps: Sequence[ReplayStep]) -> str:
    """A hash of what is asked, to tell whether two measurements asked the same."""
    content = b"\n".join(b"%d %s" % (step.max_tokens, step.prompt_json) for step in steps)
    return hashlib.sha256(content).hexdigest()


async def _finished(ledger: StepReader, workflow: Workflow) -> list[Step]:
    steps: list[Step] = []
    token = ""
    while True:
        page = await ledger.list_steps(workflow.tenant, workflow.workflow_id, PAGE, token)
        steps += [step for step in page.items if step.state is StepState.FINISHED]
        token = page.next_token
        if not token:
            return steps


async def _replay(ledger: StepReader, step: Step, segments: Segments, most_tokens: int) -> ReplayStep | None:
    """The prompt is the context after the step without what it generated; None where part of it is deleted."""
    chain = await ledger.load_chain(step.tenant, step.step_id)
    if any(before.gone for before in chain):
        return None
    context = context_of([*chain[:-1], replace(step, segments=replace(segments, generated=b""))])
    generated = len(segments.generated) // ID_BYTES
    limit = min(most_tokens, generated) or most_tokens
    return ReplayStep(step.step_id, context.prompt_json(), context.tokens, limit, classify(step.output))


async def _from_line(origin: str, text: str, number: int, chat: ChatModel, most_tokens: int) -> ReplayStep:
    try:
        line = msgspec.json.decode(text, type=_Line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{origin}: {error}") from None
    if bool(line.prompt_ids) == bool(line.messages):
        raise ConfigError(f"{origin}: give exactly one of `prompt_ids` and `messages`")
    messages = [Message(message.role, message.content) for message in line.messages]
    ids = line.prompt_ids or await chat.render_first("", (), messages)
    limit = min(most_tokens, line.max_tokens or most_tokens)
    return ReplayStep(f"line-{number}", msgspec.json.encode(ids), len(ids), limit, line.kind)
