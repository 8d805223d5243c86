"""The columns of `steps` about what was reused."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from paceline.workflow.model import Reuse, ReuseBreak


def reuse_values(reuse: Reuse | None) -> dict[str, Any]:
    """The columns of a step that has ended; all NULL unless it finished."""
    return {
        "reuse_prompt_tokens": reuse and reuse.prompt_tokens,
        "reuse_carried_tokens": reuse and reuse.carried_tokens,
        "reuse_rendered_tokens": reuse and reuse.rendered_tokens,
        "reuse_break": reuse and reuse.break_reason and reuse.break_reason.value,
        "reuse_break_message": reuse and reuse.break_message,
        "reuse_dropped_tokens": reuse and reuse.dropped_tokens,
        "reuse_kept_reasoning_tokens": reuse and reuse.kept_reasoning_tokens,
        "reuse_volatile_blocks": reuse and reuse.volatile_blocks,
        "reuse_block_tokens": reuse and reuse.block_tokens,
    }


def reuse_from_row(row: Row[Any]) -> Reuse | None:
    """What a finished step reused."""
    if row.reuse_prompt_tokens is None:
        return None
    return Reuse(
        row.reuse_prompt_tokens,
        row.reuse_carried_tokens,
        row.reuse_rendered_tokens,
        ReuseBreak(row.reuse_break) if row.reuse_break else None,
        row.reuse_break_message,
        row.reuse_dropped_tokens,
        row.reuse_kept_reasoning_tokens,
        row.reuse_volatile_blocks,
        row.reuse_block_tokens,
    )
