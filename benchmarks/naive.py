"""The plain service that a competent engineer writes in an afternoon: a session and a commit for each request.

It calls the same policy and keeps the same durability (SQLite, WAL, synchronous=FULL), with FastAPI and SQLAlchemy used
as their documentation shows. It leaves out what would only slow it down: retries get a 409, not their first answer, and
nothing rebuilds its memory after a restart.
"""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import JSON, create_engine, event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from benchmarks import ceilings
from benchmarks.ceilings import DecideRequest, RewardAnswer, RewardRequest, Score
from policy import CampaignConfig, StagedPolicy, State
from service.engine.warm_up import warm_up

__all__ = ["naive_app", "serve"]


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


class Reward(Base):
    __tablename__ = "rewards"
    campaign: Mapped[str] = mapped_column(primary_key=True)
    decision_id: Mapped[str] = mapped_column(primary_key=True)
    reward: Mapped[float]
    received_at: Mapped[datetime]


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

    def get_campaign(name: str) -> Campaign:
        if name not in campaigns:
            raise HTTPException(404, f"campaign {name} does not exist")
        return campaigns[name]

    @app.post("/campaigns", status_code=201)
    def create(config: dict[str, Any]) -> dict[str, str]:
        campaigns[config["name"]] = Campaign(CampaignConfig(**config))
        return {"name": config["name"]}

    @app.post("/decide")
    def decide(request: DecideRequest, session: Annotated[Session, Depends(session)]) -> ceilings.Decision:
        campaign = get_campaign(request.campaign)
        with campaign.lock:  # the state in memory and the rows must agree on the order of the rounds
            state, made = campaign.policy.decide(campaign.state, request.context)
            scores = [
                {"action": action, "estimate": estimate, "bonus": bonus, "score": estimate + bonus}
                for action, estimate, bonus in zip(made.eligible, made.estimates, made.bonuses, strict=True)
            ]
            row = Decision(
                campaign=request.campaign,
                decision_id=request.decision_id,
                round=made.round,
                context=request.context,
                model_version=made.model_version,
                mode=made.mode,
                action=made.action,
                propensity=made.propensity,
                belief=list(made.belief),
                scores=scores,
                decided_at=datetime.now(UTC),
            )
            session.add(row)
            try:
                session.commit()
            except IntegrityError:
                raise HTTPException(409, "this decision_id is known") from None
            campaign.state = state
        return ceilings.Decision(
            decision_id=row.decision_id,
            campaign=row.campaign,
            round=row.round,
            stage=-(-row.round // campaign.policy.config.stage_length),
            model_version=row.model_version,
            mode=row.mode,
            action=row.action,
            propensity=row.propensity,
            belief=row.belief,
            scores=[Score(**score) for score in row.scores],
            decided_at=row.decided_at.isoformat(),
        )

    @app.post("/reward")
    def reward(request: RewardRequest, session: Annotated[Session, Depends(session)]) -> RewardAnswer:
        campaign, now = get_campaign(request.campaign), datetime.now(UTC)
        with campaign.lock:
            query = select(Decision.round).where(
                Decision.campaign == request.campaign, Decision.decision_id == request.decision_id
            )
            round = session.scalar(query)
            if round is None:
                raise HTTPException(404, "no such decision")
            state = campaign.policy.reward(campaign.state, round, request.reward)
            session.add(Reward(**request.model_dump(), received_at=now))
            try:
                session.commit()
            except IntegrityError:
                raise HTTPException(409, "this decision has its reward") from None
            campaign.state = state
        return RewardAnswer(**request.model_dump(), round=round, source="client", received_at=now.isoformat())

    return app


def serve(database: str) -> None:
    warm_up()  # it is not to be charged for compiling
    ceilings.serve(naive_app(database))
