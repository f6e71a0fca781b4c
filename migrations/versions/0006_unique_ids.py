"""Make decision ids unique in the database again; the blocks of hashes that stood in for that go."""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

IDS = "uq_decisions_campaign_id_decision_id"
SHOWN = 5  # duplicates that the error names


def upgrade() -> None:
    refuse_duplicates()
    # SQLite can only build an index that enforces a constraint's rule while it copies the table.
    with op.batch_alter_table("decisions") as decisions:
        decisions.create_unique_constraint(op.f(IDS), ["campaign_id", "decision_id"])
    op.drop_table("id_blocks")


def refuse_duplicates() -> None:
    """Name the decisions that share an id, and stop: which of them to keep is for a person to say."""
    duplicates = (
        op.get_bind()
        .execute(
            sa.text(
                "SELECT campaigns.name, decisions.decision_id, min(round), max(round) FROM decisions "
                "JOIN campaigns ON campaigns.id = campaign_id GROUP BY campaigns.name, campaign_id, decision_id "
                "HAVING count(*) > 1 ORDER BY 1, 3"
            )
        )
        .all()
    )
    if duplicates:
        named = "; ".join(
            f"campaign {name!r}, decision_id {id!r}, rounds {first} and {last}"
            for name, id, first, last in duplicates[:SHOWN]
        )
        more = f" and {len(duplicates) - SHOWN} more" if len(duplicates) > SHOWN else ""
        raise CommandError(
            f"decision ids must be unique, and these are not: {named}{more}. Give one of each pair another id "
            "(UPDATE decisions SET decision_id = ...), then migrate again"
        )


def downgrade() -> None:
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
    with op.batch_alter_table("decisions") as decisions:
        decisions.drop_constraint(op.f(IDS), type_="unique")
