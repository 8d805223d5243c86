"""Conversion of workflows, budgets and outcomes."""

from __future__ import annotations

from paceline.rpc.convert import messages
from paceline.rpc.convert.values import EnumTable, duration, timestamp, whole_seconds
from paceline.v1 import workflow_pb2 as pb
from paceline.v1 import workflow_service_pb2 as service_pb
from paceline.workflow.commands import CreateWorkflow, ForkWorkflow
from paceline.workflow.model import (
    Budget,
    Outcome,
    OutcomeKind,
    OutcomeSource,
    StorePolicy,
    TranscriptPolicy,
    Workflow,
)
from paceline.workflow.ports import WorkflowFilter

OUTCOME_KINDS = EnumTable(OutcomeKind, pb.OutcomeKind, "OUTCOME_KIND")
OUTCOME_SOURCES = EnumTable(OutcomeSource, pb.OutcomeSource, "OUTCOME_SOURCE")
POLICIES = EnumTable(TranscriptPolicy, pb.TranscriptPolicy, "TRANSCRIPT_POLICY")
STORES = EnumTable(StorePolicy, pb.StorePolicy, "STORE_POLICY")


def create_from_proto(tenant: str, request: service_pb.CreateWorkflowRequest) -> CreateWorkflow:
    """Convert a request to create a workflow. Raises `InvalidArgument`."""
    return CreateWorkflow(
        tenant=tenant,
        workflow_id=request.workflow_id,
        model=request.model,
        system=request.system,
        tools=messages.tools_from_proto(request.tools),
        sampling=messages.sampling_from_proto(request.sampling),
        labels=dict(request.labels),
        budget=budget_from_proto(request.budget),
        parent_workflow_id=request.parent_workflow_id,
        transcript_policy=POLICIES.to_domain(
            request.transcript_policy or pb.TRANSCRIPT_POLICY_APPEND_ONLY, "transcript_policy"
        ),
        store=STORES.to_domain(request.store or pb.STORE_POLICY_FULL, "store"),
        retention_seconds=(
            whole_seconds(request.retention, "retention") if request.HasField("retention") else None
        ),
    )


def fork_from_proto(tenant: str, request: service_pb.ForkWorkflowRequest) -> ForkWorkflow:
    """Convert a request to fork a workflow."""
    return ForkWorkflow(
        tenant=tenant,
        workflow_id=request.workflow_id,
        step_id=request.step_id,
        new_workflow_id=request.new_workflow_id,
        labels=dict(request.labels),
    )


def filter_from_proto(request: service_pb.ListWorkflowsRequest) -> WorkflowFilter:
    """Convert the conditions of a list."""
    return WorkflowFilter(labels=dict(request.labels), open_only=request.open_only)


def budget_from_proto(budget: pb.Budget) -> Budget:
    """Convert limits; an unset one becomes None."""
    return Budget(
        list_nanos=budget.list_cost_usd_nanos if budget.HasField("list_cost_usd_nanos") else None,
        tokens=budget.token_count if budget.HasField("token_count") else None,
        steps=budget.step_count if budget.HasField("step_count") else None,
    )


def budget_to_proto(budget: Budget) -> pb.Budget:
    """Convert limits."""
    return pb.Budget(list_cost_usd_nanos=budget.list_nanos, token_count=budget.tokens, step_count=budget.steps)


def outcome_from_proto(outcome: pb.Outcome, field: str) -> Outcome:
    """Convert an outcome that a client sets; its time is not taken over. Raises `InvalidArgument`."""
    return Outcome(
        kind=OUTCOME_KINDS.to_domain(outcome.kind, f"{field}.kind"),
        source=OUTCOME_SOURCES.to_domain(outcome.source, f"{field}.source"),
        check_exit_code=outcome.check_exit_code if outcome.HasField("check_exit_code") else None,
        note=outcome.note,
    )


def outcome_to_proto(outcome: Outcome) -> pb.Outcome:
    """Convert an outcome."""
    return pb.Outcome(
        kind=OUTCOME_KINDS.to_proto(outcome.kind),
        source=OUTCOME_SOURCES.to_proto(outcome.source),
        check_exit_code=outcome.check_exit_code,
        note=outcome.note,
        set_time=timestamp(outcome.set_at),
    )


def workflow_to_proto(workflow: Workflow) -> pb.Workflow:
    """Convert a workflow."""
    return pb.Workflow(
        workflow_id=workflow.workflow_id,
        parent_workflow_id=workflow.parent_workflow_id or "",
        forked_step_id=workflow.forked_step_id or "",
        model=workflow.model,
        system=workflow.system,
        tools=messages.tools_to_proto(workflow.tools),
        sampling=messages.sampling_to_proto(workflow.sampling),
        labels=workflow.labels,
        budget=budget_to_proto(workflow.budget),
        head_step_id=workflow.head_step_id or "",
        outcome=outcome_to_proto(workflow.outcome) if workflow.outcome else None,
        create_time=timestamp(workflow.created_at),
        update_time=timestamp(workflow.updated_at),
        transcript_policy=POLICIES.to_proto(workflow.transcript_policy),
        store=STORES.to_proto(workflow.store),
        retention=duration(workflow.retention_seconds),
        content_delete_time=timestamp(workflow.content_deleted_at),
    )
