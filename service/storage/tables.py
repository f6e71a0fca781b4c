"""The tables. rows.py has the type of their rows; a change of either needs a migration.

Append-only `decisions` and `rewards`, with `config_revisions`, `jobs` and `events`, are the log: the truth (R14).
`models` and `snapshots` are results of folding it; `live` is its end, one row for each campaign. `keys` and `audit`
belong to no campaign. Times are microseconds since 1970 (UTC), lists and objects are JSON text, arrays are
little-endian float64 or bytes of policy.codec.
"""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, LargeBinary, SmallInteger, String, Table, Text
from sqlalchemy.schema import SchemaItem

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)
# SQLite assigns numbers only in a column of exactly this type.
Number = BigInteger().with_variant(Integer, "sqlite")
HAS_SUBJECT = sa.text("subject IS NOT NULL")
HAS_REWARD_ID = sa.text("reward_id IS NOT NULL")


def _define_campaign_table(name: str, *columns: SchemaItem) -> Table:
    """Define a table that is keyed by campaign first, and whose rows are deleted with the campaign."""
    campaign = Column("campaign_id", Number, sa.ForeignKey("campaigns.id", ondelete="CASCADE"), primary_key=True)
    return Table(name, metadata, campaign, *columns)


campaigns = Table(
    "campaigns",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),  # not the name: caches are keyed by the id (R23)
    Column("name", String(64), nullable=False, unique=True),
    Column("request_hash", LargeBinary, nullable=False),  # of the request that created it: creation is idempotent
    Column("created_at", BigInteger, nullable=False),
    Column("archived_at", BigInteger),  # an archived campaign decides nothing
    sqlite_autoincrement=True,  # the id of a deleted campaign is never reused
)

config_revisions = _define_campaign_table(
    "config_revisions",
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("round", BigInteger, nullable=False),  # in force from the next round on
    Column("arrived", BigInteger, nullable=False, server_default="0"),  # rewards committed by then
    Column("config", Text, nullable=False),
    Column("restored", BigInteger),  # the model version that a rollback went back to (R21)
    Column("erased", BigInteger),  # number of decisions that an erasure removed (R22)
    Column("created_at", BigInteger, nullable=False),
)

live = _define_campaign_table(
    "live",
    Column("version", BigInteger, nullable=False),  # of this row; every transaction on the campaign changes it
    Column("round", BigInteger, nullable=False),
    Column("arrived", BigInteger, nullable=False),  # rewards committed
    Column("folded", BigInteger, nullable=False),  # rewards in the model
    Column("model_version", BigInteger, nullable=False),
    Column("belief", Text, nullable=False),
    Column("clock", BigInteger, nullable=False),  # the last time used; time never goes backwards (R20)
    Column("last_at", BigInteger, nullable=False),  # the last `at` of a request (R27)
    Column("snapshot_round", BigInteger, nullable=False),  # of the newest snapshot
    Column("changes", BigInteger, nullable=False, server_default="0"),  # transactions with jobs, events or revisions
    Column("guarded", Boolean, nullable=False, server_default=sa.false()),  # more regimes were tried and are not better
    Column("reduced", BigInteger, nullable=False, server_default="0"),  # requests are deleted up to this round
    Column("regime", SmallInteger),  # the last regime that an alert reported, counted from 0
    Column("failure", Text),  # of the last update or re-estimation; None after a success
)

decisions = _define_campaign_table(
    "decisions",
    Column("round", BigInteger, primary_key=True, autoincrement=False),
    Column("decision_id", String(200), nullable=False),
    Column("request_hash", LargeBinary),  # of the canonical request (R17); None if there is none, or it was deleted
    Column("subject", String(200)),
    Column("context", Text),
    Column("excluded_actions", Text),
    Column("at", BigInteger),
    Column("model_version", BigInteger, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("action", String(100), nullable=False),
    Column("propensity", Float, nullable=False),  # 0 if unknown: imported without one
    Column("explanation", Text, nullable=False),  # belief and scores
    Column("decided_at", BigInteger, nullable=False),  # never falls from one round to the next: bisection finds a time
    Column("erased", Boolean, nullable=False, server_default=sa.false()),  # context, subject and reward are gone (R22)
    sa.UniqueConstraint("campaign_id", "decision_id"),  # answers repeated requests (R17)
    sa.Index("ix_decisions_subject", "campaign_id", "subject", sqlite_where=HAS_SUBJECT, postgresql_where=HAS_SUBJECT),
)

rewards = Table(
    "rewards",
    metadata,
    Column("campaign_id", Number, primary_key=True, autoincrement=False),
    Column("arrival", BigInteger, primary_key=True, autoincrement=False),  # 1, 2, … in the order of commits
    Column("round", BigInteger, nullable=False),
    Column("after_round", BigInteger, nullable=False),  # rounds decided by then
    Column("reward", Float),  # of the round, from this arrival on; None once erased (R22)
    Column("source", String(16), nullable=False),
    Column("received_at", BigInteger, nullable=False),
    Column("amount", Float),  # what was sent, if the round's reward is another: the earlier amounts were added
    Column("reward_id", String(200)),  # the client's id of this amount, so that a repeated one changes nothing
    Column("replaced_by", BigInteger, nullable=False, server_default="0"),  # a later arrival; 0 while in force
    sa.ForeignKeyConstraint(["campaign_id", "round"], ["decisions.campaign_id", "decisions.round"], ondelete="CASCADE"),
    sa.UniqueConstraint("campaign_id", "round", "replaced_by"),  # a round has one reward in force
    sa.Index(
        "uq_rewards_reward_id",
        "campaign_id",
        "reward_id",
        "round",
        unique=True,
        sqlite_where=HAS_REWARD_ID,
        postgresql_where=HAS_REWARD_ID,
    ),
    sa.CheckConstraint("source IN ('client', 'correction', 'subject', 'default', 'import', 'erased')", name="source"),
)

models = _define_campaign_table(
    "models",
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("round", BigInteger, nullable=False),  # in force from the next round on
    Column("arrived", BigInteger, nullable=False),
    Column("folded", BigInteger, nullable=False),
    Column("regimes", SmallInteger, nullable=False),
    Column("theta", LargeBinary, nullable=False),
    Column("seconds", Float, nullable=False),  # that computing it took
    Column("published_at", BigInteger, nullable=False),
    sa.CheckConstraint("kind IN ('update', 'estimation', 'actions', 'rollback', 'erasure')", name="kind"),
)

snapshots = _define_campaign_table(
    "snapshots",
    Column("round", BigInteger, primary_key=True, autoincrement=False),
    Column("arrived", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False, server_default="1"),  # of the configuration
    Column("model_version", BigInteger, nullable=False),
    Column("state", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

jobs = _define_campaign_table(
    "jobs",
    Column("input_round", BigInteger, primary_key=True, autoincrement=False),  # computed from the log up to this round
    Column("input_arrived", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),
    Column("owner", String(64)),
    Column("leased_until", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("result", LargeBinary),
    Column("published_round", BigInteger),  # in force from the next round on
    Column("seconds", Float),
    Column("created_at", BigInteger, nullable=False),
    sa.CheckConstraint("status IN ('waiting', 'done', 'nothing', 'published', 'failed')", name="status"),
    sa.Index(None, "status", "leased_until"),
)

events = _define_campaign_table(
    "events",
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("round", BigInteger, nullable=False),  # rounds decided by then
    Column("kind", String(32), nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

outbox = _define_campaign_table(
    "outbox",
    Column("event", BigInteger, primary_key=True, autoincrement=False),  # the event's number
    Column("status", String(16), nullable=False),
    Column("url", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", BigInteger, nullable=False),  # of the next attempt; during one, when its lease ends
    Column("failure", Text),  # of the last attempt
    Column("created_at", BigInteger, nullable=False),
    Column("sent_at", BigInteger),
    sa.CheckConstraint("status IN ('waiting', 'sent', 'failed')", name="status"),
    sa.Index(None, "status", "due_at"),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(16), primary_key=True),  # the public part of a key
    Column("secret_hash", LargeBinary, nullable=False),  # SHA-256 of the secret part
    Column("name", String(100), nullable=False),  # for people
    Column("role", String(16), nullable=False),
    Column("campaigns", Text),  # JSON list of the campaigns it may use, None for all
    Column("rate_limit", Float),  # requests per second, None for no limit
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    sa.CheckConstraint("role IN ('admin', 'client', 'viewer')", name="role"),
)

audit = Table(
    "audit",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", String(32), nullable=False),  # a key's id, or a word for actors without a key
    Column("role", String(16)),
    Column("action", String(32), nullable=False),
    Column("campaign", String(64)),  # its name, not a reference: the row outlives the campaign
    Column("details", Text, nullable=False),
    Column("request_id", String(128)),
    Column("outcome", String(16), nullable=False),
    sa.CheckConstraint("outcome IN ('done', 'refused')", name="outcome"),
    sa.Index(None, "campaign", "number"),
    sqlite_autoincrement=True,  # numbers are never reused
)
