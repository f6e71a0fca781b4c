"""The routes that change a live campaign's configuration or actions, clone it, or list its changes."""

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import Body, Query, Request
from pydantic import BaseModel, ConfigDict, Field, Strict
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from policy import CampaignConfig, changes
from policy.config import PLAIN_TEXT
from service.access.keys import require_campaign
from service.access.roles import ADMINS, READERS, allow
from service.api.campaigns import CampaignState, apply_change, build_policy, check_name, load_campaign, submit_recorded
from service.api.fields import Limit, Timestamp
from service.engine import recovery, requests
from service.engine.operations import Change, Create
from service.engine.worker import Service
from service.storage import audit, campaigns, rows
from service.web.application import Application
from service.web.openapi import describe_errors

PATCH_EXAMPLE: dict[str, Any] = {
    "rewards": {"wait_seconds": 259_200},
    "control": {"share": 0.1},
    "bonus": {"scale": 0.8},
}
CLONE_EXAMPLE: dict[str, Any] = {"name": "spring-offers-2", "stage_length": 50}
NULL = {"type": "null"}
Patch = Annotated[dict[str, Any], Body(examples=[PATCH_EXAMPLE])]
ClonePatch = Annotated[dict[str, Any], Body(examples=[CLONE_EXAMPLE])]
PlainName = Annotated[str, Strict(), Field(min_length=1, max_length=100, pattern=PLAIN_TEXT)]
RevisionCursor = Annotated[int | None, Query(ge=1, le=2**31 - 1)]  # PostgreSQL compares it with 32 bits


class ActionRequest(requests.RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"action": "message"}]})

    action: PlainName


class LevelRequest(requests.RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"variable": "risk", "level": "unknown"}]})

    variable: PlainName
    level: PlainName


class Revision(BaseModel):
    """A change of a campaign."""

    revision: int
    round: int = Field(description="decisions made before it")
    changed: dict[str, Any] = Field(description="the fields that changed, with their new values")
    restored_model_version: int | None = Field(description="of a rollback: the model it went back to")
    erased_decisions: int | None = Field(description="of an erasure: how many decisions were erased")
    created_at: Timestamp


class RevisionPage(BaseModel):
    revisions: list[Revision] = Field(description="newest first")
    next_cursor: int | None


def add_routes(app: Application, service: Service) -> None:
    _add_clone(app, service)
    _add_actions(app, service)
    _add_levels(app, service)
    app.describers.append(_describe_patches)

    @app.api.patch("/campaigns/{name}", tags=["campaigns"], responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def patch(request: Request, name: str, patch: Patch) -> CampaignState:
        """Change a live campaign from its next round on: `rewards.wait_seconds` and `rewards.default`, `control`,
        `propensity_floor`, `bonus.scale` (how much to explore), `regime_labels`, `alerts`, `retention_days`, `paused`,
        `bulk_evaluation`, `extra_variables`, and of `variables` (the whole list) more levels, `missing`, `unseen` and
        `outside`. Only the fields you send change; null restores a default. Changing any other field would reset the
        model: the answer is 409, and you should clone the campaign instead."""
        change = partial(changes.patch_config, patch=patch)
        before = await _load_config(service, name)
        after = await build_policy(before, change)  # before the operation: a body may hold 100,000 mistakes
        service.sender.check(after.config, before)
        return await apply_change(service, request, "change", Change(name, change), fields=sorted(patch))

    @app.api.get("/campaigns/{name}/revisions", tags=["campaigns"], responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def revisions(name: str, limit: Limit = 50, cursor: RevisionCursor = None) -> RevisionPage:
        """The changes so far, newest first, a page at a time."""
        with service.store.reading() as tx:
            row = recovery.get_campaign(tx, name)
            rows = campaigns.read_revision_page(tx, row.campaign_id, cursor, limit + 1)
        older = [*rows[1:], None]
        return RevisionPage(
            revisions=[_describe_revision(row, before) for row, before in zip(rows[:limit], older, strict=False)],
            next_cursor=rows[limit - 1].revision if len(rows) > limit else None,
        )


def _add_actions(app: Application, service: Service) -> None:
    @app.api.post("/campaigns/{name}/actions", tags=["campaigns"], responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def add_action(name: str, body: ActionRequest, request: Request) -> CampaignState:
        """Add an action, or bring a retired one back. The campaign keeps what it has learned and explores the new
        action."""
        change = partial(changes.add_config_action, action=body.action)
        await build_policy(await _load_config(service, name), change)  # before the operation, for the time it takes
        return await apply_change(service, request, "add action", Change(check_name(name), change), action=body.action)

    @app.api.post("/campaigns/{name}/actions/retire", tags=["campaigns"], responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def retire_action(name: str, body: ActionRequest, request: Request) -> CampaignState:
        """Stop choosing an action. Its rewards still count, and it can be added again."""
        operation = Change(check_name(name), partial(changes.retire_config_action, action=body.action))
        return await apply_change(service, request, "retire action", operation, action=body.action)


def _add_levels(app: Application, service: Service) -> None:
    @app.api.post("/campaigns/{name}/levels", tags=["campaigns"], responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def add_level(name: str, body: LevelRequest, request: Request) -> CampaignState:
        """Add a level to a variable. The campaign keeps what it has learned, and explores for customers with the new
        level."""
        change = partial(changes.add_config_level, variable=body.variable, level=body.level)
        await build_policy(await _load_config(service, name), change)  # the wider feature map may take a while
        details = {"variable": body.variable, "level": body.level}
        return await apply_change(service, request, "add level", Change(check_name(name), change), **details)


def _add_clone(app: Application, service: Service) -> None:
    answers: Any = {"response_model": CampaignConfig, "responses": describe_errors(404, 409, 422)}

    @app.post_lean("/campaigns/{name}/clone", ClonePatch, 201, tags=["campaigns"], **answers)
    @allow(ADMINS, campaign="path")  # and for the new campaign, whose name is in the body
    async def clone(patch: dict[str, Any], name: str, scope: Scope) -> bytes:
        """Create a new campaign like this one, without its history: send its `name` and any changes of configuration.
        The clone draws its own seed and drops retired actions. Fields that had their default value follow the change,
        as `signals` and `features` follow a new list of `variables`. Null restores a default.
        """
        policy = await build_policy(await _load_config(service, name), partial(changes.clone_config, patch=patch))
        config = policy.config
        require_campaign(scope, config.name)
        service.sender.check(config)
        digest = hashlib.blake2b(msgspec.json.encode([name, patch], order="sorted"), digest_size=16).digest()
        operation = Create(config.name, policy, digest)
        details = {"source": name, "given": sorted(patch), **audit.describe_receiver(config)}
        return await submit_recorded(service, scope, "clone", operation, **details)


async def _load_config(service: Service, name: str) -> CampaignConfig:
    return (await run_in_threadpool(load_campaign, service, name)).config


def _describe_revision(row: rows.RevisionRow, before: rows.RevisionRow | None) -> Revision:
    config = msgspec.json.decode(row.config)
    earlier = msgspec.json.decode(before.config) if before else {}
    changed = {name: value for name, value in config.items() if name not in earlier or earlier[name] != value}
    named = {"changed": changed, "restored_model_version": row.restored, "erased_decisions": row.erased}
    return Revision.model_validate(row._asdict() | named)


# --- the schemas of patches -------------------------------------------------------------------------------------------


def _describe_patches(schema: dict[str, Any]) -> None:
    """Describe the bodies that hold a part of a configuration: any field to clone, a few to change a live campaign."""
    schemas = schema["components"]["schemas"]
    whole = _make_partial({"$ref": "#/components/schemas/CampaignConfig-Input"}, schemas)
    changeable: dict[str, Any] = {}
    for field in changes.CHANGEABLE:
        part, _, inner = field.partition(".")
        if inner:  # only some fields of this part
            one = whole["properties"][part]["anyOf"][0]["properties"][inner]
            changeable.setdefault(part, _make_nullable(_make_object({})))["anyOf"][0]["properties"][inner] = one
        else:
            changeable[part] = whole["properties"][part]
    for path, method, patch in (
        ("/campaigns/{name}/clone", "post", whole | {"required": ["name"]}),
        ("/campaigns/{name}", "patch", _make_object(changeable)),
    ):
        content = schema["paths"][path][method]["requestBody"]["content"]["application/json"]
        content["schema"] = patch | {key: content["schema"][key] for key in ("title", "examples")}


def _make_partial(part: dict[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Make every field of a schema optional, with null for its default. Lists must be given whole."""
    resolved = schemas[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    if "anyOf" in resolved:
        return {"anyOf": [_make_partial(one, schemas) for one in resolved["anyOf"]]}
    if "properties" not in resolved:
        return part
    required = resolved.get("required", ())
    parts = {name: _make_partial(one, schemas) for name, one in resolved["properties"].items()}
    return _make_object({name: part if name in required else _make_nullable(part) for name, part in parts.items()})


def _make_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _make_nullable(part: dict[str, Any]) -> dict[str, Any]:
    kinds = part.get("anyOf", [part])
    return {"anyOf": kinds if NULL in kinds else [*kinds, NULL]}
