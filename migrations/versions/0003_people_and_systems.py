"""Erasures, imports, retention, and regime alerts with their outbox."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KINDS = "kind IN ('update', 'estimation', 'actions', 'rollback', 'erasure')"
KINDS_BEFORE = "kind IN ('update', 'estimation', 'actions', 'rollback')"
SOURCES = "source IN ('client', 'default', 'import', 'erased')"
SOURCES_BEFORE = "source IN ('client', 'default')"


def upgrade() -> None:
    op.create_table(
        "outbox",
        sa.Column("campaign_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("event", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("status IN ('waiting', 'sent', 'failed')", name=op.f("ck_outbox_status")),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_outbox_campaign_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("campaign_id", "event", name=op.f("pk_outbox")),
    )
    op.create_index(op.f("ix_outbox_status_due_at"), "outbox", ["status", "due_at"])
    op.add_column("config_revisions", sa.Column("erased", sa.BigInteger(), nullable=True))
    op.add_column("live", sa.Column("reduced", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("live", sa.Column("regime", sa.SmallInteger(), nullable=True))
    _allow(KINDS, SOURCES)
    with op.batch_alter_table("rewards") as rewards:
        rewards.alter_column("reward", existing_type=sa.Float(), nullable=True)


def downgrade() -> None:
    with op.batch_alter_table("rewards") as rewards:
        rewards.alter_column("reward", existing_type=sa.Float(), nullable=False)
    _allow(KINDS_BEFORE, SOURCES_BEFORE)
    op.drop_column("live", "regime")
    op.drop_column("live", "reduced")
    op.drop_column("config_revisions", "erased")
    op.drop_table("outbox")


def _allow(kinds: str, sources: str) -> None:
    """Replace check constraints. SQLite cannot change one, so it rewrites the tables; no other table refers to them."""
    for table, column, condition in (("models", "kind", kinds), ("rewards", "source", sources)):
        with op.batch_alter_table(table) as altered:
            altered.drop_constraint(op.f(f"ck_{table}_{column}"), type_="check")
            altered.create_check_constraint(op.f(f"ck_{table}_{column}"), condition)
