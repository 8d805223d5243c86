"""Conversion of cost queries and their answers."""

from __future__ import annotations

from paceline.rpc.convert.values import moment
from paceline.v1 import cost_service_pb2 as pb
from paceline.workflow.costs import CostFilter, CostSummary


def filter_from_proto(where: pb.CostFilter) -> CostFilter:
    """Convert the conditions of a query. Raises `InvalidArgument`."""
    return CostFilter(
        created_from=(
            moment(where.create_time_from, "filter.create_time_from")
            if where.HasField("create_time_from")
            else None
        ),
        created_to=(
            moment(where.create_time_to, "filter.create_time_to") if where.HasField("create_time_to") else None
        ),
        models=tuple(where.models),
        labels=dict(where.labels),
    )


def summary_to_proto(summary: CostSummary) -> pb.CostSummary:
    """Convert sums."""
    return pb.CostSummary(
        group=summary.group,
        workflow_count=summary.workflows,
        succeeded_workflow_count=summary.succeeded_workflows,
        known_outcome_workflow_count=summary.known_outcome_workflows,
        step_count=summary.steps,
        attempt_count=summary.attempts,
        uncached_prompt_token_count=summary.uncached_prompt,
        cached_prompt_token_count=summary.cached_prompt,
        output_token_count=summary.output,
        drafted_token_count=summary.drafted,
        accepted_draft_token_count=summary.accepted,
        unreported_attempt_count=summary.unreported_attempts,
        unpriced_attempt_count=summary.unpriced_attempts,
        list_cost_usd_nanos=summary.list_nanos,
        retry_cost_usd_nanos=summary.retry_nanos,
        infrastructure_cost_usd_nanos=summary.infrastructure_nanos,
        cost_per_success_usd_nanos=summary.cost_per_success_nanos,
        example_price=summary.example_price,
        draft_report_count=summary.draft_reports,
        draft_step_count=summary.draft_steps,
        mean_acceptance_length=summary.mean_acceptance_length,
        acceptance_rate=summary.acceptance_rate,
        output_tokens_per_decode_second=summary.output_per_decode_second,
    )
