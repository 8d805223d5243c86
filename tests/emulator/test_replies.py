"""Scripted replies and the filler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from paceline.emulator.replies import NOTICE, RULES, Script, read_script
from paceline.transcript.builtin import builtin_tokenizer

TOKENIZER = builtin_tokenizer()


def script(*rules: dict[str, Any], filler_tokens: int = 50) -> Script:
    return Script(TOKENIZER, RULES.validate_python(list(rules)), filler_tokens)


def ask(said: Script, prompt: str, seed: int = 0) -> str:
    reply = said.reply(b"".join(token.to_bytes(4, "little") for token in TOKENIZER.encode(prompt).ids), seed)
    return str(TOKENIZER.decode(reply.ids, skip_special_tokens=False))


def test_the_first_rule_that_fits_answers() -> None:
    said = script(
        {"contains": ["bug one", "FAILED"], "reply": "second try"},
        {"contains": "bug one", "reply": "first try"},
        {"pattern": r"bug \d", "reply": "numbered"},
    )
    assert ask(said, "<|im_start|>user\nbug one<|im_end|>") == "first try"
    assert ask(said, "bug one ... FAILED") == "second try"
    assert ask(said, "bug 7") == "numbered"
    assert ask(said, "else").startswith(NOTICE)


def test_rules_without_a_condition_are_a_queue() -> None:
    said = script({"reply": "a", "times": 2}, {"reply_ids": [98], "times": 1}, {"reply": "c"})
    assert [ask(said, "x") for _ in range(5)] == ["a", "a", "b", "c", "c"]


def test_the_filler_says_that_no_model_ran_and_has_the_length_asked_for() -> None:
    said = script(filler_tokens=200)
    assert ask(said, "x").startswith(NOTICE)
    assert ask(said, "x", seed=1) == ask(said, "y", seed=1) != ask(said, "x", seed=2)
    for length in (1, 20, 200, 1000):
        assert len(said.filler(length, 0)) == length


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"reply": "a", "reply_ids": [1]},
        {"reply": "a", "pattern": "("},
        {"reply": "a", "times": 0},
        {"say": "a"},
        {"reply": "a", "acceptance": [0.5, 0.7]},
    ],
)
def test_broken_rules_are_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RULES.validate_python([rule])


def test_scripts_are_arrays_or_lines(tmp_path: Path) -> None:
    rules = [{"contains": "a", "reply": "1"}, {"reply": "2"}]
    as_array, as_lines = tmp_path / "script.json", tmp_path / "script.jsonl"
    as_array.write_bytes(orjson.dumps(rules))
    as_lines.write_bytes(b"\n".join(orjson.dumps(rule) for rule in rules) + b"\n\n")
    assert read_script(as_array) == read_script(as_lines) == RULES.validate_python(rules)
