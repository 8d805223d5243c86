"""Create the ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("secret_hash", sa.String(length=128), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "preambles",
        sa.Column("preamble_id", sa.String(length=64), nullable=False),
        sa.Column("system", sa.Text(), nullable=False),
        sa.Column("tools", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("preamble_id", name=op.f("pk_preambles")),
    )
    op.create_table(
        "runtimes",
        sa.Column("runtime_id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=256), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("runtime_id", name=op.f("pk_runtimes")),
    )
    op.create_table(
        "workflows",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("workflow_id", sa.String(length=64), nullable=False),
        sa.Column("request_hash", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("system", sa.Text(), nullable=False),
        sa.Column("tools", sa.Text(), nullable=False),
        sa.Column("sampling", sa.Text(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("budget_list_nanos", sa.BigInteger(), nullable=True),
        sa.Column("budget_tokens", sa.BigInteger(), nullable=True),
        sa.Column("budget_steps", sa.BigInteger(), nullable=True),
        sa.Column("spent_list_nanos", sa.BigInteger(), nullable=False),
        sa.Column("spent_tokens", sa.BigInteger(), nullable=False),
        sa.Column("spent_steps", sa.BigInteger(), nullable=False),
        sa.Column("reserved_list_nanos", sa.BigInteger(), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("parent_workflow_id", sa.String(length=64), nullable=True),
        sa.Column("forked_step_id", sa.String(length=64), nullable=True),
        sa.Column("head_step_id", sa.String(length=64), nullable=True),
        sa.Column("replica", sa.String(length=256), nullable=True),
        sa.Column("outcome_kind", sa.String(length=32), nullable=True),
        sa.Column("outcome_source", sa.String(length=32), nullable=True),
        sa.Column("outcome_exit_code", sa.Integer(), nullable=True),
        sa.Column("outcome_note", sa.Text(), nullable=True),
        sa.Column("outcome_set_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "parent_workflow_id"],
            ["workflows.tenant", "workflows.workflow_id"],
            name=op.f("fk_workflows_tenant_parent_workflow_id"),
        ),
        sa.PrimaryKeyConstraint("tenant", "workflow_id", name=op.f("pk_workflows")),
    )
    op.create_index(
        "ix_workflows_open",
        "workflows",
        ["created_at"],
        unique=False,
        sqlite_where=sa.text("outcome_kind IS NULL"),
        postgresql_where=sa.text("outcome_kind IS NULL"),
    )
    op.create_index(
        op.f("ix_workflows_tenant_created_at_workflow_id"),
        "workflows",
        ["tenant", "created_at", "workflow_id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_workflows_tenant_parent_workflow_id"), "workflows", ["tenant", "parent_workflow_id"], unique=False
    )

    op.create_table(
        "outcome_changes",
        sa.Column(
            "change_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("workflow_id", sa.String(length=64), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("old_kind", sa.String(length=32), nullable=True),
        sa.Column("old_source", sa.String(length=32), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "workflow_id"],
            ["workflows.tenant", "workflows.workflow_id"],
            name=op.f("fk_outcome_changes_tenant_workflow_id"),
        ),
        sa.PrimaryKeyConstraint("change_id", name=op.f("pk_outcome_changes")),
    )
    op.create_index(
        op.f("ix_outcome_changes_tenant_workflow_id"), "outcome_changes", ["tenant", "workflow_id"], unique=False
    )

    op.create_table(
        "steps",
        sa.Column("step_id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("workflow_id", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("request_hash", sa.String(length=128), nullable=False),
        sa.Column("parent_step_id", sa.String(length=64), nullable=True),
        sa.Column("preamble_id", sa.String(length=64), nullable=True),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("runtime_id", sa.String(length=64), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("malformed_tool_calls", sa.Integer(), nullable=False),
        sa.Column("finish_reason", sa.String(length=32), nullable=True),
        sa.Column("carried_tokens", sa.BigInteger(), nullable=True),
        sa.Column("rendered_ids", sa.LargeBinary(), nullable=True),
        sa.Column("generated_ids", sa.LargeBinary(), nullable=True),
        sa.Column("tokenizer_hash", sa.String(length=128), nullable=True),
        sa.Column("template_hash", sa.String(length=128), nullable=True),
        sa.Column("reuse_prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reuse_carried_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reuse_rendered_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reuse_break", sa.String(length=32), nullable=True),
        sa.Column("attempt_count", sa.Integer(), nullable=False),
        sa.Column("last_attempt_id", sa.String(length=64), nullable=True),
        sa.Column("error_reason", sa.String(length=64), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["parent_step_id"], ["steps.step_id"], name=op.f("fk_steps_parent_step_id")),
        sa.ForeignKeyConstraint(["preamble_id"], ["preambles.preamble_id"], name=op.f("fk_steps_preamble_id")),
        sa.ForeignKeyConstraint(
            ["tenant", "workflow_id"],
            ["workflows.tenant", "workflows.workflow_id"],
            name=op.f("fk_steps_tenant_workflow_id"),
        ),
        sa.PrimaryKeyConstraint("step_id", name=op.f("pk_steps")),
        sa.UniqueConstraint("tenant", "request_id", name=op.f("uq_steps_tenant_request_id")),
    )
    op.create_index(op.f("ix_steps_parent_step_id"), "steps", ["parent_step_id"], unique=False)
    op.create_index(
        op.f("ix_steps_tenant_workflow_id_created_at_step_id"),
        "steps",
        ["tenant", "workflow_id", "created_at", "step_id"],
        unique=False,
    )
    op.create_index(
        "ix_steps_unended",
        "steps",
        ["runtime_id"],
        unique=False,
        sqlite_where=sa.text("state IN ('queued', 'running')"),
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )

    op.create_table(
        "workflow_labels",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("workflow_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "workflow_id"],
            ["workflows.tenant", "workflows.workflow_id"],
            name=op.f("fk_workflow_labels_tenant_workflow_id"),
        ),
        sa.PrimaryKeyConstraint("tenant", "workflow_id", "name", name=op.f("pk_workflow_labels")),
    )
    op.create_index(
        op.f("ix_workflow_labels_tenant_name_value_workflow_id"),
        "workflow_labels",
        ["tenant", "name", "value", "workflow_id"],
        unique=False,
    )

    op.create_table(
        "attempts",
        sa.Column("attempt_id", sa.String(length=64), nullable=False),
        sa.Column("step_id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("workflow_id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("replica", sa.String(length=256), nullable=False),
        sa.Column("runtime_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("error_reason", sa.String(length=64), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reserved_list_nanos", sa.BigInteger(), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("uncached_prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_write_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.Column("prompt_source", sa.String(length=32), nullable=True),
        sa.Column("output_source", sa.String(length=32), nullable=True),
        sa.Column("speculation_profile", sa.String(length=256), nullable=False),
        sa.Column("drafted_tokens", sa.BigInteger(), nullable=True),
        sa.Column("accepted_tokens", sa.BigInteger(), nullable=True),
        sa.Column("mean_acceptance_length", sa.Float(), nullable=True),
        sa.Column("queue_us", sa.BigInteger(), nullable=True),
        sa.Column("first_token_us", sa.BigInteger(), nullable=True),
        sa.Column("decode_us", sa.BigInteger(), nullable=True),
        sa.Column("total_us", sa.BigInteger(), nullable=True),
        sa.Column("accelerator_us", sa.BigInteger(), nullable=True),
        sa.Column("list_nanos", sa.BigInteger(), nullable=True),
        sa.Column("infrastructure_nanos", sa.BigInteger(), nullable=True),
        sa.Column("price_name", sa.String(length=256), nullable=False),
        sa.Column("example_price", sa.Boolean(), nullable=False),
        sa.Column("dispatched_at", sa.BigInteger(), nullable=False),
        sa.Column("checkpointed_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["step_id"], ["steps.step_id"], name=op.f("fk_attempts_step_id")),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("step_id", "number", name=op.f("uq_attempts_step_id_number")),
    )
    op.create_index(
        "ix_attempts_running",
        "attempts",
        ["runtime_id"],
        unique=False,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_index(op.f("ix_attempts_tenant_workflow_id"), "attempts", ["tenant", "workflow_id"], unique=False)


def downgrade() -> None:
    """Go back."""
    for table in (
        "attempts",
        "workflow_labels",
        "steps",
        "outcome_changes",
        "workflows",
        "runtimes",
        "preambles",
        "api_keys",
    ):
        op.drop_table(table)
