"""What kind of step it was: how well drafts are accepted depends on the text and on the context's length."""

from __future__ import annotations

from bisect import bisect_left

from paceline.workflow.model import Message, StepClass

CODE_MARKS = ("```", "<<<<<<< ", "\n@@ ", "diff --git ", "*** Begin Patch")
"""What code in an answer begins with: a fence, or one of the usual forms of an edit."""
CONTEXT_LIMITS = (1024, 4096, 16_384, 65_536)
"""Longest prompts of the context buckets, in tokens; one more bucket has what is longer."""
CONTEXTS = (*(f"<={limit}" for limit in CONTEXT_LIMITS), f">{CONTEXT_LIMITS[-1]}")
"""The names of the buckets, shortest first."""


def classify(answer: Message | None) -> StepClass:
    """`tool call` for an answer that calls a tool, else `code edit` for one with a code fence or a patch, else
    `free text`. Without an answer `unknown`."""
    if answer is None:
        return "unknown"
    if answer.tool_calls:
        return "tool call"
    return "code edit" if any(mark in f"\n{answer.content}" for mark in CODE_MARKS) else "free text"


def context_bucket(prompt_tokens: int) -> int:
    """The place in `CONTEXTS` of a prompt of this length."""
    return bisect_left(CONTEXT_LIMITS, prompt_tokens)
