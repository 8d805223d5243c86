"""What a cost query asks and answers. Money in nano-USD, times UTC-aware."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

OF_ATTEMPTS = ("class", "pool", "context")
"""Group keys whose value is one of an attempt; those of all others are of workflows."""


@dataclass(frozen=True, slots=True)
class CostFilter:
    """Which workflows to count; all conditions apply together. `created_from` is included, `created_to` is not."""

    created_from: datetime | None = None
    created_to: datetime | None = None
    models: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CostSummary:
    """Sums over a set of steps. Tokens and `list_nanos` count each answer once; what further attempts of the same
    steps cost is `retry_nanos`, a part of `list_nanos`."""

    group: tuple[str, ...] = ()
    """Values of the group keys, in their order; empty text where a workflow has none."""
    workflows: int | None = 0
    """None, as the next two and the cost per success, in groups of attempts: they share workflows."""
    succeeded_workflows: int | None = 0
    known_outcome_workflows: int | None = 0
    steps: int = 0
    """In groups of attempts each step counts where its last attempt is."""
    attempts: int = 0
    uncached_prompt: int = 0
    cached_prompt: int = 0
    output: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_reports: int = 0
    """Answers that report what was drafted; the draft counts are theirs."""
    draft_steps: int = 0
    """Verifications of drafts."""
    mean_acceptance_length: float | None = None
    """1 + accepted / verifications over the answers that report both; None without a verification."""
    acceptance_rate: float | None = None
    """Accepted / drafted; None when nothing was drafted."""
    output_per_decode_second: float | None = None
    """Generated tokens after the first / seconds from first to last token, over the answers that took some."""
    unreported_attempts: int = 0
    """Attempts without full usage: the sums do not contain what they did not report."""
    unpriced_attempts: int = 0
    """Attempts of models without a list price: `list_nanos` does not contain them."""
    list_nanos: int = 0
    retry_nanos: int = 0
    infrastructure_nanos: int | None = None
    """None without an hourly price; attempts without one add nothing."""
    cost_per_success_nanos: int | None = None
    """None without a success, and in groups of attempts."""
    example_price: bool = False
