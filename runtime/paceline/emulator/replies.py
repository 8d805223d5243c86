"""What an emulated engine says: scripted replies, or a filler text that admits that no model ran."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from tokenizers import Tokenizer

from paceline.emulator.speculation import AcceptanceCurve

NOTICE = "[emulated reply: no model ran]"
_WORDS = ("the", "rider", "holds", "a", "steady", "line", "and", "another", "takes", "the", "wind", "ahead")


class Rule(BaseModel):
    """One scripted reply. The first rule that fits a prompt and is not used up answers it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    contains: tuple[str, ...] = ()
    """Texts that the decoded prompt must all contain; a single text may be given as a string."""
    pattern: re.Pattern[str] | None = None
    """Regular expression that must be found in the decoded prompt."""
    reply: str | None = None
    """The reply as text."""
    reply_ids: list[Annotated[int, Field(ge=0)]] | None = None
    """The reply as token ids."""
    logprobs: dict[int, float] = {}
    """Log probabilities of the reply's first token and of those that it beat, by id. Others are not known."""
    acceptance: tuple[float, ...] = ()
    """Share of checks of this reply that accept at least 1, 2, ... drafted tokens. Empty: as the engine's drafter
    does. An engine without speculation drafts nothing all the same."""
    times: Annotated[int, Field(ge=1)] | None = None
    """How often the rule may be used. Empty: always."""

    @model_validator(mode="before")
    @classmethod
    def _one_text(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(data.get("contains"), str):
            return {**data, "contains": (data["contains"],)}
        return data

    @model_validator(mode="after")
    def _one_reply(self) -> Rule:
        if (self.reply is None) == (self.reply_ids is None):
            raise ValueError("give exactly one of `reply` and `reply_ids`")
        if self.acceptance:
            AcceptanceCurve(self.acceptance)
        return self

    @property
    def reads_prompt(self) -> bool:
        """Whether the rule needs the prompt's text."""
        return bool(self.contains or self.pattern)

    def fits(self, prompt: Callable[[], str]) -> bool:
        """Whether the rule answers this prompt, whose text is decoded on demand."""
        if not self.reads_prompt:
            return True
        text = prompt()
        found = all(part in text for part in self.contains)
        return found and (self.pattern is None or self.pattern.search(text) is not None)


RULES = TypeAdapter(list[Rule])


@dataclass(frozen=True, slots=True)
class Reply:
    """What to say, without an end token."""

    ids: list[int]
    logprobs: dict[int, float] = field(default_factory=dict)
    """Of candidates for the first token, by id."""
    acceptance: tuple[float, ...] = ()
    """As in the rule."""


def read_script(path: Path) -> list[Rule]:
    """Rules of a JSON array, or of one JSON object per line. Raises `ValueError` for anything else."""
    text = path.read_bytes()
    if text.lstrip().startswith(b"["):
        return RULES.validate_json(text)
    return [Rule.model_validate_json(line) for line in text.splitlines() if line.strip()]


class Script:
    """The rules in force, each with the uses it has left."""

    def __init__(self, tokenizer: Tokenizer, rules: Iterable[Rule], filler_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._filler_tokens = filler_tokens
        self.replace(rules)

    def replace(self, rules: Iterable[Rule]) -> None:
        """Put these rules in force instead of those before."""
        self._rules = [(rule, self._ids(rule)) for rule in rules]
        self._uses = [0] * len(self._rules)

    def reply(self, prompt: bytes, seed: int) -> Reply:
        """The reply to uint32 `prompt`. Counts a use of the rule that gave it."""
        text: list[str] = []

        def decoded() -> str:
            if not text:
                text.append(
                    self._tokenizer.decode(memoryview(prompt).cast("I").tolist(), skip_special_tokens=False)
                )
            return text[0]

        for at, (rule, ids) in enumerate(self._rules):
            if (rule.times is None or self._uses[at] < rule.times) and rule.fits(decoded):
                self._uses[at] += 1
                return Reply(ids, rule.logprobs, rule.acceptance)
        return Reply(self.filler(self._filler_tokens, seed))

    def filler(self, tokens: int, seed: int) -> list[int]:
        """Exactly so many ids of a text that begins with the notice; the same for the same seed."""
        # Sounds random, decides nothing.
        rng = random.Random(seed)  # noqa: S311
        words = [NOTICE, *rng.choices(_WORDS, k=tokens)]
        ids: list[int] = self._tokenizer.encode(" ".join(words), add_special_tokens=False).ids
        return ids[:tokens]

    def _ids(self, rule: Rule) -> list[int]:
        if rule.reply_ids is not None:
            return rule.reply_ids
        ids: list[int] = self._tokenizer.encode(rule.reply or "", add_special_tokens=False).ids
        return ids
