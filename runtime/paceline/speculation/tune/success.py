"""What a successful workflow would cost with a setting, by the workflows that were recorded. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.speculation.tune.drafts import Setting
from paceline.speculation.tune.points import Study, kind_of
from paceline.workflow.model import OutcomeKind, Step, Workflow
from paceline.workflow.stepclass import classify

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """Workflows of the ledger with their finished steps."""

    workflows: int = 0
    known: int = 0
    """With an outcome other than unknown. What follows is theirs, as in the ledger's cost per success."""
    succeeded: int = 0
    prefill_seconds: float = 0.0
    """From dispatch to first token, all steps together."""
    output: Mapping[str, int] = field(default_factory=dict)
    """Generated tokens by class of step."""


def recorded(found: Sequence[tuple[Workflow, Sequence[Step]]]) -> Recorded:
    """Sum up workflows and their finished steps."""
    known = [
        (workflow.outcome.kind, steps)
        for workflow, steps in found
        if workflow.outcome and workflow.outcome.kind is not OutcomeKind.UNKNOWN
    ]
    steps = [step for _, steps in known for step in steps]
    output = Counter[str]()
    for step in steps:
        output[step.step_class or classify(step.output)] += step.usage.output or 0
    return Recorded(
        workflows=len(found),
        known=len(known),
        succeeded=sum(kind is OutcomeKind.SUCCEEDED for kind, _ in known),
        prefill_seconds=sum(step.timings.first_token or 0.0 for step in steps if step.timings),
        output=output,
    )


def usd_per_success(found: Recorded, study: Study, setting: Setting, usd_per_hour: float) -> float | None:
    """The machine's time for the workflows with an outcome, failed ones included, over the successful ones.

    Prompts take what they took when they were recorded. Output takes its share of the machine at this setting's
    speed for its class of steps, or for all where that class was not replayed, shared by as many steps as
    generated at once on average. None without a success or a speed.
    """
    point = study.points.get(setting)
    if not found.succeeded or point is None or not point.speed:
        return None
    seconds = found.prefill_seconds
    for kind, tokens in found.output.items():
        speed = point.only(lambda run, kind=kind: kind_of(run) == kind).speed or point.speed  # type: ignore[misc]
        seconds += tokens / (speed * max(1.0, point.at_once or 1.0))
    return seconds / HOUR * usd_per_hour / found.succeeded
