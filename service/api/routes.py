"""The routes. Those that write are lean: straight from the body's bytes to a lane and back (PERF-NOTES: the framework's
dependency and response machinery costs several times what a durable decision does). OpenAPI describes them all alike.
"""

import hashlib
from typing import Annotated, Any

import msgspec
from fastapi import Body as BodyField
from fastapi import Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from policy import CampaignConfig, PolicyError, StagedPolicy, State, describe
from policy.config import MOST_ROUNDS
from policy.description import ModelDescription
from service.access.auth import asked, limited_to
from service.access.roles import ADMINS, ANYONE, DECIDERS, READERS, WATCHERS, allow
from service.api import schemas
from service.base.errors import GoneError, InvalidError, NotFoundError, UnavailableError
from service.base.times import format_timestamp
from service.engine.campaigns import Campaigns
from service.engine.encoding import encode_decisions, hash_request, hash_requests
from service.engine.operations import Create, Current, Decide, Reward
from service.engine.recovery import get_campaign, load_config
from service.engine.requests import CAMPAIGN_EXAMPLE, DecideBatch, DecideRequest, RewardBatch, RewardRequest
from service.engine.worker import Service
from service.storage.audit import describe_receiver, log_record
from service.storage.campaigns import read_campaign_page
from service.storage.models import read_model_page
from service.storage.rows import LiveRow, ModelRow
from service.storage.schema import require_current
from service.storage.transaction import Transaction
from service.web.application import Answer, Application
from service.web.openapi import describe_errors

__all__ = [
    "Application",
    "Limit",
    "VersionCursor",
    "add_routes",
    "campaign_state",
    "creation",
    "current",
    "possible",
    "stored_decision",
]

MAX_PAGE = 200
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
NameCursor = Annotated[str, Query(max_length=64, pattern=r"^[^\x00]*$")]
VersionCursor = Annotated[int | None, Query(ge=1, le=MOST_ROUNDS)]


def add_routes(app: Application, service: Service) -> None:
    """Every route of the API."""
    submit = service.submit

    @app.post_lean(
        "/decide",
        tags=["decisions"],
        response_model=schemas.DecisionAnswer,
        responses=describe_errors(404, 409, 410, 422),
    )
    @allow(DECIDERS, campaign="body")
    def decide(request: DecideRequest) -> Answer:
        """Decide for one customer. The answer is committed before it leaves; a repeated `decision_id` gets it again."""
        return submit(Decide(request.campaign, [(request, hash_request(request))], False))

    @app.post_lean(
        "/reward",
        tags=["decisions"],
        response_model=schemas.RewardAnswer,
        responses=describe_errors(404, 409, 410, 422),
    )
    @allow(DECIDERS, campaign="body")
    def reward(request: RewardRequest) -> Answer:
        """Report what a decision earned. It is committed, and counts from the next stage update on."""
        return submit(Reward(request.campaign, [request], False))

    @app.post_lean(
        "/decide/batch",
        tags=["decisions"],
        response_model=schemas.DecisionBatch,
        responses=describe_errors(404, 409, 410, 422),
    )
    @allow(DECIDERS, campaign="body")
    def decide_batch(request: DecideBatch) -> Answer:
        """Decide for up to 1,000 customers: exactly what single calls in that order would answer; all or nothing."""
        items = list(zip(request.items, hash_requests(request.items), strict=True))
        return submit(Decide(request.campaign, items, True))

    @app.post_lean(
        "/reward/batch", tags=["decisions"], response_model=schemas.RewardResults, responses=describe_errors(404, 422)
    )
    @allow(DECIDERS, campaign="body")
    def reward_batch(request: RewardBatch) -> Answer:
        """Report up to 1,000 rewards, with a result for each."""
        return submit(Reward(request.campaign, request.items, True))

    @app.post_lean(
        "/campaigns",
        tags=["campaigns"],
        status_code=201,
        response_model=CampaignConfig,
        responses=describe_errors(409, 422),
    )
    @allow(ADMINS, campaign="body")
    async def create(
        config: Annotated[CampaignConfig, BodyField(examples=[CAMPAIGN_EXAMPLE])], request: Request
    ) -> bytes:
        """Create a campaign. The answer is its configuration with every default filled in."""
        record = asked(request.scope, "create", config.name, **describe_receiver(config))
        answer: bytes = await submit((await creation(service, config))._replace(record=record))
        log_record(record)
        return answer

    @app.get("/campaigns", tags=["campaigns"], responses=describe_errors(422))
    @allow(READERS, campaign="list")
    def campaigns(
        request: Request, limit: Limit = 50, cursor: NameCursor = "", archived: bool = False
    ) -> schemas.CampaignPage:
        """The campaigns that your key is good for, by name, a page at a time: those in use, or the archived ones."""
        with service.store.reading() as tx:
            rows = read_campaign_page(tx, cursor, limit + 1, archived, limited_to(request.scope))
            configs = [load_config(tx, row.campaign_id) for row in rows[:limit]]
        return schemas.CampaignPage(
            campaigns=[schemas.CampaignSummary(**_summary(r, c)) for r, c in zip(rows, configs, strict=False)],
            next_cursor=rows[limit - 1].name if len(rows) > limit else None,
        )

    @app.get("/campaigns/{name}", tags=["campaigns"], responses=describe_errors(404))
    @allow(READERS, campaign="path")
    def campaign(name: str) -> schemas.CampaignState:
        """Where a campaign stands, and its configuration."""
        return campaign_state(service, name)

    @app.get("/campaigns/{name}/decisions/{decision_id:path}", tags=["decisions"], responses=describe_errors(404, 410))
    @allow(READERS, campaign="path")
    def decision(name: str, decision_id: str) -> schemas.StoredDecision:
        """A decision as it was made: request, answer, explanation, and the reward if it has come."""
        with service.store.reading() as tx:
            row = get_campaign(tx, name)
            return stored_decision(tx, service.campaigns, row, decision_id)

    @app.get("/campaigns/{name}/model", tags=["models"], responses=describe_errors(404))
    @allow(READERS, campaign="path")
    async def model(name: str) -> schemas.Model:
        """The model in force: the regimes, and what each coefficient says, in the campaign's own words."""
        policy, state = await current(service, name)
        return _model(policy.config, describe(policy, state))

    @app.get("/campaigns/{name}/stages", tags=["models"], responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def stages(name: str, limit: Limit = 50, cursor: VersionCursor = None) -> schemas.StagePage:
        """The models so far, newest first, a page at a time."""
        with service.store.reading() as tx:
            row = get_campaign(tx, name)
            length = load_config(tx, row.campaign_id).stage_length
            rows = read_model_page(tx, row.campaign_id, cursor, limit + 1)
        return schemas.StagePage(
            stages=[_stage(model, length) for model in rows[:limit]],
            next_cursor=rows[limit - 1].version if len(rows) > limit else None,
        )

    @app.get("/healthz", tags=["operations"])
    @allow(ANYONE)
    async def healthz() -> schemas.Health:
        """Is the process up?"""
        return schemas.Health()

    @app.get("/readyz", tags=["operations"], responses=describe_errors())
    @allow(ANYONE)
    def readyz() -> schemas.Health:
        """Can it decide: does the database answer and take writes, and is its schema the one this version needs?"""
        require_current(service.store)
        service.store.require_writes()
        return schemas.Health()

    exposition = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.get("/metrics", tags=["operations"], response_class=Response, responses={200: exposition})
    @allow(WATCHERS)
    async def metrics(request: Request) -> Response:
        """For Prometheus: what all workers have done since the start, and where every campaign stands."""
        content, content_type = await service.exporter.export(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})


async def creation(service: Service, config: CampaignConfig) -> Create:
    """The creation of a campaign, after every check that needs no other campaign."""
    given = config.model_dump_json(exclude_unset=True).encode()
    try:
        policy = await run_in_threadpool(StagedPolicy, config)  # a wide feature map takes a while
    except PolicyError as error:
        raise InvalidError.from_policy(error) from None
    service.sender.check(config)
    return Create(config.name, policy, hashlib.blake2b(given, digest_size=16).digest())


def possible(name: str) -> str:
    """A name that a campaign could have: PostgreSQL's text cannot even ask for one with a zero byte."""
    if "\x00" in name:
        raise NotFoundError(f"There is no campaign {name!r}")
    return name


async def current(service: Service, name: str) -> tuple[StagedPolicy, State]:
    """A campaign's policy and state, as of now; also while the database takes no writes, as long as it can be read."""
    try:
        policy, state = await service.submit(Current(possible(name)))
    except UnavailableError:
        policy, state = await run_in_threadpool(service.campaigns.read_current, name)
    return policy, state


def campaign_state(service: Service, name: str) -> schemas.CampaignState:
    """Where a campaign stands, and its configuration."""
    with service.store.reading() as tx:
        row = get_campaign(tx, name)
        config = load_config(tx, row.campaign_id)
    return schemas.CampaignState(**_summary(row, config), created_at=format_timestamp(row.created_at), config=config)


def stored_decision(
    tx: Transaction, campaigns: Campaigns, campaign: LiveRow, decision_id: str
) -> schemas.StoredDecision:
    """A decision as it was made: request, answer, explanation, and the reward if it has come."""
    row = campaigns.get_decision(tx, campaign, decision_id)
    if row is None:
        raise NotFoundError(f"Campaign {campaign.name} has no decision {decision_id!r}")
    if row.erased:
        raise GoneError(f"Decision {decision_id!r} was erased")
    stage_length = load_config(tx, campaign.campaign_id).stage_length
    reward = {"reward": row.reward, "source": row.source, "received_at": _when(row.received_at)}
    return schemas.StoredDecision(
        **msgspec.json.decode(encode_decisions(campaign.name, stage_length, [row])[0]),
        context=None if row.context is None else msgspec.json.decode(row.context),
        excluded_actions=msgspec.json.decode(row.excluded_actions or "[]"),
        at=_when(row.at),
        reward=None if row.reward is None else schemas.StoredReward.model_validate(reward),
    )


def _when(micros: int | None) -> str | None:
    return None if micros is None else format_timestamp(micros)


def _summary(row: LiveRow, config: CampaignConfig) -> dict[str, Any]:
    belief = msgspec.json.decode(row.belief)
    return {
        "name": row.name,
        "paused": config.paused,
        "archived_at": _when(row.archived_at),
        "round": row.round,
        "stage": -(-row.round // config.stage_length),
        "model_version": row.model_version,
        "regimes": len(belief),
        "belief": belief,
        "rewards_received": row.arrived,
        "rewards_waiting": row.arrived - row.folded,
        "updated_at": format_timestamp(row.clock),
        "failure": row.failure,
    }


def _stage(row: ModelRow, stage_length: int) -> schemas.Stage:
    return schemas.Stage(
        model_version=row.version,
        kind=row.kind,  # type: ignore[arg-type]  # the database allows no other
        round=row.round,
        stage=row.round // stage_length + 1,
        rewards_folded=row.folded,
        regimes=row.regimes,
        seconds=row.seconds,
        published_at=format_timestamp(row.published_at),
    )


def _model(config: CampaignConfig, found: ModelDescription) -> schemas.Model:
    regimes, labels = [], dict(enumerate(config.regime_labels))
    if found.hmm is not None:
        for h in range(found.regimes):
            emission = [{"symbol": s.symbol, "probability": s.probability} for s in found.hmm.emission[h]]
            regimes.append(
                schemas.Regime(
                    regime=h + 1,
                    label=labels.get(h),
                    share=found.hmm.stationary[h],
                    expected_duration=found.hmm.expected_duration[h],
                    initial=found.hmm.initial[h],
                    transition=list(found.hmm.transition[h]),
                    signals=found.hmm.signal_laws[h],
                    emission=[schemas.SymbolProbability.model_validate(symbol) for symbol in emission],
                )
            )
    return schemas.Model(
        campaign=config.name,
        model_version=found.model_version,
        round=found.round,
        rewards_folded=found.folded,
        regimes=regimes,
        guarded=found.guarded,
        noise_std=found.noise_std,
        ridge=found.ridge,
        centre=found.centre,
        coefficients=[schemas.Coefficient.model_validate(c._asdict()) for c in found.coefficients],
        candidates=[schemas.Candidate.model_validate(c._asdict()) for c in found.candidates],
    )
