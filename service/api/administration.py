"""The routes that change a campaign: its configuration, its actions, its model, and whether it is there at all."""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import Body, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from policy import CampaignConfig, FixedError, PolicyError, StagedPolicy
from policy.changes import add_config_action, clone_config, patch_config, retire_config_action
from service.access.auth import asked, require
from service.access.roles import ADMINS, READERS, allow
from service.api import schemas
from service.api.routes import Limit, campaign_state, creation, possible
from service.api.schemas import CLONE_EXAMPLE, PATCH_EXAMPLE, ActionRequest, RollbackRequest
from service.base.errors import ConflictError, FieldProblem, InvalidError
from service.base.times import format_timestamp
from service.engine import requests
from service.engine.campaigns import answer_repeated_creation
from service.engine.operations import Archive, Change, Create, Current, Delete, RollBack
from service.engine.recovery import get_campaign
from service.engine.requests import CAMPAIGN_EXAMPLE
from service.engine.worker import Service
from service.storage.audit import describe_receiver, log_record
from service.storage.campaigns import find_campaign, read_revision_page
from service.storage.rows import RevisionRow
from service.web.application import Application
from service.web.openapi import describe_errors

__all__ = ["add_administration"]

Patch = Annotated[dict[str, Any], Body(examples=[PATCH_EXAMPLE])]
ClonePatch = Annotated[dict[str, Any], Body(examples=[CLONE_EXAMPLE])]
RevisionCursor = Annotated[int | None, Query(ge=1, le=2**31 - 1)]  # PostgreSQL compares it with 32 bits
Confirmation = Annotated[str, Query(description="the campaign's name, once more")]


def add_administration(app: Application, service: Service) -> None:
    """Every route that changes a campaign, and the list of changes."""

    async def done(
        request: Request, what: str, operation: Change | Archive | RollBack | Current, **details: Any
    ) -> schemas.CampaignState:
        record = asked(request.scope, what, operation.campaign, **details)
        await service.submit(operation if isinstance(operation, Current) else operation._replace(record=record))
        log_record(record)
        return await run_in_threadpool(campaign_state, service, operation.campaign)

    async def config_of(name: str) -> CampaignConfig:
        return (await run_in_threadpool(campaign_state, service, name)).config

    @app.post_lean(
        "/campaigns/check", response_model=CampaignConfig, tags=["campaigns"], responses=describe_errors(409, 422)
    )
    @allow(ADMINS, campaign="body")
    async def check(config: Annotated[CampaignConfig, Body(examples=[CAMPAIGN_EXAMPLE])]) -> bytes:
        """Could this campaign be created? The same answers as from `POST /campaigns`, errors included, but nothing is
        created."""
        wanted = await creation(service, config)
        return await run_in_threadpool(_would_be, service, wanted)

    @app.patch("/campaigns/{name}", tags=["campaigns"], responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def patch(request: Request, name: str, patch: Patch) -> schemas.CampaignState:
        """Change a living campaign from its next round on: `rewards.wait_seconds` and `rewards.default`, `control`,
        `propensity_floor`, `bonus.scale` (how much to explore), `regime_labels`, `alerts`, `retention_days`, `paused`.
        Only what is named changes; null means the default. Anything else would reset the model: 409, clone the campaign
        instead."""
        change = partial(patch_config, patch=patch)
        before = await config_of(name)
        after = await _made(change, before)  # not in the lane: a body may hold a hundred thousand mistakes
        service.sender.check(after.config, before)
        return await done(request, "change", Change(name, change), fields=sorted(patch))

    @app.post("/campaigns/{name}/actions", tags=["campaigns"], responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def add_action(name: str, body: ActionRequest, request: Request) -> schemas.CampaignState:
        """Add an action, or bring a retired one back. What was learned stays; the new one is explored."""
        change = partial(add_config_action, action=body.action)
        await _made(change, await config_of(name))  # the wider feature map, which may take a while
        return await done(request, "add action", Change(possible(name), change), action=body.action)

    @app.post("/campaigns/{name}/actions/retire", tags=["campaigns"], responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def retire_action(name: str, body: ActionRequest, request: Request) -> schemas.CampaignState:
        """Choose an action no more. Its rewards still count, and it can be added back."""
        change = partial(retire_config_action, action=body.action)
        return await done(request, "retire action", Change(possible(name), change), action=body.action)

    @app.post("/campaigns/{name}/rollback", tags=["models"], responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def rollback(name: str, body: RollbackRequest, request: Request) -> schemas.CampaignState:
        """Put an earlier model in force again, as a new version. Rewards that were folded after it count no more."""
        past = await run_in_threadpool(service.campaigns.prepare_rollback, possible(name), body.model_version)
        return await done(request, "rollback", past, model_version=body.model_version)

    @app.post("/campaigns/{name}/import", tags=["campaigns"], responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def import_rows(name: str, body: requests.ImportRequest, request: Request) -> schemas.Imported:
        """Warm-start a new campaign from historical decisions, in their order; all rows or none.

        Up to 10,000 rows at a time, and several times, until the first decision; `undercurrent import` takes files of
        any size. Sent again under the same `import_id`, nothing happens twice."""
        operation = await run_in_threadpool(service.campaigns.prepare_import, possible(name), body.import_id, body.rows)
        if operation.made.changed:
            record = asked(request.scope, "import", name, rows=operation.told["rows"])
            await service.submit(operation._replace(record=record))
            log_record(record)
        return schemas.Imported.model_validate({"campaign": name, **operation.told})

    @app.post("/campaigns/{name}/clone", tags=["campaigns"], status_code=201, responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def clone(request: Request, name: str, patch: ClonePatch) -> CampaignConfig:
        """Create a new campaign like this one, without its history: give its `name` and any change of configuration.
        It draws its own seed, and does without the retired actions. What is as it would be by default follows the
        change, as `signals` and `features` follow another list of `variables`; null puts a field back to its default.
        """
        policy = await _made(partial(clone_config, patch=patch), await config_of(name))
        config = policy.config
        require(request.scope, config.name)
        service.sender.check(config)
        given = msgspec.json.encode([name, patch], order="sorted")
        digest = hashlib.blake2b(given, digest_size=16).digest()
        record = asked(
            request.scope, "clone", config.name, source=name, given=sorted(patch), **describe_receiver(config)
        )
        stored = await service.submit(Create(config.name, policy, digest, record))
        log_record(record)
        return CampaignConfig.model_validate_json(stored)

    @app.post("/campaigns/{name}/archive", tags=["campaigns"], responses=describe_errors(404))
    @allow(ADMINS, campaign="path")
    async def archive(request: Request, name: str) -> schemas.CampaignState:
        """Close a campaign: it decides no more and leaves the list. Rewards of its decisions are still taken."""
        return await done(request, "archive", Archive(possible(name), True))

    @app.post("/campaigns/{name}/unarchive", tags=["campaigns"], responses=describe_errors(404))
    @allow(ADMINS, campaign="path")
    async def unarchive(request: Request, name: str) -> schemas.CampaignState:
        """Open an archived campaign again."""
        return await done(request, "unarchive", Archive(possible(name), False))

    @app.delete("/campaigns/{name}", tags=["campaigns"], status_code=204, responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def delete(request: Request, name: str, confirm: Confirmation) -> Response:
        """Delete an archived campaign with everything it decided and learned. There is no way back."""
        if confirm != name:
            message = "is not the campaign's name"
            raise InvalidError([FieldProblem(field="confirm", message=message, allowed=name)])
        record = asked(request.scope, "delete", name)
        await service.submit(Delete(possible(name), record))
        log_record(record)
        return Response(status_code=204)

    @app.get("/campaigns/{name}/revisions", tags=["campaigns"], responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def revisions(name: str, limit: Limit = 50, cursor: RevisionCursor = None) -> schemas.RevisionPage:
        """What was changed so far, newest first, a page at a time."""
        with service.store.reading() as tx:
            row = get_campaign(tx, name)
            rows = read_revision_page(tx, row.campaign_id, cursor, limit + 1)
        older = [*rows[1:], None]
        return schemas.RevisionPage(
            revisions=[_revision(row, before) for row, before in zip(rows[:limit], older, strict=False)],
            next_cursor=rows[limit - 1].revision if len(rows) > limit else None,
        )


async def _made(change: Callable[[CampaignConfig], CampaignConfig], config: CampaignConfig) -> StagedPolicy:
    """A changed configuration, and everything that follows from it."""
    try:
        policy = await run_in_threadpool(lambda: StagedPolicy(change(config)))
    except FixedError as error:
        raise ConflictError.from_fixed(config.name, error) from None
    except PolicyError as error:
        raise InvalidError.from_policy(error) from None
    return policy


def _would_be(service: Service, wanted: Create) -> bytes:
    with service.store.reading() as tx:
        taken = find_campaign(tx, wanted.campaign)
        answer = (
            answer_repeated_creation(tx, taken, wanted) if taken else wanted.policy.config.model_dump_json().encode()
        )
    if isinstance(answer, ConflictError):
        raise answer
    return answer


def _revision(row: RevisionRow, before: RevisionRow | None) -> schemas.Revision:
    config = msgspec.json.decode(row.config)
    earlier = msgspec.json.decode(before.config) if before else {}
    return schemas.Revision(
        revision=row.revision,
        round=row.round,
        changed={name: value for name, value in config.items() if name not in earlier or earlier[name] != value},
        restored_model_version=row.restored,
        erased_decisions=row.erased,
        created_at=format_timestamp(row.created_at),
    )
