"""The database: one table for each kind of row of the log, and `live`, what a worker needs to go on.

Append-only `decisions` and `rewards`, with `config_revisions`, `jobs` and `events`, are the log: the truth (R14).
`models` and `snapshots` are results of folding it, `live` is its end. All are keyed by campaign first; only `keys`,
which say who may ask, and `audit`, which says what administrators did, belong to none. Times are microseconds since
1970 (UTC), lists and objects are JSON text, arrays are little-endian float64 or policy.codec bytes.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

__all__ = [
    "audit",
    "campaigns",
    "config_revisions",
    "decisions",
    "events",
    "id_blocks",
    "jobs",
    "keys",
    "live",
    "metadata",
    "models",
    "outbox",
    "rewards",
    "snapshots",
]

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)
# SQLite numbers rows by itself only in a column of exactly this type.
Number = BigInteger().with_variant(Integer, "sqlite")


def _campaign() -> Column[int]:
    return Column("campaign_id", Number, ForeignKey("campaigns.id", ondelete="CASCADE"), primary_key=True)


campaigns = Table(
    "campaigns",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),  # never the name: caches are keyed by it (R23)
    Column("name", String(64), nullable=False, unique=True),
    Column("request_hash", LargeBinary, nullable=False),  # of the body that created it: creating is idempotent
    Column("created_at", BigInteger, nullable=False),
    Column("archived_at", BigInteger),  # from then on it decides no more
    sqlite_autoincrement=True,  # the id of a deleted campaign is never used again
)

config_revisions = Table(
    "config_revisions",
    metadata,
    _campaign(),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("round", BigInteger, nullable=False),  # holds from the round after this one on
    Column("arrived", BigInteger, nullable=False, server_default="0"),  # rewards committed by then
    Column("config", Text, nullable=False),
    Column("restored", BigInteger),  # the model version that a rollback went back to (R21)
    Column("erased", BigInteger),  # decisions that an erasure took away (R22)
    Column("created_at", BigInteger, nullable=False),
)

live = Table(
    "live",
    metadata,
    _campaign(),
    Column("version", BigInteger, nullable=False),  # of this row: changes with every transaction on the campaign
    Column("round", BigInteger, nullable=False),
    Column("arrived", BigInteger, nullable=False),  # rewards committed
    Column("folded", BigInteger, nullable=False),  # of them, in the model
    Column("settled", BigInteger, nullable=False),  # every round up to this one has its reward, if need be by default
    Column("model_version", BigInteger, nullable=False),
    Column("belief", Text, nullable=False),
    Column("clock", BigInteger, nullable=False),  # the last time used; time never goes backwards (R20)
    Column("last_at", BigInteger, nullable=False),  # the last `at` (R27)
    Column("snapshot_round", BigInteger, nullable=False),  # of the newest snapshot
    Column("changes", BigInteger, nullable=False, server_default="0"),  # transactions with jobs, events or revisions
    Column("guarded", Boolean, nullable=False, server_default=false()),  # more regimes were tried and do not pay
    Column("reduced", BigInteger, nullable=False, server_default="0"),  # up to this round requests are kept no more
    Column("regime", SmallInteger),  # the last one that alerts told of, counted from 0
    Column("failure", Text),  # of the last update or re-estimation, None once one has worked again
)

decisions = Table(
    "decisions",
    metadata,
    _campaign(),
    Column("round", BigInteger, primary_key=True, autoincrement=False),
    Column("decision_id", String(200), nullable=False),  # found by `id_blocks`, not by an index of the database
    Column("request_hash", LargeBinary),  # of the canonical request (R17); None if it is not here (any more)
    Column("subject", String(200)),
    Column("context", Text),
    Column("excluded_actions", Text),
    Column("at", BigInteger),
    Column("model_version", BigInteger, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("action", String(100), nullable=False),
    Column("propensity", Float, nullable=False),  # 0 if it is not known: imported without
    Column("explanation", Text, nullable=False),  # belief and scores
    Column("decided_at", BigInteger, nullable=False),  # never falls from one round to the next: found by bisection
    Column("erased", Boolean, nullable=False, server_default=false()),  # R22: context, subject and reward are gone
    Index(
        "ix_decisions_subject",
        "campaign_id",
        "subject",
        sqlite_where=text("subject IS NOT NULL"),
        postgresql_where=text("subject IS NOT NULL"),
    ),
)

# Random ids would change a page each of an index. See service/engine/ids.py, which looks them up and keeps them unique.
id_blocks = Table(
    "id_blocks",
    metadata,
    _campaign(),
    Column("last_round", BigInteger, primary_key=True, autoincrement=False),  # the block begins after the one before
    Column("hashes", LargeBinary, nullable=False),  # of the decisions' ids, eight bytes each, in the order of rounds
)

rewards = Table(
    "rewards",
    metadata,
    Column("campaign_id", Number, primary_key=True, autoincrement=False),
    Column("round", BigInteger, primary_key=True, autoincrement=False),
    Column("arrival", BigInteger, nullable=False),  # 1, 2, … in the order they were committed
    Column("after_round", BigInteger, nullable=False),  # rounds decided by then
    Column("reward", Float),  # None once it is erased (R22)
    Column("source", String(16), nullable=False),
    Column("received_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["campaign_id", "round"], ["decisions.campaign_id", "decisions.round"], ondelete="CASCADE"),
    UniqueConstraint("campaign_id", "arrival"),
    CheckConstraint("source IN ('client', 'default', 'import', 'erased')", name="source"),
)

models = Table(
    "models",
    metadata,
    _campaign(),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("round", BigInteger, nullable=False),  # in force from the round after this one on
    Column("arrived", BigInteger, nullable=False),
    Column("folded", BigInteger, nullable=False),
    Column("regimes", SmallInteger, nullable=False),
    Column("theta", LargeBinary, nullable=False),
    Column("seconds", Float, nullable=False),  # it took to make
    Column("published_at", BigInteger, nullable=False),
    CheckConstraint("kind IN ('update', 'estimation', 'actions', 'rollback', 'erasure')", name="kind"),
)

snapshots = Table(
    "snapshots",
    metadata,
    _campaign(),
    Column("round", BigInteger, primary_key=True, autoincrement=False),
    Column("arrived", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False, server_default="1"),  # of the configuration
    Column("model_version", BigInteger, nullable=False),
    Column("state", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    _campaign(),
    Column("input_round", BigInteger, primary_key=True, autoincrement=False),  # made from the log up to here
    Column("input_arrived", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),
    Column("owner", String(64)),
    Column("leased_until", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("result", LargeBinary),
    Column("published_round", BigInteger),  # in force from the round after this one on
    Column("seconds", Float),
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("status IN ('waiting', 'done', 'nothing', 'published', 'failed')", name="status"),
    Index(None, "status", "leased_until"),
)

events = Table(
    "events",
    metadata,
    _campaign(),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("round", BigInteger, nullable=False),  # rounds decided by then
    Column("kind", String(32), nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    _campaign(),
    Column("event", BigInteger, primary_key=True, autoincrement=False),  # its number
    Column("status", String(16), nullable=False),
    Column("url", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", BigInteger, nullable=False),  # the next attempt; while one is under way, when it is given up
    Column("failure", Text),  # of the last attempt
    Column("created_at", BigInteger, nullable=False),
    Column("sent_at", BigInteger),
    CheckConstraint("status IN ('waiting', 'sent', 'failed')", name="status"),
    Index(None, "status", "due_at"),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(16), primary_key=True),  # the part of a key that is no secret
    Column("secret_hash", LargeBinary, nullable=False),  # SHA-256 of the other part
    Column("name", String(100), nullable=False),  # for people
    Column("role", String(16), nullable=False),
    Column("campaigns", Text),  # the names it is good for, None for all
    Column("rate_limit", Float),  # requests a second, None for no limit
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    CheckConstraint("role IN ('admin', 'client', 'viewer')", name="role"),
)

audit = Table(
    "audit",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", String(32), nullable=False),  # a key's id, or what stands for those without one
    Column("role", String(16)),
    Column("action", String(32), nullable=False),
    Column("campaign", String(64)),  # its name, no reference: what was done to it stays when it is gone
    Column("details", Text, nullable=False),
    Column("request_id", String(128)),
    Column("outcome", String(16), nullable=False),
    CheckConstraint("outcome IN ('done', 'refused')", name="outcome"),
    Index(None, "campaign", "number"),
    sqlite_autoincrement=True,  # a number is never used again
)
