"""From messages to text and ids: in full, and what follows an answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Protocol

from paceline.errors import InvalidMessage
from paceline.transcript.template import ChatTemplate
from paceline.transcript.tokenizer import Tokenizer
from paceline.workflow.model import Message, Role, Tool

_MARK = f"mark{secrets.token_hex(16)}"
"""Stands for the generated text in a probe rendering; unknown to clients, so that no message can contain it."""
RENDER_AT_ONCE = 100
"""More messages are rendered in a thread: a template takes tens of microseconds for each."""


class Renderer(Protocol):
    """Writes conversations as the model reads them. All raise `InvalidMessage` for what cannot be shown."""

    hash: str
    """Of everything that decides how messages are rendered."""

    async def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Return the ids of a whole conversation, ending where the model speaks."""

    async def after_answer(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Return the ids from the close of an answer over new messages to where the model speaks again. Work for
        the new messages only."""

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Return `prompt` as text."""

    def history_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Return `prompt_text` without the words that make the model speak."""

    def answer_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Return the text that the model generates for the last message, its close included. Reasoning that the
        prompt has turned off is left out."""

    def after_answer_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Return `after_answer` as text."""


class TemplateRenderer:
    """Renders by a chat template. What follows an answer is cut out of a probe rendering."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template = template
        self.hash = template.hash
        self._tokenizer = tokenizer

    async def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """See `Renderer`."""
        if len(messages) > RENDER_AT_ONCE:
            return await self._tokenizer.encode(await asyncio.to_thread(self.prompt_text, messages, tools))
        return await self._tokenizer.encode(self.prompt_text(messages, tools))

    async def after_answer(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """See `Renderer`."""
        return await self._tokenizer.encode(self.after_answer_text(messages, tools))

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """See `Renderer`."""
        return self.template.render(messages, tools, True)

    def history_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """See `Renderer`."""
        return self.template.render(messages, tools, False)

    def answer_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """See `Renderer`."""
        prompt = self.prompt_text(messages[:-1], tools)
        *before, answer = messages
        without_reasoning = self.template.render([*before, replace(answer, reasoning="")], tools, False)
        for whole in (self.template.render(messages, tools, False), without_reasoning):
            if whole.startswith(prompt):
                return whole.removeprefix(prompt)
        same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, without_reasoning, strict=False))
        return without_reasoning[sum(1 for _ in same) :]

    def after_answer_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """See `Renderer`."""
        probe = [Message(Role.USER, "?"), Message(Role.ASSISTANT, _MARK), *messages]
        _, mark, after = self.prompt_text(probe, tools).partition(_MARK)
        if not mark or _MARK in after:
            raise InvalidMessage("messages: the model's chat template does not show an answer exactly once")
        return after
