"""Conversations whose text, rendered and tokenized again, is not the ids that were generated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks._tasks import PROGRAMS
from tokenizers import Tokenizer

from paceline_agents import types as t

OWN, THINKING, NOT_THINKING = "own", "qwen3", "qwen3-off"
"""The model under its own template, and under Qwen3's with thinking on and off."""
SYSTEM = "You are a careful coding agent. Work in small steps and call one tool at a time."
FORM = (
    "Think before you answer. Every answer has this form: first <{0}>, then two or three sentences of thoughts, "
    "then </{0}>, then the answer itself."
)
WRITE = t.Tool(
    "write_file",
    "Write a file of the repository.",
    '{"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}, '
    '"required": ["path", "content"]}',
)
PROGRAM = PROGRAMS["stack.py"]
FILE = f"The file stack.py:\n\n```python\n{PROGRAM}```\n\n"
WHICH = FILE + "Which method lacks a check? Answer in the form <{0}>your thoughts</{0}> your answer."


@dataclass(frozen=True, slots=True)
class Case:
    """The first turn of a conversation; any user message or tool result follows."""

    name: str
    model: str
    question: str
    system: str = SYSTEM
    tools: tuple[t.Tool, ...] = ()
    dictated: tuple[str, ...] = ()
    """The answer, in pieces that are tokenized one by one as a model may sample them; empty: the model's own."""

    def dictation(self, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
        """The last ids of the prompt, and those of the answer."""

        def ids(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False).ids)

        answer = [token_id for piece in (*self.dictated, "<|im_end|>") for token_id in ids(piece)]
        return ids(f"{self.question}<|im_end|>\n<|im_start|>assistant\n"), answer


def called(**layout: Any) -> str:
    """A call as Qwen2.5 writes it; the layout is that of its JSON."""
    call = {"name": WRITE.tool_name, "arguments": {"path": "copy.py", "content": PROGRAM}}
    return f"<tool_call>\n{json.dumps(call, **layout)}\n</tool_call>"


def cases() -> Iterator[Case]:
    """All of them."""
    yield Case(
        "Qwen3, thinking off", NOT_THINKING, FILE + "Explain in three sentences what push, pop and peek do."
    )
    yield Case("Qwen3, thinking on", THINKING, WHICH.format("think"), FORM.format("think"))
    yield Case("tag in other pieces", OWN, WHICH.format("thought"), FORM.format("thought"))
    calls = {
        "newline, then a call": ("\n", called()),
        "text, newline, then a call": (f"I copy the file.\n{called()}",),
        "arguments without spaces": (called(separators=(",", ":")),),
    }
    for name, answer in calls.items():
        yield Case(
            name, OWN, f"Copy stack.py to copy.py ({name}).\n\n{FILE.rstrip()}", tools=(WRITE,), dictated=answer
        )
    text = "Pop and peek fail on an empty stack. " * 8
    yield Case("newline, then text", OWN, FILE + "What can fail here?", dictated=("\n", text.rstrip()))
