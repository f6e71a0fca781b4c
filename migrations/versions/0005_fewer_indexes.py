"""Store hashes of decision ids in blocks instead of an index; decision times never decrease and need no index."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

IDS = "uq_decisions_campaign_id_decision_id"
TIMES = "ix_decisions_campaign_id_decided_at"


def upgrade() -> None:
    op.create_table(
        "id_blocks",
        sa.Column("campaign_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("last_round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_id_blocks_campaign_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("campaign_id", "last_round", name=op.f("pk_id_blocks")),
    )
    op.drop_index(op.f(TIMES), "decisions")
    with op.batch_alter_table("decisions") as decisions:  # SQLite rewrites the table
        decisions.drop_constraint(op.f(IDS), type_="unique")


def downgrade() -> None:
    with op.batch_alter_table("decisions") as decisions:
        decisions.create_unique_constraint(op.f(IDS), ["campaign_id", "decision_id"])
    op.create_index(op.f(TIMES), "decisions", ["campaign_id", "decided_at"])
    op.drop_table("id_blocks")
