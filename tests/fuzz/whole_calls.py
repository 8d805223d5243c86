"""Calls as models write them, with whatever else in their arguments: they are read as they were meant."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tests.fuzz.answers import ALL, JUNK, MARKERS, READERS, Case, chunks, read, texts


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls, and the answer that makes them."""

    reader: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    sizes: tuple[int, ...]

    @property
    def text(self) -> str:
        """As a model of the family writes it."""
        if self.reader == "qwen3-coder":
            return "\n".join(self._xml(name, given) for name, given in self.calls)
        bodies = [json.dumps(given, ensure_ascii=False) for _, given in self.calls]
        write = {
            "qwen2.5": '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>',
            "llama3": '{{"name": "{}", "parameters": {}}};',
            "gpt-oss": "<|start|>assistant<|channel|>commentary to=functions.{} json<|message|>{}<|call|>",
        }[self.reader]
        return "".join(write.format(name, body) for (name, _), body in zip(self.calls, bodies, strict=True))

    def _xml(self, name: str, given: dict[str, Any]) -> str:
        values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items())
        return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


tame = texts | st.lists(st.sampled_from([*MARKERS, *JUNK, "a"]), max_size=3).map("".join)
no_end = {"qwen3-coder": ("</parameter>",), "gpt-oss": ("<|end|>", "<|call|>")}
"""What ends a call even inside a string."""


@st.composite
def whole_calls(draw: st.DrawFn) -> Calls:
    """Calls whose arguments hold markers and whatever else."""
    reader = draw(st.sampled_from(["qwen2.5", "qwen3-coder", "llama3", "gpt-oss"]))
    words = tame.filter(lambda text: not any(end in text for end in no_end.get(reader, ())))
    other = words if reader == "qwen3-coder" else words | st.lists(words, max_size=2) | st.integers()
    given = st.dictionaries(st.sampled_from(["path", "note", "a b"]), other, max_size=3)
    made = st.lists(st.tuples(st.sampled_from(["write", "read_file"]), given), min_size=1, max_size=3)
    return Calls(reader, tuple(draw(made)), tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))))


def check_calls(case: Calls) -> None:
    """They are read as they were meant, and nothing else is read."""
    reader = next(reader for reader in READERS if reader.name == case.reader)
    parser = reader.parser(Case((), True, (), (), (), ALL))
    message = read(parser, chunks(case.text.encode(), case.sizes)).message
    assert [(call.tool_name, json.loads(call.arguments_json)) for call in message.tool_calls] == list(case.calls)
    assert (message.content, message.reasoning) == ("", "")
