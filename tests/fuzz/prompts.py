"""Random conversations on real templates and vocabularies: what was sent stays a prefix of what is sent."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from hypothesis import strategies as st
from tests.fuzz.answers import damaged, harmony_messages, json_calls, words, xml_calls
from tests.transcript import models
from tests.transcript.conversations import TOOLS, user

from paceline.transcript.chat import ChatModel, load
from paceline.transcript.context import Context
from paceline.transcript.volatile import VolatileBlocks
from paceline.workflow.commands import Append, Conversation, RunStep
from paceline.workflow.model import Message, Role, Step, StepState, Workflow
from paceline.workflow.prompts import Prompts

FOLDERS: dict[str, Callable[[Path], Path]] = {
    "qwen2_5": lambda folder: models.qwen_folder(folder, models.template("qwen2_5")),
    "qwen3": lambda folder: models.qwen_folder(folder, models.template("qwen3")),
    "qwen3_6": lambda folder: models.qwen_folder(folder, models.template("qwen3_6")),
    "llama3_1": lambda folder: models.llama_folder(folder, models.template("llama3_1")),
    "gptoss": models.gpt_oss_folder,
}


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model answers, and what its client says then."""

    answer: str
    ids: tuple[int, ...]
    """Other ids that it generates after its text."""
    closed: bool
    results: tuple[str, ...]
    asked: str
    resends: bool
    """Whether the client sends everything again, carelessly, or only what is new."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation."""

    model: str
    system: str
    first: str
    turns: tuple[Turn, ...]


texts = st.lists(words, max_size=3).map("".join)
calls = json_calls() | xml_calls() | harmony_messages()
turns = st.builds(
    Turn,
    answer=st.lists(calls | damaged(calls) | words, max_size=3).map("".join),
    ids=st.just(()) | st.lists(st.integers(0, 100_000), max_size=4).map(tuple),
    closed=st.booleans(),
    results=st.lists(texts, max_size=2).map(tuple),
    asked=texts.map(lambda text: text + "?"),
    resends=st.booleans(),
)
talks = st.builds(
    Talk,
    model=st.sampled_from(list(FOLDERS)),
    system=texts,
    first=texts.map(lambda text: text + "?"),
    turns=st.lists(turns, min_size=1, max_size=3).map(tuple),
)


@contextmanager
def opened() -> Iterator[Callable[[Any], None]]:
    """Make and load the models."""
    with tempfile.TemporaryDirectory() as place:
        chats: dict[str, ChatModel] = {}
        for name, make in FOLDERS.items():
            folder = Path(place) / name
            folder.mkdir()
            chats[name] = asyncio.run(load(str(make(folder))))
            assert chats[name].appendable
        yield lambda talk: asyncio.run(check(chats[talk.model], talk))


async def check(chat: ChatModel, talk: Talk) -> None:
    """Play a conversation: each prompt is the one before, the generated ids and something more."""
    prompts = Prompts(cast("Any", None), 2**30, VolatileBlocks())  # all heads are in memory: no ledger is read
    workflow = Workflow("workflow", "tenant", "m", system=talk.system, tools=TOOLS)
    new, said = [user(talk.first)], list[Message]()
    parent: str | None = None
    sent, closed = Context.empty(), False
    for number, turn in enumerate(talk.turns):
        given = Conversation((*said, *new)) if parent and turn.resends else Append(tuple(new))
        prompt = await prompts.build(RunStep("tenant", "workflow", "r", given), workflow, chat, parent)
        assert (prompt.break_reason, prompt.carried, prompt.dropped) == (None, sent.tokens, 0)
        assert prompt.messages == tuple(new)
        assert prompt.context.body.startswith(sent.body)
        if parent:
            assert (prompt.rendered[0] == chat.closing_ids[0]) is not closed
        generated, output = answered(chat, turn)
        step = Step(f"step {number}", "workflow", "tenant", "r", "hash", StepState.FINISHED, tuple(new))
        head = prompt.head(
            step, chat, keyed=prompt.keyed(output), generated=generated, reasoning_tokens=None, replica="r"
        )
        prompts.remember("tenant", head)
        parent, sent, closed = step.step_id, prompt.context.extend(generated), chat.closes(generated)
        assert head.context == sent
        said += [*new, careless(output)]
        new = news(output, turn)


def answered(chat: ChatModel, turn: Turn) -> tuple[list[int], Message]:
    """The ids that are kept of an answer, and what it means."""
    parser = chat.parser(TOOLS)
    ids = [*chat.tokenizer.encode_now(turn.answer), *turn.ids]
    ids = [token_id for token_id in ids if token_id not in chat.stop_token_ids]
    ids += chat.closing_ids[:1] if turn.closed else ()
    parser.feed(ids)
    answer = parser.finish()
    assert parser.kept_ids <= len(ids)
    return ids[: parser.kept_ids], answer.message


def careless(answer: Message) -> Message:
    """An answer as many clients keep it."""
    return replace(answer, content=f" {answer.content.strip()}\n", reasoning="")


def news(answer: Message, turn: Turn) -> list[Message]:
    """What a client says after an answer: results of its calls, and something more or nothing."""
    results = [
        Message(Role.TOOL, text, tool_call_id=call.tool_call_id, tool_name=call.tool_name)
        for call, text in zip(answer.tool_calls, turn.results, strict=False)
    ]
    return results or [user(turn.asked)]
