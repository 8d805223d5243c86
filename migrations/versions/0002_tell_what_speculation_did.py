"""Tell what speculation did, and why a pool was chosen."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision. Attempts that ended before keep NULL: nobody noted it."""
    op.add_column("attempts", sa.Column("step_class", sa.String(length=32), nullable=True))
    op.add_column("attempts", sa.Column("draft_steps", sa.BigInteger(), nullable=True))
    op.add_column("attempts", sa.Column("pool_choice", sa.String(length=32), nullable=True))
    op.add_column("attempts", sa.Column("pool_saving_us", sa.BigInteger(), nullable=True))
    op.add_column("attempts", sa.Column("pool_prefill_us", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Go back."""
    for column in ("pool_prefill_us", "pool_saving_us", "pool_choice", "draft_steps", "step_class"):
        op.drop_column("attempts", column)
