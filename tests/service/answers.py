"""What an answer must look like, whichever test asked."""

import httpx
from pydantic import BaseModel


def good(response: httpx.Response, status: int = 200) -> dict:
    """The body of an answer that must have succeeded."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def shaped(model: type[BaseModel], response: httpx.Response, status: int = 200) -> dict:
    """The body, after checking that it has exactly the documented fields."""
    body = good(response, status)
    assert model.model_validate(body).model_dump(mode="json") == body
    return body


def error_of(response: httpx.Response, status: int | None = None) -> dict:
    """The error, after checking that its shape is the contract's (R24), or that of OpenFeature's protocol."""
    assert status in (None, response.status_code), response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    if "errorCode" in body:
        assert body.keys() == {"key", "errorCode", "errorDetails"}
        return {"code": body["errorCode"], "message": body["errorDetails"], "fields": []}
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"code", "message", "fields"}
    assert error["message"]
    assert all(field.keys() == {"field", "message", "allowed"} for field in error["fields"])
    return error


def allowed_by_field(response: httpx.Response) -> dict:
    """What a 422 says is allowed, by the fields it names; each of them is also in the message."""
    error = error_of(response, 422)
    assert error["code"] == "invalid"
    assert all(field["field"] in error["message"] for field in error["fields"])
    return {field["field"]: field["allowed"] for field in error["fields"]}
