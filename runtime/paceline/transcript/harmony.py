"""gpt-oss's messages, rendered by the package openai-harmony, which the extra `harmony` brings.

That package reads its vocabulary from a file that it would fetch from the internet. Here the file is made from the
model's own tokenizer.json, which holds the same vocabulary, or lies in the model's folder.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.errors import InvalidMessage, ModelError
from paceline.transcript.builtin import byte_symbols
from paceline.transcript.files import TOKENIZER
from paceline.transcript.template import tool_parameters
from paceline.transcript.tokenizer import INLINE_CHARACTERS, Tokenizer
from paceline.workflow.model import Message, Role, Tool, ToolCall

_SPEAK = "<|start|>assistant"
VOCABULARY = "o200k_base.tiktoken"
_URL = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
_FOLDER_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"
"""Where openai-harmony looks for its vocabulary."""
_TOKENS = 199_998
"""Ids of the vocabulary; special tokens follow."""
ARGUMENTS = ("reasoning_effort", "model_identity", "conversation_start_date")
"""The template arguments that have a meaning here."""


class HarmonyRenderer:
    """Renders message by message, so that appending never depends on what came before. Each message holds up other
    threads, for 0.8 us a token."""

    def __init__(self, library: ModuleType, encoding: Any, arguments: Mapping[str, Any]) -> None:
        self._lib = library
        self._encoding = encoding
        self._arguments = dict(arguments)
        bound = json.dumps(["harmony", encoding.name, self._arguments], sort_keys=True)
        self.hash = hashlib.sha256(bound.encode()).hexdigest()

    async def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """See `Renderer`."""
        return await asyncio.to_thread(self._prompt, messages, tools)

    async def after_answer(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """See `Renderer`."""
        del tools
        if sum(len(message.content) for message in messages) <= INLINE_CHARACTERS:
            return self._after(messages)
        return await asyncio.to_thread(self._after, messages)

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """See `Renderer`."""
        return self._text(self._prompt(messages, tools))

    def history_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """See `Renderer`."""
        return self.prompt_text(messages, tools).removesuffix(_SPEAK)

    def answer_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """See `Renderer`."""
        del tools
        return self._text(self._rendered(self._all(messages[-1:]))).removeprefix(_SPEAK)

    def after_answer_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """See `Renderer`."""
        del tools
        return self._text(self._after(messages))

    def _prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        preamble = self._lib.Conversation.from_messages(self._preamble(messages, tools))
        ids = self._ids(self._encoding.render_conversation, preamble)
        return [*ids, *self._rendered(_without_old_reasoning(self._all(messages))), *self._speak()]

    def _after(self, messages: Sequence[Message]) -> list[int]:
        return [self._token("<|end|>"), *self._rendered(self._all(messages)), *self._speak()]

    def _speak(self) -> list[int]:
        return [self._token("<|start|>"), *self._encoding.encode("assistant")]

    def _rendered(self, parts: Sequence[Any]) -> list[int]:
        return [token_id for part in parts for token_id in self._ids(self._encoding.render, part)]

    def _ids(self, render: Any, what: Any) -> list[int]:
        try:
            return list(render(what))
        except (self._lib.HarmonyError, ValueError) as error:
            raise InvalidMessage(
                f"messages: harmony refuses them: {error}", field="messages", detail=error
            ) from error

    def _token(self, special: str) -> int:
        (token_id,) = self._encoding.encode(special, allowed_special="all")
        return int(token_id)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._encoding.decode(ids))

    def _preamble(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Any]:
        """The system and developer messages; a client's system prompt is the developer's."""
        lib, given = self._lib, self._arguments
        date = given.get("conversation_start_date") or f"{datetime.now():%Y-%m-%d}"
        system = lib.SystemContent.new().with_conversation_start_date(date)
        if effort := given.get("reasoning_effort"):
            system = system.with_reasoning_effort(_effort(lib, effort))
        if identity := given.get("model_identity"):
            system = system.with_model_identity(identity)
        shown = [lib.Message.from_role_and_content(lib.Role.SYSTEM, system)]
        instructions = messages[0].content if messages and messages[0].role is Role.SYSTEM else ""
        if instructions or tools:
            developer = lib.DeveloperContent.new()
            if instructions:
                developer = developer.with_instructions(instructions)
            if tools:
                described = [_described(lib, tool) for tool in tools]
                developer = developer.with_function_tools(described)
            shown.append(lib.Message.from_role_and_content(lib.Role.DEVELOPER, developer))
        return shown

    def _all(self, messages: Sequence[Message]) -> list[Any]:
        return [
            part
            for index, message in enumerate(messages)
            if index or message.role is not Role.SYSTEM
            for part in self._parts(message)
        ]

    def _parts(self, message: Message) -> Iterator[Any]:
        """The harmony messages of one message."""
        lib = self._lib
        if message.role is Role.ASSISTANT:
            if message.reasoning:
                yield self._say(message.reasoning).with_channel("analysis")
            if message.content:
                yield self._say(message.content).with_channel("commentary" if message.tool_calls else "final")
            for call in message.tool_calls:
                yield self._called(call)
            if not (message.reasoning or message.content or message.tool_calls):
                yield self._say("").with_channel("final")
        elif message.role is Role.TOOL:
            if not message.tool_name:
                raise InvalidMessage(
                    "messages: a tool result that answers no call; set `tool_name`, gpt-oss needs it",
                    field="messages",
                )
            author = lib.Author.new(lib.Role.TOOL, f"functions.{message.tool_name}")
            result = lib.Message.from_author_and_content(author, message.content)
            yield result.with_recipient("assistant").with_channel("commentary")
        else:
            role = lib.Role.USER if message.role is Role.USER else lib.Role.DEVELOPER
            yield lib.Message.from_role_and_content(role, message.content)

    def _say(self, text: str) -> Any:
        return self._lib.Message.from_role_and_content(self._lib.Role.ASSISTANT, text)

    def _called(self, call: ToolCall) -> Any:
        said = self._say(call.arguments_json).with_channel("commentary")
        return said.with_recipient(f"functions.{call.tool_name}").with_content_type("json")


def _without_old_reasoning(parts: Sequence[Any]) -> list[Any]:
    """Leave out the reasoning before the last final answer, as the model was trained."""
    last = max((index for index, part in enumerate(parts) if part.channel == "final"), default=-1)
    return [part for index, part in enumerate(parts) if index > last or part.channel != "analysis"]


def load_harmony(folder: Path, tokenizer: Tokenizer, arguments: Mapping[str, Any]) -> HarmonyRenderer:
    """Return the renderer of the model in `folder`. Blocks. Raises `ModelError` naming what is missing."""
    if unknown := sorted(set(arguments) - set(ARGUMENTS)):
        raise ModelError(f"template_arguments: gpt-oss knows no {unknown[0]!r}; it has {', '.join(ARGUMENTS)}")
    try:
        import openai_harmony  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise ModelError(
            "gpt-oss needs the package openai-harmony; install the extra: pip install 'paceline[harmony]'"
        ) from error
    encoding = _load_encoding(openai_harmony, folder)
    probe = "<|start|>user<|message|>a b\n1234 é<|end|>"
    if list(encoding.encode(probe, allowed_special="all")) != tokenizer.encode_now(probe):
        raise ModelError(
            f"{folder / TOKENIZER}: not the tokenizer of gpt-oss; fetch the model again", path=folder / TOKENIZER
        )
    renderer = HarmonyRenderer(openai_harmony, encoding, arguments)
    if effort := arguments.get("reasoning_effort"):
        _effort(openai_harmony, effort)
    return renderer


def _load_encoding(library: ModuleType, folder: Path) -> Any:
    content = _vocabulary(folder)
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise ModelError(
            f"{folder}: no vocabulary for openai-harmony, and tokenizer.json does not hold it; put the file of "
            f"{_URL} there as {VOCABULARY}",
            path=folder / VOCABULARY,
        )
    before = os.environ.get(_FOLDER_VARIABLE)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / VOCABULARY).write_bytes(content)
        os.environ[_FOLDER_VARIABLE] = place
        try:
            return library.load_harmony_encoding(library.HarmonyEncodingName.HARMONY_GPT_OSS)
        except library.HarmonyError as error:
            raise ModelError(f"openai-harmony does not load its vocabulary: {error}", detail=error) from error
        finally:
            if before is None:
                del os.environ[_FOLDER_VARIABLE]
            else:
                os.environ[_FOLDER_VARIABLE] = before


def _vocabulary(folder: Path) -> bytes:
    """The file in the folder, else made from tokenizer.json; empty if that is another kind of tokenizer."""
    try:
        return (folder / VOCABULARY).read_bytes()
    except FileNotFoundError:
        pass
    try:
        vocabulary = json.loads((folder / TOKENIZER).read_bytes())["model"]["vocab"]
        value = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        ranked = sorted((rank, token) for token, rank in vocabulary.items() if rank < _TOKENS)
        lines = (
            base64.b64encode(bytes(value[symbol] for symbol in token)) + b" %d\n" % rank for rank, token in ranked
        )
        return b"".join(lines)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return b""


def _effort(library: ModuleType, name: Any) -> Any:
    try:
        return library.ReasoningEffort[str(name).upper()]
    except KeyError as error:
        raise ModelError(
            f"template_arguments.reasoning_effort: {name!r}; set it to low, medium or high"
        ) from error


def _described(library: ModuleType, tool: Tool) -> Any:
    return library.ToolDescription.new(tool.tool_name, tool.description, tool_parameters(tool))
