"""The model families. To add one, see "Add a model family" in docs/compatibility.md."""

from __future__ import annotations

from paceline.transcript.families import gpt_oss, llama3, plain, qwen2_5, qwen3, qwen3_coder
from paceline.transcript.families.base import Family, Signs

FAMILIES: tuple[Family, ...] = (
    gpt_oss.FAMILY,
    llama3.FAMILY,
    qwen3_coder.REASONING,
    qwen3_coder.FAMILY,
    qwen3.FAMILY,
    qwen2_5.FAMILY,
    plain.REASONING,
    plain.FAMILY,
)
"""The first that recognises a model is its family; the last recognises every one."""


def detect(signs: Signs) -> Family:
    """Return the family of a model."""
    return next(family for family in FAMILIES if family.recognises(signs))
