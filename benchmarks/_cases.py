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
WRITE = t.Tool(
    "write_file",
    "Write a file of the repository.",
    '{"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}, '
    '"required": ["path", "content"]}',
)
PROGRAM = PROGRAMS["stack.py"]
FILE = f"The file stack.py:\n\n```python\n{PROGRAM}```\n\n"
REPAIR = FILE + (
    "What is wrong in peek, and how is it repaired? Answer in the form <{0}>one sentence of thoughts</{0}>, then "
    "the repaired method in a Python code block."
)


@dataclass(frozen=True, slots=True)
class Case:
    """The first turn of a conversation; any user message or tool result follows."""

    name: str
    model: str
    question: str
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
    yield Case("Qwen3, thinking off", NOT_THINKING, FILE + "Write a test of push.")
    yield Case("Qwen3, thinking on", THINKING, REPAIR.format("think"))
    yield Case("tag in other pieces", OWN, REPAIR.format("thought"))
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
