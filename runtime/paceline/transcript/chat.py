"""A model as conversations see it: tokenizer, renderer, end ids and family."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.errors import InvalidArgument, InvalidMessage, InvalidTool, ModelError
from paceline.transcript import builtin, families
from paceline.transcript.constraints import StructuredOutputs, enforce_calls, enforce_json
from paceline.transcript.families.base import Family, Signs
from paceline.transcript.files import (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    model_folder,
    model_hash,
    read_json,
    special_tokens,
    template_source,
)
from paceline.transcript.harmony import load_harmony
from paceline.transcript.parsing import OutputParser
from paceline.transcript.probes import REASONING, Ends, Finding, Verdict, examine
from paceline.transcript.rendering import Renderer, TemplateRenderer
from paceline.transcript.template import ChatTemplate
from paceline.transcript.tokenizer import Tokenizer, load_tokenizer
from paceline.workflow.model import Message, Role, Tool


class ChatModel:
    """Renders messages to ids so that what was generated is never rendered or tokenized again.

    Text of a message that spells a special token becomes that token, as in vLLM and Hugging Face: after
    rendering nobody can tell them apart. Raises `ModelError` when no token ends an answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        renderer: Renderer,
        family: Family,
        end_ids: Sequence[int] = (),
        model_hash: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        self.model_hash = model_hash
        """What tells the weights from others; empty: not known."""
        self.family = family
        self._renderer = renderer
        seam, problem = self._first_seam()
        turn_end = self._special(seam)
        self.closing_ids = tuple(dict.fromkeys([*turn_end, *self._known(family.closing_tokens)]))
        """Ids that close a turn in the transcript, first the template's own, if it has one."""
        ends = [*(turn_end if family.turn_end_ends else ()), *end_ids, *self._known(family.end_tokens)]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ends))
        """Ids that end an answer."""
        if not ends:
            raise ModelError(
                "the model has no token that ends an answer: its chat template closes none with a special token; "
                "set `template` to one that does, or eos_token_id in generation_config.json"
            )
        self._reasoning_open = bool(family.reasoning_opening) and seam.rstrip().endswith(family.reasoning_opening)
        self.verdicts = self._examine(problem if not turn_end else None)
        """What the probe conversations showed."""

    @property
    def appendable(self) -> bool:
        """Whether conversations can be continued by appending; otherwise each step has to be rendered in full."""
        return not self.unsafe

    @property
    def unsafe(self) -> list[Verdict]:
        """The verdicts that forbid appending."""
        return [verdict for verdict in self.verdicts if verdict.finding is Finding.UNSAFE]

    @property
    def drops_reasoning(self) -> bool:
        """Whether the template leaves out earlier reasoning at a user's message."""
        return any(verdict.probe == REASONING and verdict.finding is Finding.REWRITES for verdict in self.verdicts)

    @property
    def rewriting(self) -> bool:
        """Whether the template renders some earlier messages otherwise once new ones follow."""
        return any(verdict.finding is Finding.REWRITES for verdict in self.verdicts)

    def rewrites(
        self, before: Sequence[Message], answer: Message, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> bool:
        """Whether the template renders a prompt and its answer otherwise once new messages follow. Work for the
        whole conversation. Raises `InvalidMessage` or `InvalidTool`."""
        sent = self._renderer.prompt_text(before, tools)
        # Without reasoning there is nothing to leave out, but some templates show it as empty in the last answer.
        said = self._renderer.answer_text([*before, answer], tools) if answer.reasoning else ""
        for end_id in dict.fromkeys([*self.closing_ids, *self.stop_token_ids]):
            said = said.rstrip().removesuffix(self.tokenizer.decode([end_id]))
        return not self._renderer.prompt_text([*before, answer, *messages], tools).startswith(sent + said)

    @property
    def tokenizer_hash(self) -> str:
        """Hash of tokenizer.json."""
        return self.tokenizer.hash

    @property
    def template_hash(self) -> str:
        """Hash of the template, its special tokens and its arguments."""
        return self._renderer.hash

    async def render_first(self, system: str, tools: Sequence[Tool], messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation, ending where the model speaks.

        Raises `InvalidMessage` or `InvalidTool`.
        """
        self._check_tools(tools)
        leading = [Message(Role.SYSTEM, system)] if system else []
        return await self._renderer.prompt([*leading, *messages], tools)

    async def render_continuation(
        self, messages: Sequence[Message], tools: Sequence[Tool], closed: bool
    ) -> list[int]:
        """Return the ids to append to a generated turn: its close, the new messages, the start of the next turn.

        `closed`: the generated ids already end with a token that closes them (see `closes`); otherwise the turn
        was cut and the close is rendered. Only for a model that is `appendable`. Raises `InvalidMessage` or
        `InvalidTool`.
        """
        self._check_tools(tools)
        ids = await self._renderer.after_answer(messages, tools)
        return ids[1:] if closed else ids

    def closes(self, generated: Sequence[int]) -> bool:
        """Whether the generated ids end their turn themselves."""
        return bool(generated) and generated[-1] in self.closing_ids

    def parser(self, tools: Sequence[Tool], stop: Sequence[str] = ()) -> OutputParser:
        """Return a parser for one answer. Tool calls are only looked for when there are tools."""
        return OutputParser(
            self.tokenizer.stream(),
            end_ids=self.stop_token_ids,
            closing_ids=self.closing_ids,
            family=self.family,
            tools=tools,
            stop=stop,
            reasoning_open=self._reasoning_open,
        )

    def enforce_calls(self, tools: Sequence[Tool], *, several: bool) -> StructuredOutputs:
        """What makes a backend answer with one call of these tools, or with more if `several`. Raises
        `InvalidArgument` for a family whose calls cannot be enforced."""
        form = self.family.call_form
        if form is None:
            raise InvalidArgument(
                f"tool_choice: tool calls of the family {self.family.name} cannot be enforced; use AUTO or NONE",
                field="tool_choice",
            )
        return enforce_calls(form, tools, self.family, several=several, reasoning_open=self._reasoning_open)

    def enforce_json(self, schema_json: str) -> StructuredOutputs:
        """What makes a backend answer with JSON of a schema (empty: any object). Raises `InvalidArgument` for a
        family whose text cannot be enforced."""
        if self.family.harmony:
            raise InvalidArgument(
                f"response_format: answers of the family {self.family.name} cannot be enforced; leave it out",
                field="response_format",
            )
        return enforce_json(schema_json, self.family, reasoning_open=self._reasoning_open)

    def _first_seam(self) -> tuple[str, str]:
        """What follows an answer before a user message, and why that cannot be told."""
        try:
            return self._renderer.after_answer_text([Message(Role.USER, "?")], ()), ""
        except InvalidMessage as error:
            return "", error.message

    def _special(self, text: str) -> list[int]:
        """The special token that a text begins with, if it does."""
        ids = self.tokenizer.encode_now(text)
        return ids[:1] if ids and self.tokenizer.is_special(ids[0]) else []

    def _known(self, tokens: Sequence[str]) -> list[int]:
        return [token_id for token in tokens if (token_id := self.tokenizer.id_of(token)) is not None]

    def _examine(self, problem: str | None) -> tuple[Verdict, ...]:
        """Run the probes. `problem`: why they cannot be run, if it is known; None when they can."""
        if problem is not None:
            reason = problem or "it does not end the assistant's turn with a special token"
            remedy = "set `template` to one that does; until then every step is rendered in full"
            return (Verdict("the end of an answer", Finding.UNSAFE, reason, remedy),)
        other = [token_id for token_id in self.stop_token_ids if token_id not in self.closing_ids]
        template, *closing = (self.tokenizer.decode([token_id]) for token_id in self.closing_ids)
        ends = Ends(template, tuple(closing), tuple(self.tokenizer.decode([token_id]) for token_id in other))
        return tuple(examine(self._renderer, ends, self.family.calls_tools))

    def _check_tools(self, tools: Sequence[Tool]) -> None:
        if tools and not self.family.calls_tools:
            raise InvalidTool("tools: the model's chat template has no known tool-call syntax", field="tools")


async def load(
    path_or_hub_id: str, template: Path | None = None, arguments: Mapping[str, Any] | None = None
) -> ChatModel:
    """Load a model's tokenizer and template (`template` replaces its own), once per process.

    `arguments` are variables for the template, as JSON has them. `emulated` is built in. Raises `ModelError`.
    """
    return await asyncio.to_thread(_load, path_or_hub_id, template, json.dumps(arguments or {}, sort_keys=True))


@lru_cache(maxsize=64)
def _load(path_or_hub_id: str, template: Path | None, arguments_json: str) -> ChatModel:
    tokenizer = _load_tokenizer(path_or_hub_id)
    arguments: dict[str, Any] = json.loads(arguments_json)
    if path_or_hub_id == builtin.NAME:
        folder = Path()
        config: dict[str, Any] = {"chat_template": builtin.TEMPLATE, "eos_token": builtin.TURN_END}
        model_type = ""
        end_tokens: list[int | None] = [tokenizer.id_of(builtin.END_OF_TEXT)]
    else:
        folder = model_folder(path_or_hub_id, also=(CONFIG,))
        config = read_json(folder / TOKENIZER_CONFIG)
        model_type = str(read_json(folder / CONFIG).get("model_type", ""))
        end_tokens = _as_list(read_json(folder / GENERATION_CONFIG).get("eos_token_id"))
    special = special_tokens(config)
    end_ids = [tokenizer.id_of(special.get("eos_token", "")), *end_tokens]
    known = [token_id for token_id in end_ids if token_id is not None]
    source = template_source(template, folder, config, needed=model_type != families.gpt_oss.MODEL_TYPE)
    family = families.detect(Signs(source, model_type))
    if family.harmony and template is None:
        renderer: Renderer = load_harmony(folder, tokenizer, arguments)
    else:
        renderer = TemplateRenderer(ChatTemplate(source, special, arguments), tokenizer)
    return ChatModel(tokenizer, renderer, family, known, model_hash(path_or_hub_id))


@lru_cache(maxsize=64)
def _load_tokenizer(path_or_hub_id: str) -> Tokenizer:
    return load_tokenizer(path_or_hub_id)


def _as_list(value: int | list[int] | None) -> list[int | None]:
    return [*value] if isinstance(value, list) else [value]
