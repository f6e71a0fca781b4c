"""Errors as HTTP: the one error shape (R24), for our own errors and for those the framework raises."""

from collections.abc import Mapping, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from service.base.errors import CODES, ApiError, ErrorBody, ErrorDetail, FieldProblem, InvalidError


def error_response(
    status: int,
    message: str,
    fields: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An error as the API sends it."""
    detail = ErrorDetail(code=CODES.get(status, f"http_{status}"), message=message, fields=list(fields))
    return JSONResponse(ErrorBody(error=detail).model_dump(mode="json"), status, headers)


def response_of(error: ApiError) -> JSONResponse:
    """One of our errors as the API sends it."""
    return error_response(error.status, error.public, error.fields, error.headers)


def failure_response() -> JSONResponse:
    """What nobody expected: the log has the traceback, the client learns nothing of our insides."""
    return error_response(500, "The service failed; its log says why")


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` leave in the one shape."""

    @app.exception_handler(HTTPException)
    async def raised(request: Request, error: HTTPException) -> JSONResponse:
        # The framework raises these with a bare phrase; say what was asked for.
        if error.detail == "Not Found":
            message = f"There is nothing at {request.url.path}"
        elif error.detail == "Method Not Allowed":
            message = f"{request.url.path} does not answer {request.method}"
            return error_response(405, message, headers={"allow": _allowed(request)})
        else:
            message = str(error.detail)
        return error_response(error.status_code, message, headers=error.headers)

    @app.exception_handler(ApiError)
    async def ours(request: Request, error: ApiError) -> JSONResponse:
        return response_of(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return await ours(request, InvalidError.of_pydantic(error.errors()))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return failure_response()


def _allowed(request: Request) -> str:
    """The methods that a path answers; the router would name those of its first route only."""
    matching = (
        route
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    )
    return ", ".join(sorted({method for route in matching for method in route.methods or ()}))
