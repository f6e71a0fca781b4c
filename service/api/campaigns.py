"""The routes that list, create, fill, close and delete campaigns."""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Body, Query, Request, Response
from msgspec.structs import replace
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from policy import CampaignConfig, ConfigError, FixedError, PolicyError, StagedPolicy
from service.access.keys import get_key_campaigns, make_record
from service.access.roles import ADMINS, READERS, allow
from service.api.fields import Limit, NameCursor, Timestamp
from service.base.errors import ConflictError, FieldProblem, InvalidError, NotFoundError
from service.engine import handlers, operations, recovery
from service.engine.preparation import prepare_import
from service.engine.requests import CAMPAIGN_EXAMPLE, ImportRequest
from service.engine.worker import Service
from service.storage import audit, campaigns
from service.storage.rows import LiveRow
from service.web.application import Application
from service.web.openapi import describe_errors

T = TypeVar("T")
NewCampaign = Annotated[CampaignConfig, Body(examples=[CAMPAIGN_EXAMPLE])]
Confirmation = Annotated[str, Query(description="the campaign's name, again")]


class CampaignSummary(BaseModel):
    """The current state of a campaign."""

    name: str
    paused: bool
    archived_at: Timestamp | None
    round: int = Field(description="decisions so far")
    stage: int = Field(description="of the last decision")
    model_version: int
    regimes: int = Field(description="in use")
    belief: list[float]
    rewards_received: int
    rewards_waiting: int = Field(
        description="committed since the last stage update, and read by the next one. With `while_waiting` `hold`, a"
        " reward that was read counts only when its wait is over: the report's `early`"
    )
    updated_at: Timestamp = Field(description="time of the last decision or reward")
    failure: str | None = Field(description="of the last update, if it failed: the campaign goes on without it")


class CampaignState(CampaignSummary):
    created_at: Timestamp
    config: CampaignConfig


class CampaignPage(BaseModel):
    campaigns: list[CampaignSummary]
    next_cursor: str | None = Field(description="for the next page; null on the last")


class Imported(BaseModel):
    """What was imported, now or when it was first sent."""

    campaign: str
    import_id: str
    rows: int
    rewards: int


def add_routes(app: Application, service: Service) -> None:
    _add_creation(app, service)
    _add_removal(app, service)

    @app.api.get("/campaigns", tags=["campaigns"], name="campaigns", responses=describe_errors(422))
    @allow(READERS, campaign="list")
    def list_campaigns(
        request: Request, limit: Limit = 50, cursor: NameCursor = "", archived: bool = False
    ) -> CampaignPage:
        """The campaigns that your key covers, by name, a page at a time: those in use, or the archived ones."""
        with service.store.reading() as tx:
            rows = campaigns.read_campaign_page(tx, cursor, limit + 1, archived, get_key_campaigns(request.scope))
            page = [_summarize(row, recovery.load_config(tx, row.campaign_id)) for row in rows[:limit]]
        return CampaignPage(
            campaigns=[CampaignSummary.model_validate(summary) for summary in page],
            next_cursor=rows[limit - 1].name if len(rows) > limit else None,
        )

    @app.api.get("/campaigns/{name}", tags=["campaigns"], name="campaign", responses=describe_errors(404))
    @allow(READERS, campaign="path")
    def read_campaign(name: str) -> CampaignState:
        """The current state of a campaign, and its configuration."""
        return load_campaign(service, name)


def _add_creation(app: Application, service: Service) -> None:
    post = partial(app.post_lean, tags=["campaigns"])
    described: Any = {"response_model": CampaignConfig, "responses": describe_errors(409, 422)}

    @post("/campaigns", NewCampaign, 201, **described)
    @allow(ADMINS, campaign="body")
    async def create(config: CampaignConfig, name: str, scope: Scope) -> bytes:
        """Create a campaign. The answer is its configuration, with all defaults filled in."""
        operation = await _prepare_creation(service, config)
        return await submit_recorded(service, scope, "create", operation, **audit.describe_receiver(config))

    @post("/campaigns/check", NewCampaign, **described)
    @allow(ADMINS, campaign="body")
    async def check(config: CampaignConfig, name: str, scope: Scope) -> bytes:
        """Check whether this campaign could be created. The answers and errors are those of `POST /campaigns`, but
        nothing is created."""
        return await run_in_threadpool(_check_creation, service, await _prepare_creation(service, config))

    @post("/campaigns/{name}/import", ImportRequest, response_model=Imported, responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def import_rows(body: ImportRequest, name: str, scope: Scope) -> bytes:
        """Warm-start a new campaign from historical decisions, in their order: all rows or none.

        Each request takes up to 10,000 rows. Send as many requests as you need before the first decision, or use
        `undercurrent import`, which takes files of any size. A repeated `import_id` changes nothing."""
        checked = check_name(name)
        operation = await run_in_threadpool(prepare_import, service.campaigns, checked, body.import_id, body.rows)
        if operation.unit.has_changed:
            await submit_recorded(service, scope, "import", operation, rows=operation.summary["rows"])
        return Imported.model_validate({"campaign": name, **operation.summary}).model_dump_json().encode()


def _add_removal(app: Application, service: Service) -> None:
    @app.api.post("/campaigns/{name}/archive", tags=["campaigns"], responses=describe_errors(404))
    @allow(ADMINS, campaign="path")
    async def archive(request: Request, name: str) -> CampaignState:
        """Close a campaign: it stops deciding and leaves the list. It still takes rewards for its decisions."""
        return await apply_change(service, request, "archive", operations.Archive(check_name(name), True))

    @app.api.post("/campaigns/{name}/unarchive", tags=["campaigns"], responses=describe_errors(404))
    @allow(ADMINS, campaign="path")
    async def unarchive(request: Request, name: str) -> CampaignState:
        """Reopen an archived campaign."""
        return await apply_change(service, request, "unarchive", operations.Archive(check_name(name), False))

    @app.api.delete("/campaigns/{name}", tags=["campaigns"], status_code=204, responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def delete(request: Request, name: str, confirm: Confirmation) -> Response:
        """Delete an archived campaign with all its decisions, rewards and models. This cannot be undone."""
        if confirm != name:
            message = "is not the campaign's name"
            raise InvalidError([FieldProblem(field="confirm", message=message, allowed=name)])
        await submit_recorded(service, request.scope, "delete", operations.Delete(check_name(name)))
        return Response(status_code=204)


def check_name(name: str) -> str:
    """Return the name of a campaign, unless it has a zero byte, which a query of PostgreSQL cannot contain."""
    if "\x00" in name:
        raise NotFoundError(f"There is no campaign {name!r}")
    return name


def load_campaign(service: Service, name: str) -> CampaignState:
    with service.store.reading() as tx:
        row = recovery.get_campaign(tx, name)
        return CampaignState.model_validate(_summarize(row, recovery.load_config(tx, row.campaign_id)))


async def submit_recorded(
    service: Service, scope: Scope, what: str, operation: operations.Operation[T], **details: Any
) -> T:
    """Carry out an operation, and record it in the audit log as `what`; only reading leaves no record there."""
    record = make_record(scope, what, operation.campaign, **details)
    is_read = isinstance(operation, operations.ReadState)
    answer = await service.submit(operation if is_read else replace(operation, record=record))
    audit.log_record(record)
    return answer


async def apply_change(
    service: Service, request: Request, what: str, operation: operations.Operation[Any], **details: Any
) -> CampaignState:
    """Carry out a change, record it in the audit log as `what`, and return the campaign's new state."""
    await submit_recorded(service, request.scope, what, operation, **details)
    return await run_in_threadpool(load_campaign, service, operation.campaign)


async def build_policy(
    config: CampaignConfig, change: Callable[[CampaignConfig], CampaignConfig] = lambda config: config
) -> StagedPolicy:
    """Change a configuration and build its policy, in a thread, since a wide feature map takes a while."""
    try:
        return await run_in_threadpool(lambda: StagedPolicy(_refuse_leaving_out(change(config))))
    except FixedError as error:
        raise ConflictError.from_fixed(config.name, error) from None
    except PolicyError as error:
        raise InvalidError.from_policy(error) from None


def _refuse_leaving_out(config: CampaignConfig) -> CampaignConfig:
    if config.rewards.while_waiting == "leave_out":
        message = "'leave_out' is only for the logs of earlier versions"
        raise ConfigError.of("rewards.while_waiting", message, ["provisional", "hold"])
    return config


async def _prepare_creation(service: Service, config: CampaignConfig) -> operations.Create:
    """Run every check that needs no other campaign."""
    body = config.model_dump_json(exclude_unset=True).encode()
    policy = await build_policy(config)
    service.sender.check(config)
    return operations.Create(config.name, policy, hashlib.blake2b(body, digest_size=16).digest())


def _check_creation(service: Service, operation: operations.Create) -> bytes:
    with service.store.reading() as tx:
        existing = campaigns.find_campaign(tx, operation.campaign)
        if existing is None:
            return operation.policy.config.model_dump_json().encode()
        answer = handlers.answer_repeated_creation(tx, existing, operation)
    if isinstance(answer, ConflictError):
        raise answer
    return answer


def _summarize(row: LiveRow, config: CampaignConfig) -> dict[str, Any]:
    belief = msgspec.json.decode(row.belief)
    return row._asdict() | {
        "paused": config.paused,
        "stage": -(-row.round // config.stage_length),
        "regimes": len(belief),
        "belief": belief,
        "rewards_received": row.arrived,
        "rewards_waiting": row.arrived - row.folded,
        "updated_at": row.clock,
        "config": config,
    }
