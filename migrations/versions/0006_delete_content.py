"""Let the content of workflows be deleted, and tell what they have that is not stored."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

FLAGS = ("system_gone", "tools_gone", "content_left")
INDEXES = {
    "ix_workflows_stored": ("created_at", "content_deleted_at IS NULL"),
    "ix_workflows_own_time": (
        "content_deleted_at",
        "retention_seconds IS NOT NULL OR content_deleted_at IS NOT NULL",
    ),
}


def upgrade() -> None:
    """Go to this revision."""
    for name in FLAGS:
        op.add_column("workflows", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))
    for name, (column, where) in INDEXES.items():
        only = sa.text(where)
        op.create_index(name, "workflows", [column], sqlite_where=only, postgresql_where=only)
    op.create_index(op.f("ix_steps_preamble_id"), "steps", ["preamble_id"])


def downgrade() -> None:
    """Go back."""
    op.drop_index(op.f("ix_steps_preamble_id"), "steps")
    for name in reversed(INDEXES):
        op.drop_index(name, "workflows")
    for name in reversed(FLAGS):
        op.drop_column("workflows", name)
