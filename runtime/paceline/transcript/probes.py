"""Finds out whether conversations can be continued by appending ids, by continuing some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from paceline.errors import InvalidMessage
from paceline.transcript.rendering import Renderer
from paceline.workflow.model import Message, Role, Tool, ToolCall


class Finding(StrEnum):
    """What a probe showed."""

    EQUAL = "equal"
    """Appending gives exactly what a full rendering gives."""
    REWRITES = "rewrites"
    """The template would change what was sent; appending keeps it."""
    REFUSED = "refused"
    """The template does not show such a conversation at all."""
    UNSAFE = "unsafe"
    """Appended messages would not be what the template writes there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one probe."""

    probe: str
    finding: Finding
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation that ends with what is appended last."""

    name: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()

    def turns(self) -> Iterator[tuple[tuple[Message, ...], Message, tuple[Message, ...]]]:
        """What was sent, its answer and what is new, for each answer."""
        said = self.messages
        answers = [index for index, message in enumerate(said) if message.role is Role.ASSISTANT]
        for index, following in zip(answers, [*answers[1:], len(said)], strict=True):
            yield said[:index], said[index], said[index + 1 : following]


@dataclass(frozen=True, slots=True)
class Ends:
    """The tokens that end an answer."""

    template: str
    """The one that the template writes."""
    closing: tuple[str, ...]
    """Those that close a turn in its place."""
    other: tuple[str, ...]
    """Those that it replaces."""


def examine(renderer: Renderer, ends: Ends, with_tools: bool) -> list[Verdict]:
    """Run all probes that the family has parts for."""
    probes = [probe for probe in PROBES if with_tools or not _uses_tools(probe)]
    return [_verdict(renderer, ends, probe) for probe in probes]


def _uses_tools(probe: Probe) -> bool:
    return bool(probe.tools) or any(message.tool_calls or message.tool_call_id for message in probe.messages)


def _verdict(renderer: Renderer, ends: Ends, probe: Probe) -> Verdict:
    try:
        whole = renderer.prompt_text(probe.messages, probe.tools)
    except InvalidMessage as error:
        return Verdict(
            probe.name, Finding.REFUSED, error.message, "do not send such conversations, or set `template`"
        )
    try:
        reason = _unsafe(renderer, ends, probe)
        sent = "" if reason else _appended(renderer, ends, probe)
    except InvalidMessage as error:
        reason, sent = error.message, ""
    if reason:
        remedy = "set `template` to one that can be continued; until then every step is rendered in full"
        return Verdict(probe.name, Finding.UNSAFE, reason, remedy)
    if sent == whole:
        return Verdict(probe.name, Finding.EQUAL)
    return Verdict(
        probe.name,
        Finding.REWRITES,
        _difference(sent, whole),
        "none needed: ids that were sent are kept as they are",
    )


def _unsafe(renderer: Renderer, ends: Ends, probe: Probe) -> str:
    for sent, answer, new in probe.turns():
        after = renderer.after_answer_text(new, probe.tools)
        rest = after.removeprefix(ends.template)
        whole = renderer.prompt_text((*sent, answer, *new), probe.tools)
        if not whole.endswith(tuple(close + rest for close in (ends.template, *ends.closing))):
            return "the text after an answer depends on what came before it"
        if any(message.content not in after for message in new):
            return "new messages are not shown after the answer they follow"
    return "" if _keeps_what_was_sent(renderer, ends, probe) else "earlier messages change when new ones follow"


def _keeps_what_was_sent(renderer: Renderer, ends: Ends, probe: Probe) -> bool:
    """Whether a full rendering has everything but the answers as it was sent, in the same order."""
    first, *_ = probe.turns()
    history = renderer.history_text(first[0], probe.tools)
    speak = renderer.prompt_text(first[0], probe.tools).removeprefix(history)
    whole = renderer.prompt_text(probe.messages, probe.tools)
    if not whole.startswith(history):
        return False
    position = len(history)
    for _, _, new in probe.turns():
        after = renderer.after_answer_text(new, probe.tools).removeprefix(ends.template).removesuffix(speak)
        start = whole.find(after, position)
        if start < 0:
            return False
        position = start + len(after)
    return True


def _appended(renderer: Renderer, ends: Ends, probe: Probe) -> str:
    """The conversation as the runtime sends it: each answer as generated, everything else appended."""
    sent = ""
    for before, answer, new in probe.turns():
        sent = sent or renderer.prompt_text(before, probe.tools)
        generated = renderer.answer_text((*before, answer), probe.tools)
        after = renderer.after_answer_text(new, probe.tools)
        said, end = _split_end(generated, (ends.template, *ends.closing, *ends.other))
        sent += said + (end + after.removeprefix(ends.template) if end in ends.closing else after)
    return sent


def _split_end(generated: str, ends: Sequence[str]) -> tuple[str, str]:
    """An answer and the token that ends it."""
    at, end = max((generated.rfind(token), token) for token in ends)
    return (generated, "") if at < 0 else (generated[:at], end)


def _difference(sent: str, whole: str) -> str:
    at = next((index for index, pair in enumerate(zip(sent, whole, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        at = min(len(sent), len(whole))
    return f"sent {_quote(sent, at)}, a full rendering has {_quote(whole, at)}"


def _quote(text: str, at: int) -> str:
    piece = text[at : at + 30]
    return repr(piece) if piece else "nothing more"


REASONING = "reasoning before an answer"
"""Name of the probe in which a user goes on after an answer with reasoning."""
_SYSTEM, _USER = Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "first question")
_ANSWER, _MORE = Message(Role.ASSISTANT, "first answer"), Message(Role.USER, "second question")
_CALL = ToolCall("call_1", "probe", '{"path": "x"}')
_CALL_2 = ToolCall("call_2", "probe", '{"path": "y"}')
_RESULT = Message(Role.TOOL, "first result", tool_call_id="call_1", tool_name="probe")
_RESULT_2 = Message(Role.TOOL, "second result", tool_call_id="call_2", tool_name="probe")
_BARE_CALL = Message(Role.ASSISTANT, "", tool_calls=(_CALL,))
_ASKING = Message(Role.ASSISTANT, "first answer", tool_calls=(_CALL,))
_PARALLEL = Message(Role.ASSISTANT, "", tool_calls=(_CALL, _CALL_2))
_THINKING = Message(Role.ASSISTANT, "first answer", reasoning="first thought")
_THINKING_CALL = Message(Role.ASSISTANT, "", reasoning="first thought", tool_calls=(_CALL,))
_TOOLS = (Tool("probe", "Look.", '{"type": "object", "properties": {"path": {"type": "string"}}}'),)

PROBES = (
    Probe("a user goes on", (_USER, _ANSWER, _MORE)),
    Probe("with a system prompt", (_SYSTEM, _USER, _ANSWER, _MORE)),
    Probe("two answers", (_USER, _ANSWER, _MORE, _ANSWER, _MORE)),
    Probe(REASONING, (_USER, _THINKING, _MORE)),
    Probe("an answer, with tools", (_SYSTEM, _USER, _ANSWER, _MORE), _TOOLS),
    Probe("a tool result", (_USER, _BARE_CALL, _RESULT), _TOOLS),
    Probe("a tool result after text", (_USER, _ASKING, _RESULT), _TOOLS),
    Probe("results of parallel calls", (_USER, _PARALLEL, _RESULT, _RESULT_2), _TOOLS),
    Probe("a tool result and a user", (_SYSTEM, _USER, _BARE_CALL, _RESULT, _MORE), _TOOLS),
    Probe("two rounds of tools", (_USER, _BARE_CALL, _RESULT, _BARE_CALL, _RESULT), _TOOLS),
    Probe("reasoning before a call", (_USER, _THINKING_CALL, _RESULT), _TOOLS),
    Probe("a user after a tool round", (_USER, _THINKING_CALL, _RESULT, _THINKING, _MORE), _TOOLS),
)
