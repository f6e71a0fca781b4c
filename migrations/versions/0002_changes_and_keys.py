"""Changes to live campaigns, archived campaigns, and keys."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KINDS = "kind IN ('update', 'estimation', 'actions', 'rollback')"
KINDS_BEFORE = "kind IN ('update', 'estimation')"


def upgrade() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("campaigns", sa.Text(), nullable=True),
        sa.Column("rate_limit", sa.Float(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("role IN ('admin', 'client', 'viewer')", name=op.f("ck_keys_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
    )
    op.add_column("campaigns", sa.Column("archived_at", sa.BigInteger(), nullable=True))
    op.add_column("config_revisions", sa.Column("arrived", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("config_revisions", sa.Column("restored", sa.BigInteger(), nullable=True))
    op.add_column("live", sa.Column("changes", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("live", sa.Column("guarded", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("snapshots", sa.Column("revision", sa.Integer(), nullable=False, server_default="1"))
    _allow_kinds(KINDS)


def downgrade() -> None:
    _allow_kinds(KINDS_BEFORE)
    op.drop_column("snapshots", "revision")
    op.drop_column("live", "guarded")
    op.drop_column("live", "changes")
    op.drop_column("config_revisions", "restored")
    op.drop_column("config_revisions", "arrived")
    op.drop_column("campaigns", "archived_at")
    op.drop_table("keys")


def _allow_kinds(condition: str) -> None:
    """Replace the check constraint. SQLite cannot change one, so there the table is rewritten."""
    with op.batch_alter_table("models") as models:
        models.drop_constraint(op.f("ck_models_kind"), type_="check")
        models.create_check_constraint(op.f("ck_models_kind"), condition)
