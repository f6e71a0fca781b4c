"""The service's frame: health, offline documentation, the one error shape, and the real process."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Literal

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel

from service import __version__
from service.app import create_app
from service.cli import main
from service.settings import Settings, SettingsError

UNDERCURRENT = [sys.executable, "-m", "service.cli"]


@pytest.fixture
def app() -> FastAPI:
    return create_app(Settings())


def call(app: FastAPI, method: str, path: str, **request: object) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await client.request(method, path, **request)

    return asyncio.run(send())


def error_of(response: httpx.Response) -> dict:
    """The error, after checking that its shape is the contract's (R24)."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "message", "fields"}
    assert all(field.keys() == {"field", "message", "allowed"} for field in body["error"]["fields"])
    return body["error"]


def test_healthz_names_the_version(app):
    response = call(app, "GET", "/healthz")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "version": __version__}


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_documentation_needs_no_internet(app, page):
    response = call(app, "GET", page)
    assert response.status_code == 200
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", response.text)
    assert "http" not in response.headers["content-security-policy"]
    addresses = re.findall(r"(?:src|href)=\"([^\"]+)\"", response.text)
    assert any(address.endswith(".js") for address in addresses)
    for address in [*addresses, "/openapi.json"]:
        assert address in response.text
        asset = call(app, "GET", address)
        assert asset.status_code == 200
        assert len(asset.content) > 100


def test_documentation_works_below_a_proxy_path(app):
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, root_path="/bandits")
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await client.get("/bandits/docs")

    page = asyncio.run(send()).text
    assert "/bandits/openapi.json" in page
    assert "/bandits/docs-assets/swagger-ui-bundle.js" in page


def test_openapi_declares_the_error_shape_and_no_other(app):
    class Body(BaseModel):
        size: int

    @app.post("/things")
    async def add(body: Body) -> Body:
        return body

    schema = call(app, "GET", "/openapi.json").json()
    assert "HTTPValidationError" not in schema["components"]["schemas"]
    for operations in schema["paths"].values():
        for operation in operations.values():
            for status in ("4XX", "5XX"):
                content = operation["responses"][status]["content"]["application/json"]
                assert content["schema"]["$ref"].endswith("/ErrorBody")


@pytest.mark.parametrize("path", ["/nothing", "/docs-assets/nothing.js"])
def test_unknown_address(app, path):
    response = call(app, "GET", path)
    assert response.status_code == 404
    assert error_of(response) == {"code": "not_found", "message": f"There is nothing at {path}", "fields": []}


def test_wrong_method_says_which_are_allowed(app):
    response = call(app, "DELETE", "/healthz")
    assert response.status_code == 405
    assert response.headers["allow"] == "GET"
    assert error_of(response)["code"] == "method_not_allowed"


def test_invalid_request_names_every_field_and_what_is_allowed(app):
    class Body(BaseModel):
        kind: Literal["uniform", "baseline"]
        shares: list[float]

    @app.post("/things")
    async def add(body: Body, limit: Annotated[int, Query(ge=1, le=9)] = 1) -> Body:
        return body

    response = call(app, "POST", "/things?limit=10", json={"kind": "other", "shares": [0.5, "x"]})
    assert response.status_code == 422
    error = error_of(response)
    assert error["code"] == "invalid"
    allowed = {field["field"]: field["allowed"] for field in error["fields"]}
    assert allowed == {"limit": "≤ 9", "kind": "'uniform' or 'baseline'", "shares.1": None}
    assert all(field in error["message"] for field in allowed)

    missing = error_of(call(app, "POST", "/things", json={"kind": "uniform"}))
    assert [field["field"] for field in missing["fields"]] == ["shares"]
    no_json = error_of(call(app, "POST", "/things", content=b'{"kind": ', headers={"content-type": "application/json"}))
    assert [field["field"] for field in no_json["fields"]] == ["body"]


def test_raised_error_keeps_status_message_and_headers(app):
    @app.get("/busy")
    async def busy() -> None:
        raise HTTPException(503, "The database is busy", headers={"retry-after": "1"})

    response = call(app, "GET", "/busy")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert error_of(response) == {"code": "unavailable", "message": "The database is busy", "fields": []}


def test_unexpected_failure_leaks_nothing(app):
    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("secret")

    response = call(app, "GET", "/broken")
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"
    assert "secret" not in response.text
    assert "RuntimeError" not in response.text


def test_settings_flags_win_over_variables():
    environ = {"UNDERCURRENT_HOST": "0.0.0.0", "UNDERCURRENT_PORT": "9000"}
    assert Settings.load({}, {}) == Settings(host="127.0.0.1", port=8000)
    assert Settings.load(environ, {"host": None, "port": "81"}) == Settings(host="0.0.0.0", port=81)


@pytest.mark.parametrize(
    ("environ", "flags", "named"),
    [
        ({"UNDERCURRENT_PORT": "many"}, {}, "UNDERCURRENT_PORT is 'many'"),
        ({"UNDERCURRENT_PORT": "80"}, {"port": "70000"}, "--port is '70000'.* 65535"),
        ({"UNDERCURRENT_HOST": ""}, {}, "UNDERCURRENT_HOST is ''"),
    ],
)
def test_settings_refuse_a_bad_value_by_name(environ, flags, named):
    with pytest.raises(SettingsError, match=named):
        Settings.load(environ, flags)


def test_command_line_refuses_a_bad_port(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["serve", "--port", "many"])
    assert stop.value.code == 2
    assert "--port is 'many'" in capsys.readouterr().err


def test_command_line_names_the_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"undercurrent {__version__}\n"


def test_port_in_use_is_said_plainly(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use. " in capsys.readouterr().err


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UNDERCURRENT_")}
    command = [*UNDERCURRENT, "serve", "--port", "0"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_served_over_a_real_socket_until_told_to_stop(process, stop):
    url = re.fullmatch(rf"Undercurrent {__version__} is at (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())[1]
    assert f"{url}/docs" in process.stdout.readline()
    assert httpx.get(f"{url}/healthz").json() == {"status": "ok", "version": __version__}
    assert error_of(httpx.get(f"{url}/nothing"))["code"] == "not_found"
    process.send_signal(stop)
    _, complaints = process.communicate(timeout=10)
    assert (process.returncode, complaints) == (0, "")
