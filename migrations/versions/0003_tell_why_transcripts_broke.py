"""Tell where transcripts broke and what that cost, and keep each workflow's policy for them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision. Workflows from before have appended only; their steps keep NULL: nobody noted it."""
    policy = sa.Column("transcript_policy", sa.String(length=32), nullable=False, server_default="append_only")
    op.add_column("workflows", policy)
    op.add_column("steps", sa.Column("reuse_break_message", sa.Integer(), nullable=True))
    op.add_column("steps", sa.Column("reuse_dropped_tokens", sa.BigInteger(), nullable=True))
    op.add_column("steps", sa.Column("reuse_kept_reasoning_tokens", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Go back."""
    for column in ("reuse_kept_reasoning_tokens", "reuse_dropped_tokens", "reuse_break_message"):
        op.drop_column("steps", column)
    op.drop_column("workflows", "transcript_policy")
