"""The route that lists a campaign's regime alerts, with the delivery of each to the campaign's webhook."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel, Field

from service.access.roles import READERS, allow
from service.api.paging import Limit, NumberCursor
from service.base.times import format_timestamp
from service.engine.recovery import get_campaign, load_config
from service.engine.webhooks import describe_regime
from service.engine.worker import Service
from service.storage.events import AlertRow, read_alert_page
from service.web.openapi import describe_errors


class NamedRegime(BaseModel):
    """A regime, counted from 1, and its current label."""

    regime: int
    label: str | None


class Delivery(BaseModel):
    """The message to the webhook that was configured when the alert was raised."""

    status: Literal["waiting", "sent", "failed"]
    attempts: int
    failure: Annotated[str | None, Field(description="of the last attempt")]
    sent_at: str | None


class Alert(BaseModel):
    """A different regime has been the most likely for `alerts.rounds` decisions in a row."""

    number: Annotated[int, Field(description="of the event; the newest has the highest")]
    round: Annotated[int, Field(description="in which the alert was raised")]
    since_round: Annotated[int, Field(description="the first round in which the new regime was the most likely")]
    before: Annotated[NamedRegime, Field(alias="from")]
    after: Annotated[NamedRegime, Field(alias="to")]
    belief: Annotated[list[float], Field(description="in that round, one probability for each regime")]
    created_at: str
    delivery: Annotated[Delivery | None, Field(description="null where no webhook was configured")]


class AlertPage(BaseModel):
    alerts: Annotated[list[Alert], Field(description="newest first")]
    next_cursor: int | None


def add_alert_routes(app: FastAPI, service: Service) -> None:
    @app.get("/campaigns/{name}/alerts", tags=["campaigns"], name="alerts", responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def list_alerts(name: str, limit: Limit = 50, cursor: NumberCursor = None) -> AlertPage:
        """Lasting changes of the most likely regime, newest first, a page at a time."""
        with service.store.reading() as tx:
            row = get_campaign(tx, name)
            labels = dict(enumerate(load_config(tx, row.campaign_id).regime_labels, 1))
            rows = read_alert_page(tx, row.campaign_id, cursor, limit + 1)
        return AlertPage(
            alerts=[_describe_alert(row, labels) for row in rows[:limit]],
            next_cursor=rows[limit - 1].number if len(rows) > limit else None,
        )


def _describe_alert(row: AlertRow, labels: dict[int, str]) -> Alert:
    change: dict[str, Any] = msgspec.json.decode(row.body)
    delivery = {
        "status": row.status,
        "attempts": row.attempts,
        "failure": row.failure,
        "sent_at": None if row.sent_at is None else format_timestamp(row.sent_at),
    }
    return Alert.model_validate(
        {
            "number": row.number,
            "round": row.round,
            "since_round": change["since_round"],
            "from": describe_regime(change["from"], labels),
            "to": describe_regime(change["to"], labels),
            "belief": change["belief"],
            "created_at": format_timestamp(row.created_at),
            "delivery": None if row.status is None else delivery,
        }
    )
