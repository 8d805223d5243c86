"""Count the volatile blocks that were taken out of system prompts."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision. Steps from before keep NULL: nobody counted."""
    op.add_column("steps", sa.Column("reuse_volatile_blocks", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Go back."""
    op.drop_column("steps", "reuse_volatile_blocks")
