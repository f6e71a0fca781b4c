"""Errors as HTTP responses, all in one shape (R24): our own errors and those that the framework raises."""

from collections.abc import Mapping, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from service.base.errors import CODES, ApiError, ErrorBody, ErrorDetail, FieldProblem, InvalidError


def make_error_response(
    status: int,
    message: str,
    fields: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Make the response for an error."""
    detail = ErrorDetail(code=CODES.get(status, f"http_{status}"), message=message, fields=list(fields))
    return JSONResponse(ErrorBody(error=detail).model_dump(mode="json"), status, headers)


def make_response(error: ApiError) -> JSONResponse:
    """Make the response for one of our errors."""
    return make_error_response(error.status, error.public, error.fields, error.headers)


def make_failure_response() -> JSONResponse:
    """Make the response for an unexpected exception. The log has the traceback; the client learns no internals."""
    return make_error_response(500, "The service failed; see its log")


def make_exception_response(error: Exception) -> tuple[JSONResponse, Exception | None]:
    """Make the response for an exception; return the exception too if it was unexpected."""
    try:
        if isinstance(error, ApiError):
            return make_response(error), None
    except Exception as unexpected:  # its message cannot be encoded
        error = unexpected
    return make_failure_response(), error


def install_error_handlers(app: FastAPI) -> None:
    """Make `app` answer every error in the one shape."""

    @app.exception_handler(HTTPException)
    async def answer_framework_error(request: Request, error: HTTPException) -> JSONResponse:
        # The framework raises these with a bare phrase; name the path.
        if error.detail == "Not Found":
            message = f"Nothing found at {request.url.path}"
        elif error.detail == "Method Not Allowed":
            message = f"{request.url.path} does not support {request.method}"
            return make_error_response(405, message, headers={"allow": _list_methods(request)})
        else:
            message = str(error.detail)
        return make_error_response(error.status_code, message, headers=error.headers)

    @app.exception_handler(ApiError)
    async def answer_own_error(request: Request, error: ApiError) -> JSONResponse:
        return make_response(error)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        return await answer_own_error(request, InvalidError.from_pydantic(error.errors()))

    @app.exception_handler(Exception)
    async def answer_failure(request: Request, error: Exception) -> JSONResponse:
        return make_failure_response()


def _list_methods(request: Request) -> str:
    """List the methods that a path supports; the router would only list those of its first route."""
    matching = (
        route
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    )
    return ", ".join(sorted({method for route in matching for method in route.methods or ()}))
