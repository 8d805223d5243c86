"""What made a step compute prompt tokens again, in words, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from paceline.routing.pools import PoolChoice, PoolReason
from paceline.workflow.model import ReuseBreak, Step, Tool

REMEDIES: dict[ReuseBreak, str] = {
    ReuseBreak.EDITED_HISTORY: (
        "The client rewrites an earlier message; send earlier messages as they were, and fork where another "
        "answer is wanted."
    ),
    ReuseBreak.COMPACTED: (
        "The client puts a summary in place of earlier messages, which is meant; do it less often where it "
        "costs more than the shorter context saves."
    ),
    ReuseBreak.TOOLS_CHANGED: (
        "The client changes its tools; send the same list in the same order at every turn, and refuse in a "
        "tool's result what is not allowed now."
    ),
    ReuseBreak.SYSTEM_CHANGED: (
        "The client rewrites the system prompt; keep it stable and put what changes into the last message, or "
        "have a [volatile.NAME] rule take it out."
    ),
    ReuseBreak.TEMPLATE_CHANGED: (
        "The model got another chat template, which each workflow pays for once; change it while few "
        "workflows are open."
    ),
    ReuseBreak.TOKENIZER_CHANGED: (
        "The model got another tokenizer, which each workflow pays for once; change it while few workflows "
        "are open."
    ),
    ReuseBreak.TEMPLATE_RERENDER: (
        "The chat template renders earlier messages otherwise; set a `template` that passes `paceline models "
        "check`, or the policy append_only."
    ),
    ReuseBreak.UNCLOSED_TURN: (
        "The answer before was cut and its end was rendered, which costs a few new tokens; raise "
        "max_output_tokens."
    ),
    ReuseBreak.EVICTED: (
        "The engine's cache had lost the prefix; give it more memory for KV, or run fewer workflows on it at once."
    ),
    ReuseBreak.MOVED: (
        "The step ran on another replica than its prefix was on; keep replicas up, and give them places "
        "enough (max_concurrent_steps) that steps need not go elsewhere."
    ),
    ReuseBreak.MODEL_CHANGED: (
        "Another model serves under the name, so no cache has the prefix, which each workflow pays for once; "
        "change it while few workflows are open."
    ),
    ReuseBreak.RETENTION_EXPIRED: (
        "The stored ids were deleted or never stored, so the conversation was rendered again; keep them longer "
        "(`retention`), or store them."
    ),
}
"""One sentence for each reason."""

CACHE_ONLY = frozenset({ReuseBreak.MOVED, ReuseBreak.EVICTED, ReuseBreak.MODEL_CHANGED})
"""Reasons that cost only what a cache does not have."""
NOT_CONTENT = CACHE_ONLY | {ReuseBreak.UNCLOSED_TURN}
"""Reasons that leave the context as it was."""

POOL_WORDS: dict[PoolReason, str] = {
    PoolReason.FIRST_STEP: "the least expected time for a first step",
    PoolReason.FORK: "the least expected time for a fork",
    PoolReason.COMPACTED: "the least expected time, as no prefix was left",
    PoolReason.STAYED: "the workflow's own pool",
    PoolReason.SWITCHED: "the other pool was expected to save more than it costs",
    PoolReason.UNTRIED: "to measure a pool that had not been used for long",
    PoolReason.NO_PLACE: "the preferred pool was down or full",
    PoolReason.ONLY_POOL: "no other pool may run the step",
}
"""Why a step runs in a pool that its prefix is not in."""


def changed(reason: ReuseBreak, step: Step, *before: Step | None) -> str:
    """What differs from the first of the steps before that differs, without the text itself; empty where there is
    nothing to add, or their content is gone."""
    for other in () if step.gone else (other for other in before if other and not other.gone):
        if reason is ReuseBreak.SYSTEM_CHANGED and other.system != step.system:
            return f"line {_first_difference(other.system, step.system)} of the system prompt"
        if reason is ReuseBreak.TOOLS_CHANGED and other.tools != step.tools:
            return _tools_difference(other.tools, step.tools)
    message = step.reuse.break_message if step.reuse else None
    return "" if message is None else f"from message {message} on"


def moved(step: Step, before: Step | None) -> str:
    """From where to where a step went, and why, if to another pool."""
    if before is None:
        return f"to {step.replica}"
    places = f"{before.replica} to {step.replica}"
    choice, left = step.pool, before.speculation.profile
    if choice is None or choice.profile == left:
        return places
    return f"{places}, pool {left or 'plain'} to {choice.profile or 'plain'}: {_pool_words(choice)}"


def _pool_words(choice: PoolChoice) -> str:
    words = POOL_WORDS[choice.reason]
    if choice.saving_seconds is None or choice.prefill_seconds is None:
        return words
    terms = f"{choice.saving_seconds:+.2f} s of decode saved, {choice.prefill_seconds:+.2f} s of prefill"
    return f"{words} ({terms})"


def _first_difference(before: str, now: str) -> int:
    """Number of the first line that differs, from 1."""
    lines = zip_longest(before.split("\n"), now.split("\n"))
    return next((number for number, (old, new) in enumerate(lines, 1) if old != new), 1)


def _tools_difference(before: Sequence[Tool], now: Sequence[Tool]) -> str:
    old, new = ({tool.tool_name: tool for tool in tools} for tools in (before, now))
    parts = {
        "added": [name for name in new if name not in old],
        "removed": [name for name in old if name not in new],
        "redefined": [name for name in new if name in old and new[name] != old[name]],
    }
    named = [f"{what} {', '.join(names)}" for what, names in parts.items() if names]
    return "; ".join(named) or "another order"
