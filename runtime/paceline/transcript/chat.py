"""A model as conversations see it: tokenizer, template, end ids and output family."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.errors import InvalidMessage, InvalidTool, ModelError
from paceline.transcript import builtin, families
from paceline.transcript.files import (
    CHAT_TEMPLATE,
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    model_folder,
    read_json,
)
from paceline.transcript.parsing import OutputParser
from paceline.transcript.template import ChatTemplate
from paceline.transcript.tokenizer import Tokenizer, load_tokenizer
from paceline.workflow.model import Message, Role, Tool, ToolCall

_MARK = f"mark{secrets.token_hex(16)}"
"""Stands for the generated text in a probe rendering; unknown to clients, so that no message can contain it."""
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatModel:
    """Renders messages to ids so that what was generated is never rendered or tokenized again.

    Text of a message that spells a special token becomes that token, as in vLLM and Hugging Face: after
    rendering nobody can tell them apart. Raises `ModelError` when the template cannot be continued safely.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, family: families.Family, end_ids: Sequence[int] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.family = family
        try:
            seam = self._seam([Message(Role.USER, "?")], ())
        except InvalidMessage as error:
            raise ModelError(f"{error.message}; set `template` to one that shows a conversation") from error
        self.turn_end_id = self._find_turn_end(seam)
        markers = family.reasoning_markers
        self._reasoning_open = markers is not None and seam.rstrip().endswith(markers[0])
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys([self.turn_end_id, *end_ids]))
        if problems := self.self_test():
            raise ModelError(f"chat template: {'; '.join(problems)}; set `template` to one that can be continued")

    @property
    def tokenizer_hash(self) -> str:
        """Hash of tokenizer.json."""
        return self.tokenizer.hash

    @property
    def template_hash(self) -> str:
        """Hash of the template and its special tokens."""
        return self.template.hash

    async def render_first(self, system: str, tools: Sequence[Tool], messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation, ending where the model speaks.

        Raises `InvalidMessage` or `InvalidTool`.
        """
        self._check_tools(tools)
        leading = [Message(Role.SYSTEM, system)] if system else []
        return await self.tokenizer.encode(self.template.render([*leading, *messages], tools, True))

    async def render_continuation(
        self, messages: Sequence[Message], tools: Sequence[Tool], closed: bool
    ) -> list[int]:
        """Return the ids to append to a generated turn: its close, the new messages, the start of the next turn.

        `closed`: the generated ids already end with `turn_end_id` (see `closes`); otherwise the turn was cut and
        the close is rendered. Raises `InvalidMessage` or `InvalidTool`.
        """
        self._check_tools(tools)
        ids = await self.tokenizer.encode(self._seam(messages, tools))
        return ids[1:] if closed else ids

    def closes(self, generated: Sequence[int]) -> bool:
        """Whether the generated ids end their turn themselves."""
        return bool(generated) and generated[-1] == self.turn_end_id

    def parser(self, tools: Sequence[Tool], stop: Sequence[str] = ()) -> OutputParser:
        """Return a parser for one answer. Tool calls are only looked for when there are tools."""
        stream = self.tokenizer.stream()
        return OutputParser(
            stream,
            end_ids=self.stop_token_ids,
            family=self.family,
            tools=tools,
            stop=stop,
            reasoning_open=self._reasoning_open,
        )

    def self_test(self) -> list[str]:
        """Return why the template cannot be continued by appending; empty when it can."""
        problems: list[str] = []
        for name, head, new in _probes():
            if self.family.tool_markers is None and name.startswith("tool"):
                continue
            try:
                whole = self.template.render([*head, *new], (), True)
            except InvalidMessage:
                continue  # what a template refuses is not continued either
            if problem := self._problem(new, whole):
                problems.append(f"{name}: {problem}")
        return problems

    def _problem(self, new: Sequence[Message], whole: str) -> str:
        try:
            seam = self._seam(new, ())
        except InvalidMessage as error:
            return error.message
        if not whole.endswith(seam):
            return "the text after an answer depends on what came before it"
        if any(message.content not in seam for message in new):
            return "new messages are not shown after the answer they follow"
        return ""

    def _seam(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        probe = [Message(Role.USER, "?"), Message(Role.ASSISTANT, _MARK), *messages]
        _, mark, after = self.template.render(probe, tools, True).partition(_MARK)
        if not mark or _MARK in after:
            raise InvalidMessage("messages: the model's chat template does not show an answer exactly once")
        return after

    def _find_turn_end(self, seam: str) -> int:
        ids = self.tokenizer.encode_now(seam)
        if not ids or not self.tokenizer.is_special(ids[0]):
            raise ModelError(
                "chat template: it does not end the assistant's turn with a special token; "
                "set `template` to one that does"
            )
        return ids[0]

    def _check_tools(self, tools: Sequence[Tool]) -> None:
        if tools and self.family.tool_markers is None:
            raise InvalidTool("tools: the model's chat template has no known tool-call syntax", field="tools")


async def load(path_or_hub_id: str, template: Path | None = None) -> ChatModel:
    """Load a model's tokenizer and template (`template` replaces its own), once per process.

    `emulated` is built in. Raises `ModelError`.
    """
    return await asyncio.to_thread(_load, path_or_hub_id, template)


@lru_cache(maxsize=64)
def _load(path_or_hub_id: str, template: Path | None) -> ChatModel:
    tokenizer = load_tokenizer(path_or_hub_id)
    if path_or_hub_id == builtin.NAME:
        config: dict[str, Any] = {"chat_template": builtin.TEMPLATE, "eos_token": builtin.TURN_END}
        end_tokens: list[int | None] = [tokenizer.id_of(builtin.END_OF_TEXT)]
        folder = Path()
    else:
        folder = model_folder(path_or_hub_id)
        config = read_json(folder / TOKENIZER_CONFIG)
        end_tokens = _as_list(read_json(folder / GENERATION_CONFIG).get("eos_token_id"))
    special = _special_tokens(config)
    chat_template = ChatTemplate(_template_source(template, folder, config), special)
    end_ids = [tokenizer.id_of(special.get("eos_token", "")), *end_tokens]
    return ChatModel(
        tokenizer,
        chat_template,
        families.detect(chat_template.source),
        [token_id for token_id in end_ids if token_id is not None],
    )


def _template_source(given: Path | None, folder: Path, config: dict[str, Any]) -> str:
    path = given or folder / CHAT_TEMPLATE
    try:
        if given or path.exists():
            return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"chat template {path}: {error}; set `template` to a readable file", path=path) from error
    source = config.get("chat_template")
    if not isinstance(source, str):
        have = "several chat templates" if source else "no chat template"
        raise ModelError(f"{folder}: the model has {have}; set `template` to one", path=folder)
    return source


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    found = {name: config.get(name) for name in _SPECIAL_TOKENS}
    texts = {name: value["content"] if isinstance(value, dict) else value for name, value in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _as_list(value: int | list[int] | None) -> list[int | None]:
    return [*value] if isinstance(value, list) else [value]


def _probes() -> list[tuple[str, list[Message], list[Message]]]:
    """Conversations that end with an answer, and what may follow it."""
    system, user = Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "first question")
    answer, more = Message(Role.ASSISTANT, "first answer"), Message(Role.USER, "second question")
    call = ToolCall("call_1", "probe", '{"path": "x"}')
    result = Message(Role.TOOL, "first result", tool_call_id="call_1", tool_name="probe")
    result2 = Message(Role.TOOL, "second result", tool_call_id="call_2", tool_name="probe")
    asking = Message(Role.ASSISTANT, "first answer", tool_calls=(call,))
    return [
        ("user", [user, answer], [more]),
        ("system", [system, user, answer], [more]),
        ("history", [user, answer, more, answer], [more]),
        ("tool result", [user, asking], [result]),
        ("tool results", [user, asking, result, asking], [result, result2]),
        ("tool result and user", [system, user, asking], [result, more]),
    ]
