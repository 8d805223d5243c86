"""gpt-oss: the harmony format. In its history `<|end|>` stands where `<|return|>` was generated."""

from __future__ import annotations

from paceline.transcript.families.base import Family
from paceline.transcript.harmony_answer import CHANNEL, START, HarmonySplitter

MODEL_TYPE = "gpt_oss"

FAMILY = Family(
    name="gpt-oss",
    recognises=lambda signs: (
        signs.model_type == MODEL_TYPE or (START in signs.template and CHANNEL in signs.template)
    ),
    splitter=HarmonySplitter,
    calls_tools=True,
    reasons=True,
    end_tokens=("<|return|>", "<|call|>"),
    closing_tokens=("<|call|>",),
    turn_end_ends=False,  # it stands between the messages of one answer
    harmony=True,
)
