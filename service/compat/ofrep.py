"""The routes of the OpenFeature Remote Evaluation Protocol: a flag is a campaign, and evaluating it decides.

So programs that use an OpenFeature provider need no client of ours. docs/integrate.md tells users how. Our errors are
answered in the protocol's shape, whoever raises them.
"""

import asyncio
import hashlib
import time
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.access.keys import get_key_campaigns
from service.access.roles import DECIDERS, READERS, allow
from service.base.errors import ApiError, ErrorDetail, FieldProblem, InvalidError, NotFoundError
from service.compat.matching import Directory, Shape
from service.engine.encoding import hash_request
from service.engine.handlers import ChangedCampaignError
from service.engine.operations import Decide
from service.engine.requests import CONTEXT_EXAMPLE, DecideItem
from service.engine.worker import Service
from service.web.application import Application
from service.web.translation import Translator

PREFIX = "/ofrep/v1/"
EVALUATE = PREFIX + "evaluate/flags"
TRIES = 5  # a campaign that changes between being read and deciding is read again
MOST_ATTRIBUTES = 1_000
SUBJECT, DECISION = "targetingKey", "decision_id"  # attributes of the context with a meaning of their own
REASONS = {"optimistic": "TARGETING_MATCH"}  # the reason of a mode; all others draw the action at random
SHAPE = "#/components/schemas/EvaluationFailure"

Code = Literal["PARSE_ERROR", "TARGETING_KEY_MISSING", "INVALID_CONTEXT", "FLAG_NOT_FOUND", "GENERAL"]
Attributes = Annotated[dict[str, Any], Field(max_length=MOST_ATTRIBUTES)]


class EvaluationRequest(BaseModel):
    """The context of an evaluation: `targetingKey`, `decision_id`, and a value for each of the campaign's variables."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"context": {SUBJECT: "customer-77", DECISION: "order-1001", **CONTEXT_EXAMPLE}}]
        }
    )

    context: Attributes = Field(default={}, description="attributes that are no variables are ignored")


class EvaluationMetadata(BaseModel):
    """What is needed to report the reward, and to evaluate the log."""

    decision_id: str
    propensity: float
    model_version: int


class Evaluation(BaseModel):
    """The action to take."""

    key: str = Field(description="the campaign")
    value: str = Field(description="the action")
    variant: str = Field(description="the action")
    reason: Literal["TARGETING_MATCH", "SPLIT"] = Field(description="SPLIT: the action was drawn at random")
    metadata: EvaluationMetadata


class EvaluationFailure(BaseModel):
    """Why there is no value."""

    key: str
    errorCode: Code  # noqa: N815
    errorDetails: str  # noqa: N815


class BulkEvaluation(BaseModel):
    """The actions of the campaigns that take part in bulk evaluations."""

    flags: list[Evaluation | EvaluationFailure]


class Configuration(BaseModel):
    """What this service can do, in the protocol's words."""

    name: str
    capabilities: dict[str, dict[str, Any]]


def add_routes(app: Application, service: Service) -> None:
    evaluator = Evaluator(service)
    tags: Any = ["openfeature"]
    errors: Any = {400: {}, 503: {}}
    app.translators.append(Translator(PREFIX, _translate_error))
    app.describers.append(_describe_errors)

    @app.api.post(EVALUATE + "/{name}", tags=tags, response_model=Evaluation, responses=errors | {404: {}})
    @allow(DECIDERS, campaign="path")
    async def evaluate(name: str, body: EvaluationRequest) -> Response:
        """Decide which action to take: OpenFeature's evaluation of one flag.

        The flag is a campaign, and its value is the action. `targetingKey` is the subject, `decision_id` your id of the
        decision, so that a repeated evaluation gets the same answer. The other attributes are values of the campaign's
        variables; those that are none are ignored."""
        return _answer(await evaluator.evaluate(name, body.context))

    @app.api.post(
        EVALUATE,
        tags=tags,
        response_model=BulkEvaluation,
        responses=errors | {304: {"description": "The answer is the one that If-None-Match names"}},
    )
    @allow(DECIDERS, campaign="among")
    async def evaluate_all(
        request: Request,
        body: EvaluationRequest,
        known: Annotated[str | None, Header(alias="if-none-match", description="an earlier answer's ETag")] = None,
    ) -> Response:
        """Decide for all campaigns with `bulk_evaluation`: OpenFeature's prefetch of all flags.

        Other campaigns are left out, and nothing is recorded for them: nobody may ever look at these values, so they
        would be decisions that nobody carried out. The context needs a `decision_id`, so that repeated prefetches get
        the same answers."""
        answer = _answer({"flags": await evaluator.evaluate_all(body.context, get_key_campaigns(request.scope))})
        tag = f'"{hashlib.blake2b(answer.body, digest_size=16).hexdigest()}"'
        names = {name.strip().removeprefix("W/") for name in (known or "").split(",")}
        if tag in names or "*" in names:
            answer = Response(status_code=304)
        answer.headers["etag"] = tag
        return answer

    @app.api.get(PREFIX + "configuration", tags=tags)
    @allow(READERS, campaign="list")
    def configuration() -> Configuration:
        """What an OpenFeature provider may ask at its start: values are text, and must not be cached."""
        capabilities: dict[str, dict[str, Any]] = {
            "flagEvaluation": {"supportedTypes": ["string"]},
            "caching": {"enabled": False},
            "cacheInvalidation": {"polling": {"enabled": False}},
        }
        return Configuration(name="undercurrent", capabilities=capabilities)


class _Answer(msgspec.Struct):
    """The fields of a decision's answer that an evaluation needs."""

    decision_id: str
    model_version: int
    mode: str
    action: str
    propensity: float


class Evaluator:
    """Decides evaluations."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._directory = Directory(service.store)

    async def evaluate(self, key: str, context: Mapping[str, Any]) -> dict[str, Any]:
        """Decide by the campaign of this name."""
        for _ in range(TRIES):
            shape = await self._find_shape(key)
            item = _make_item(shape, context)
            expected = (shape.row.campaign_id, shape.revision.revision)
            operation = Decide(key, [(item, hash_request(item))], False, expected)
            try:
                answer = msgspec.json.decode(await self._service.submit(operation), type=_Answer)
            except (ChangedCampaignError, NotFoundError) as error:
                refusal: ApiError = error
                await self._directory.keep_up(time.monotonic())
                if self._directory.get_named(key) is shape:  # the campaign has not changed
                    raise
                continue
            return _make_evaluation(key, answer)
        raise refusal

    async def evaluate_all(self, context: Mapping[str, Any], among: Collection[str] | None) -> list[dict[str, Any]]:
        """Decide for the campaigns that take part, of those that the key covers."""
        await self._directory.keep_up(self._service.changed_at)
        keys = self._directory.list_bulk(among)
        return list(await asyncio.gather(*(self._try_to_evaluate(key, context) for key in keys)))

    async def _try_to_evaluate(self, key: str, context: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if DECISION not in context:
                raise InvalidError([_make_problem(DECISION, "needed in a bulk evaluation, which may be repeated")])
            return await self.evaluate(key, context)
        except ApiError as error:
            if error.status >= 500:
                raise
            return _make_failure(error.status, error.public, error.fields, key)[1]

    async def _find_shape(self, key: str) -> Shape:
        for since in (self._service.changed_at, time.monotonic()):  # another worker may just have created it
            await self._directory.keep_up(since)
            shape = self._directory.get_named(key)
            if shape is not None:
                return shape
        raise NotFoundError(f"There is no campaign {key!r}")


def _make_item(shape: Shape, context: Mapping[str, Any]) -> DecideItem:
    values = shape.select_context(context)
    try:
        return DecideItem(context=values, decision_id=context.get(DECISION), subject=context.get(SUBJECT))
    except ValidationError as error:
        named = {"subject": SUBJECT, "decision_id": DECISION}
        problems = [
            {**problem, "loc": ("body", "context", named.get(str(problem["loc"][0]), *problem["loc"]))}
            for problem in error.errors(include_url=False)
        ]
        raise InvalidError.from_pydantic(problems) from None


def _make_evaluation(key: str, answer: _Answer) -> dict[str, Any]:
    metadata = {
        "decision_id": answer.decision_id,
        "propensity": answer.propensity,
        "model_version": answer.model_version,
    }
    reason = REASONS.get(answer.mode, "SPLIT")
    return {"key": key, "value": answer.action, "variant": answer.action, "reason": reason, "metadata": metadata}


def _make_problem(attribute: str, message: str) -> FieldProblem:
    return FieldProblem(field=f"context.{attribute}", message=message)


def _answer(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


# --- errors -----------------------------------------------------------------------------------------------------------


def _translate_error(status: int, error: ErrorDetail, path: str) -> tuple[int, bytes]:
    key = path.removeprefix(EVALUATE).removeprefix("/")
    status, failure = _make_failure(status, error.message, error.fields, key)
    return status, msgspec.json.encode(failure)


def _make_failure(status: int, message: str, fields: Collection[FieldProblem], key: str) -> tuple[int, dict[str, Any]]:
    """Make the status and the body of the protocol for one of our errors. It knows 400 for all mistakes of callers."""
    code: Code = "GENERAL"
    if status == 404:
        code = "FLAG_NOT_FOUND"
    elif status == 422:
        about_context = any(problem.field.startswith("context") for problem in fields)
        code = "INVALID_CONTEXT" if about_context else "PARSE_ERROR"
    status = 400 if status in (409, 410, 422) else status
    return status, {"key": key, "errorCode": code, "errorDetails": message}


def _describe_errors(schema: dict[str, Any]) -> None:
    """Give the errors of these routes their own shape in the OpenAPI document."""
    components = schema["components"]["schemas"]
    components.setdefault(EvaluationFailure.__name__, EvaluationFailure.model_json_schema())
    for path, operations in schema["paths"].items():
        if path.startswith(PREFIX):
            for operation in operations.values():
                for status, answer in operation["responses"].items():
                    if status >= "400":
                        ours = schema["components"]["responses"].get(
                            status, {"description": "A mistake in the request"}
                        )
                        answer.clear()
                        answer.update({**ours, "content": {"application/json": {"schema": {"$ref": SHAPE}}}})
