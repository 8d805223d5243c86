"""Keep what continues a chain without its texts, how a workflow was found, and how long content stays."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

STEPS: dict[str, sa.types.TypeEngine[Any]] = {
    "message_keys": sa.LargeBinary(),
    "calls": sa.Text(),
    "chain_hash": sa.LargeBinary(),
    "workflow_match": sa.String(32),
    "output_flags": sa.Text(),
    "model_hash": sa.String(128),
    "reuse_block_tokens": sa.Integer(),
}


def upgrade() -> None:
    """Go to this revision. Steps from before keep NULL: their chains are read with the texts, as before."""
    for name, kind in STEPS.items():
        op.add_column("steps", sa.Column(name, kind, nullable=True))
    op.create_index(op.f("ix_steps_tenant_chain_hash"), "steps", ["tenant", "chain_hash"])
    op.add_column("workflows", sa.Column("store", sa.String(32), nullable=False, server_default="full"))
    op.add_column("workflows", sa.Column("retention_seconds", sa.BigInteger(), nullable=True))
    op.add_column("workflows", sa.Column("content_deleted_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Go back."""
    for name in ("content_deleted_at", "retention_seconds", "store"):
        op.drop_column("workflows", name)
    op.drop_index(op.f("ix_steps_tenant_chain_hash"), "steps")
    for name in reversed(STEPS):
        op.drop_column("steps", name)
