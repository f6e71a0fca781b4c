"""The plain service that a competent engineer writes in an afternoon: a session and a commit for each request.

It calls the same policy and keeps the same durability (SQLite, WAL, synchronous=FULL), with FastAPI and SQLAlchemy used
as their documentation shows. It leaves out what would only slow it down: there are no rewards, retries get a 409, not
their first answer, and nothing rebuilds its memory after a restart.
"""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import JSON, create_engine, event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from benchmarks import ceilings
from benchmarks.ceilings import DecideRequest
from policy import CampaignConfig, StagedPolicy, State
from service.engine.warm_up import warm_up


class Base(DeclarativeBase):
    pass


class Decision(Base):
    __tablename__ = "decisions"
    campaign: Mapped[str] = mapped_column(primary_key=True)
    decision_id: Mapped[str] = mapped_column(primary_key=True)
    round: Mapped[int]
    context: Mapped[dict[str, Any]] = mapped_column(JSON)
    model_version: Mapped[int]
    mode: Mapped[str]
    action: Mapped[str]
    propensity: Mapped[float]
    belief: Mapped[list[float]] = mapped_column(JSON)
    scores: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    decided_at: Mapped[datetime]


class Campaign:
    """A campaign in memory; one request at a time."""

    def __init__(self, config: CampaignConfig) -> None:
        self.policy = StagedPolicy(config)
        self.state: State = self.policy.initial_state()
        self.lock = threading.Lock()


def naive_app(database: str) -> FastAPI:
    app = FastAPI()
    engine = create_engine(f"sqlite:///{database}")

    @event.listens_for(engine, "connect")
    def durable(connection: Any, _: Any) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000"):
            connection.execute(f"PRAGMA {pragma}")

    Base.metadata.create_all(engine)
    sessions = sessionmaker(engine, expire_on_commit=False)
    campaigns: dict[str, Campaign] = {}

    def session() -> Iterator[Session]:
        with sessions() as opened:
            yield opened

    @app.post("/campaigns", status_code=201)
    def create(config: dict[str, Any]) -> dict[str, str]:
        campaigns[config["name"]] = Campaign(CampaignConfig(**config))
        return {"name": config["name"]}

    @app.post("/decide")
    def decide(request: DecideRequest, session: Annotated[Session, Depends(session)]) -> ceilings.Decision:
        campaign, now = campaigns[request.campaign], datetime.now(UTC)
        with campaign.lock:  # the state in memory and the rows must agree on the order of the rounds
            state, made = campaign.policy.decide(campaign.state, request.context)
            fields = {
                "campaign": request.campaign,
                "decision_id": request.decision_id,
                "round": made.round,
                "model_version": made.model_version,
                "mode": made.mode,
                "action": made.action,
                "propensity": made.propensity,
                "belief": list(made.belief),
                "scores": [
                    {"action": action, "estimate": estimate, "bonus": bonus, "score": estimate + bonus}
                    for action, estimate, bonus in zip(made.eligible, made.estimates, made.bonuses, strict=True)
                ],
            }
            session.add(Decision(**fields, context=request.context, decided_at=now))
            try:
                session.commit()
            except IntegrityError:
                raise HTTPException(409, "this decision_id is known") from None
            campaign.state = state
        stage = -(-made.round // campaign.policy.config.stage_length)
        return ceilings.Decision(**fields, stage=stage, decided_at=now.isoformat())

    return app


def serve(database: str) -> None:
    warm_up()  # it is not to be charged for compiling
    ceilings.serve(naive_app(database))
