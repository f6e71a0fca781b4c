"""Make `rewards` a log of arrivals: a round may have several, of which the last one is in force."""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KEY, BY_ARRIVAL, IN_FORCE = "pk_rewards", "uq_rewards_campaign_id_arrival", "uq_rewards_campaign_id_round_replaced_by"
SOURCES = "source IN ('client', 'correction', 'subject', 'default', 'import', 'erased')"
SOURCES_BEFORE = "source IN ('client', 'default', 'import', 'erased')"
HAS_REWARD_ID = sa.text("reward_id IS NOT NULL")


def upgrade() -> None:
    with op.batch_alter_table("rewards") as rewards:
        rewards.add_column(sa.Column("amount", sa.Float(), nullable=True))
        rewards.add_column(sa.Column("reward_id", sa.String(length=200), nullable=True))
        rewards.add_column(sa.Column("replaced_by", sa.BigInteger(), nullable=False, server_default="0"))
        rewards.drop_constraint(op.f(BY_ARRIVAL), type_="unique")
        rewards.drop_constraint(op.f(KEY), type_="primary")
        rewards.create_primary_key(op.f(KEY), ["campaign_id", "arrival"])
        rewards.create_unique_constraint(op.f(IN_FORCE), ["campaign_id", "round", "replaced_by"])
        rewards.drop_constraint(op.f("ck_rewards_source"), type_="check")
        rewards.create_check_constraint(op.f("ck_rewards_source"), SOURCES)
    op.create_index(
        "uq_rewards_reward_id",
        "rewards",
        ["campaign_id", "reward_id", "round"],
        unique=True,
        sqlite_where=HAS_REWARD_ID,
        postgresql_where=HAS_REWARD_ID,
    )


def downgrade() -> None:
    refuse_several_rewards()
    op.execute("UPDATE rewards SET source = 'client' WHERE source IN ('correction', 'subject')")
    op.drop_index("uq_rewards_reward_id", "rewards")
    with op.batch_alter_table("rewards") as rewards:
        rewards.drop_constraint(op.f("ck_rewards_source"), type_="check")
        rewards.create_check_constraint(op.f("ck_rewards_source"), SOURCES_BEFORE)
        rewards.drop_constraint(op.f(IN_FORCE), type_="unique")
        rewards.drop_constraint(op.f(KEY), type_="primary")
        rewards.create_primary_key(op.f(KEY), ["campaign_id", "round"])
        rewards.create_unique_constraint(op.f(BY_ARRIVAL), ["campaign_id", "arrival"])
        rewards.drop_column("replaced_by")
        rewards.drop_column("reward_id")
        rewards.drop_column("amount")


def refuse_several_rewards() -> None:
    """Stop if a round has several rewards: the older schema has room for one, and the models have learned from all."""
    names = (
        op.get_bind()
        .execute(
            sa.text(
                "SELECT DISTINCT campaigns.name FROM rewards JOIN campaigns ON campaigns.id = campaign_id "
                "WHERE replaced_by > 0 ORDER BY 1"
            )
        )
        .scalars()
        .all()
    )
    if names:
        raise CommandError(
            f"rewards were corrected or added up in {', '.join(map(repr, names))}, for which revision 0006 has no "
            "room. Delete these campaigns, or restore a backup from before the upgrade"
        )
