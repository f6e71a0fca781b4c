"""Rounds enter the model while they wait for their reward, and defaults follow from the clock.

Until now a round entered with its reward, and a default reward was a row of the log. For replays to stay as they were,
the revisions so far say so (`while_waiting: leave_out`). Each campaign with a default gets one more revision, from
which rounds enter while they wait. Snapshots lack the times of decisions, so those of such campaigns are deleted: the
next start folds their log from the beginning.
"""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    add_revisions()
    with op.batch_alter_table("live") as live:
        live.drop_column("settled")


def downgrade() -> None:
    forget_field()
    with op.batch_alter_table("live") as live:
        live.add_column(sa.Column("settled", sa.BigInteger(), nullable=False, server_default="0"))


def add_revisions() -> None:
    connection, newest = op.get_bind(), dict[int, tuple[int, dict[str, Any]]]()
    for campaign, number, config in read_configs():
        newest[campaign] = number, config
        if config["rewards"].get("default") is not None:
            write_config(campaign, number, rule(config, "leave_out"))
    for campaign, (number, config) in newest.items():
        if config["rewards"].get("default") is None:
            continue
        connection.execute(
            sa.text(
                "INSERT INTO config_revisions (campaign_id, revision, round, arrived, config, created_at) "
                "SELECT campaign_id, :revision, round, arrived, :config, clock FROM live WHERE campaign_id = :campaign"
            ),
            {"campaign": campaign, "revision": number + 1, "config": json.dumps(rule(config, "provisional"))},
        )
        connection.execute(sa.text("DELETE FROM snapshots WHERE campaign_id = :campaign"), {"campaign": campaign})
        connection.execute(
            sa.text(
                "UPDATE live SET version = version + 1, changes = changes + 1, snapshot_round = 0 "
                "WHERE campaign_id = :campaign"
            ),
            {"campaign": campaign},
        )


def forget_field() -> None:
    """Take the field out of all configurations; stop if rounds have entered a model while they waited."""
    for campaign, number, config in read_configs():
        if config["rewards"].get("while_waiting") in ("provisional", "hold"):
            name = config["name"]
            raise CommandError(
                f"campaign {name!r} learns from rounds that wait for their reward, which revision 0007 cannot. Delete "
                "it, or restore a backup from before the upgrade"
            )
        if "while_waiting" in config["rewards"]:
            del config["rewards"]["while_waiting"]
            write_config(campaign, number, config)


def read_configs() -> list[tuple[int, int, dict[str, Any]]]:
    """All configurations, by campaign and revision."""
    query = sa.text("SELECT campaign_id, revision, config FROM config_revisions ORDER BY campaign_id, revision")
    return [(campaign, number, json.loads(config)) for campaign, number, config in op.get_bind().execute(query)]


def rule(config: dict[str, Any], while_waiting: str) -> dict[str, Any]:
    return config | {"rewards": config["rewards"] | {"while_waiting": while_waiting}}


def write_config(campaign: int, number: int, config: dict[str, Any]) -> None:
    op.get_bind().execute(
        sa.text("UPDATE config_revisions SET config = :config WHERE campaign_id = :campaign AND revision = :revision"),
        {"config": json.dumps(config, separators=(",", ":")), "campaign": campaign, "revision": number},
    )
