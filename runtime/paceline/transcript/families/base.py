"""What a model family is: everything that differs between models except their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.transcript.pieces import Splitter
from paceline.workflow.model import Tool


@dataclass(frozen=True, slots=True)
class Signs:
    """What a family is told by."""

    template: str
    """Source of the chat template."""
    model_type: str = ""
    """`model_type` of config.json."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How the template writes a tool call, so that a backend can be held to it."""

    before_name: str
    after_name: str
    after_arguments: str
    between: str | None
    """What stands between calls; None where the template shows one call per answer."""
    arguments: str = "json_schema"
    """How the arguments are written: a content format of XGrammar's structural tags."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family. Messages are rendered by the model's own chat template, unless the family says otherwise."""

    name: str
    recognises: Callable[[Signs], bool]
    splitter: Callable[[Sequence[Tool], bool], Splitter]
    """Makes the parser of one answer from the tools and whether the prompt has opened the reasoning."""
    calls_tools: bool = False
    """Whether the parser knows the family's tool calls; tools are refused where it does not."""
    call_form: CallForm | None = None
    """How a tool call is enforced; None where it cannot be: steps that ask for one are refused."""
    reasons: bool = False
    """Whether the parser tells reasoning from text."""
    reasoning_opening: str = ""
    """The marker before the reasoning. A prompt that ends with it has opened the reasoning."""
    reasoning_end: tuple[str, str] = ("", "")
    """The marker after the reasoning, and the whitespace that the template writes behind it."""
    end_tokens: tuple[str, ...] = ()
    """Tokens that end an answer, besides those that the model's files name."""
    closing_tokens: tuple[str, ...] = ()
    """End tokens that close a turn as well as the one that the template writes. Any other end token is replaced by
    the template's when the conversation goes on."""
    turn_end_ends: bool = True
    """Whether the token with which the template closes an answer ends the generation, too."""
    harmony: bool = False
    """Whether openai-harmony renders the messages, not a template. Its answers are messages with headers, which
    nothing enforces yet."""
