"""The log, the models folded from it, and the live rows."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "campaigns",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("request_hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_campaigns")),
        sa.UniqueConstraint("name", name=op.f("uq_campaigns_name")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "config_revisions",
        sa.Column("campaign_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_config_revisions_campaign_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("campaign_id", "revision", name=op.f("pk_config_revisions")),
    )
    op.create_table(
        "decisions",
        sa.Column("campaign_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("decision_id", sa.String(length=200), nullable=False),
        sa.Column("request_hash", sa.LargeBinary(), nullable=True),
        sa.Column("subject", sa.String(length=200), nullable=True),
        sa.Column("context", sa.Text(), nullable=True),
        sa.Column("excluded_actions", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=True),
        sa.Column("model_version", sa.BigInteger(), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("action", sa.String(length=100), nullable=False),
        sa.Column("propensity", sa.Float(), nullable=False),
        sa.Column("explanation", sa.Text(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=False),
        sa.Column("erased", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_decisions_campaign_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("campaign_id", "round", name=op.f("pk_decisions")),
        sa.UniqueConstraint("campaign_id", "decision_id", name=op.f("uq_decisions_campaign_id_decision_id")),
    )
    op.create_index(
        op.f("ix_decisions_campaign_id_decided_at"), "decisions", ["campaign_id", "decided_at"], unique=False
    )
    op.create_index(
        "ix_decisions_subject",
        "decisions",
        ["campaign_id", "subject"],
        unique=False,
        sqlite_where=sa.text("subject IS NOT NULL"),
        postgresql_where=sa.text("subject IS NOT NULL"),
    )

    op.create_table(
        "events",
        sa.Column("campaign_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_events_campaign_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("campaign_id", "number", name=op.f("pk_events")),
    )
    op.create_table(
        "jobs",
        sa.Column("campaign_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("input_round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("input_arrived", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("leased_until", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("published_round", sa.BigInteger(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "status IN ('waiting', 'done', 'nothing', 'published', 'failed')", name=op.f("ck_jobs_status")
        ),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_jobs_campaign_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("campaign_id", "input_round", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_status_leased_until"), "jobs", ["status", "leased_until"], unique=False)

    op.create_table(
        "live",
        sa.Column("campaign_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("arrived", sa.BigInteger(), nullable=False),
        sa.Column("folded", sa.BigInteger(), nullable=False),
        sa.Column("settled", sa.BigInteger(), nullable=False),
        sa.Column("model_version", sa.BigInteger(), nullable=False),
        sa.Column("belief", sa.Text(), nullable=False),
        sa.Column("clock", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("snapshot_round", sa.BigInteger(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_live_campaign_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("campaign_id", name=op.f("pk_live")),
    )
    op.create_table(
        "models",
        sa.Column("campaign_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("arrived", sa.BigInteger(), nullable=False),
        sa.Column("folded", sa.BigInteger(), nullable=False),
        sa.Column("regimes", sa.SmallInteger(), nullable=False),
        sa.Column("theta", sa.LargeBinary(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("published_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('update', 'estimation')", name=op.f("ck_models_kind")),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_models_campaign_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("campaign_id", "version", name=op.f("pk_models")),
    )
    op.create_table(
        "snapshots",
        sa.Column("campaign_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("arrived", sa.BigInteger(), nullable=False),
        sa.Column("model_version", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaigns.id"], name=op.f("fk_snapshots_campaign_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("campaign_id", "round", name=op.f("pk_snapshots")),
    )
    op.create_table(
        "rewards",
        sa.Column(
            "campaign_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("arrival", sa.BigInteger(), nullable=False),
        sa.Column("after_round", sa.BigInteger(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("source IN ('client', 'default')", name=op.f("ck_rewards_source")),
        sa.ForeignKeyConstraint(
            ["campaign_id", "round"],
            ["decisions.campaign_id", "decisions.round"],
            name=op.f("fk_rewards_campaign_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("campaign_id", "round", name=op.f("pk_rewards")),
        sa.UniqueConstraint("campaign_id", "arrival", name=op.f("uq_rewards_campaign_id_arrival")),
    )


def downgrade() -> None:
    for table in (
        "rewards",
        "snapshots",
        "models",
        "live",
        "jobs",
        "events",
        "decisions",
        "config_revisions",
        "campaigns",
    ):
        op.drop_table(table)
