"""The canonical log line: one per attempt that ended, with the ids, tokens and cost of its ledger row."""

from __future__ import annotations

import structlog

from paceline.workflow.model import StorePolicy
from paceline.workflow.ports import StepReport

log = structlog.get_logger()


class StepLog:
    """Writes the line. An `Observer` of steps. It holds counts and ids; with `content` a second line has the new
    messages and the answer, where they are stored, too."""

    def __init__(self, *, content: bool) -> None:
        self._content = content

    def step_ended(self, report: StepReport) -> None:
        """Write one line; a level above info for an attempt that did not finish."""
        end = report.end
        write = log.warning if end.error_reason else log.info
        write(
            "step",
            tenant=report.tenant,
            workflow_id=report.workflow_id,
            step_id=report.step_id,
            request_id=report.request_id,
            attempt_id=report.attempt_id,
            attempt=report.attempt,
            model=report.model,
            replica=end.replica,
            workflow_match=report.match,
            state=end.state,
            finish_reason=end.finish_reason,
            error_reason=end.error_reason or None,
            uncached_prompt_tokens=end.usage.uncached_prompt,
            cached_prompt_tokens=end.usage.cached_prompt,
            output_tokens=end.usage.output,
            drafted_tokens=end.speculation.drafted,
            accepted_draft_tokens=end.speculation.accepted,
            draft_steps=end.speculation.draft_steps,
            step_class=end.step_class,
            carried_tokens=end.reuse.carried_tokens if end.reuse else None,
            break_reason=end.reuse.break_reason if end.reuse else None,
            list_cost_usd_nanos=end.cost.list_nanos,
            infrastructure_cost_usd_nanos=end.cost.infrastructure_nanos,
            pool_choice=report.pool.reason if report.pool else None,
            pool_saving_ms=_milliseconds(report.pool.saving_seconds if report.pool else None),
            pool_prefill_ms=_milliseconds(report.pool.prefill_seconds if report.pool else None),
            queue_ms=round(end.timings.queue * 1000, 3),
            first_token_ms=_milliseconds(end.timings.first_token),
            total_ms=round(end.timings.total * 1000, 3),
        )
        if self._content and report.store is StorePolicy.FULL:
            log.info("step_content", step_id=report.step_id, messages=report.input, output=end.output)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
