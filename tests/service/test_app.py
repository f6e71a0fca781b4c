"""The application without campaigns: health, offline documentation, the error shape, settings, and the real process."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import httpx
import pytest
from fastapi import HTTPException, Query
from pydantic import BaseModel

from service import __version__
from service.access.roles import ANYONE, allow
from service.base.settings import Settings, SettingsError
from service.cli.application import create_app
from service.cli.commands import main
from service.web.application import Application
from tests.service.answers import allowed_by_field, error_of, good


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/app.db"


@pytest.fixture
def app(database: str) -> Application:
    """An application that was not started: these tests need no database."""
    return create_app(Settings(database_url=database))


def call(app: Application, method: str, path: str, *, root: str = "", **request: object) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, root_path=root)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **request)

    return asyncio.run(send())


def test_healthz_names_the_version(app):
    assert good(call(app, "GET", "/healthz")) == {"status": "ok", "version": __version__}


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_documentation_needs_no_internet(app, page):
    """Also below the path of a proxy."""
    for root in ("", "/bandits"):
        response = call(app, "GET", f"{root}{page}", root=root)
        assert response.status_code == 200
        assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", response.text)
        assert "http" not in response.headers["content-security-policy"]
        addresses = re.findall(r"(?:src|href)=\"([^\"]+)\"", response.text)
        assert any(address.endswith(".js") for address in addresses)
        for address in [*addresses, f"{root}/openapi.json"]:
            assert address in response.text
            asset = call(app, "GET", address, root=root)
            assert asset.status_code == 200
            assert len(asset.content) > 100


def test_unknown_address(app):
    for path in ("/nothing", "/docs-assets/nothing.js", "/decide/nothing", "/campaigns/a/nothing", "/campaigns/"):
        error = error_of(call(app, "GET", path), 404)
        assert error == {"code": "not_found", "message": f"Nothing found at {path}", "fields": []}


def test_wrong_method_says_which_are_allowed(app):
    """R24, R25: what changes something answers POST only."""
    for method, path, allowed in (
        ("DELETE", "/healthz", "GET"),
        ("POST", "/campaigns/spring", "DELETE, GET, PATCH"),
        *(("GET", path, "POST") for path in ("/decide", "/decide/batch", "/reward", "/reward/batch")),
        ("PUT", "/decide", "POST"),
    ):
        response = call(app, method, path)
        error = error_of(response, 405)
        assert response.headers["allow"] == allowed
        assert error["code"] == "method_not_allowed"
        assert error["message"] == f"{path} does not support {method}"


def test_invalid_request_names_every_field_and_what_is_allowed(app):
    class Body(BaseModel):
        kind: Literal["uniform", "baseline"]
        shares: list[float]

    @app.api.post("/things")
    @allow(ANYONE)
    async def add(body: Body, limit: Annotated[int, Query(ge=1, le=9)] = 1) -> Body:
        return body

    allowed = allowed_by_field(call(app, "POST", "/things?limit=10", json={"kind": "other", "shares": [0.5, "x"]}))
    assert allowed == {"limit": "≤ 9", "kind": "'uniform' or 'baseline'", "shares[1]": None}


def test_lean_route_below_a_proxy_path(database):
    """Valid and invalid requests find the same route."""
    settings = Settings(database_url=database)
    assert main(["migrate", "--database-url", database]) == 0
    app = create_app(settings)

    async def send() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, root_path="/bandits")
        base = "http://localhost/bandits"
        async with (
            app.api.router.lifespan_context(app.api),
            httpx.AsyncClient(transport=transport, base_url=base) as client,
        ):
            config = {"name": "a", "actions": ["x", "y"], "variables": [{"name": "v", "levels": ["0", "1"]}]}
            created = await client.post("/campaigns", json=config)
            decided = [await client.post("/decide", json={"campaign": "a", "context": {"v": v}}) for v in (0, 2)]
            return [created, *decided]

    created, decided, refused = asyncio.run(send())
    assert good(created, 201)["name"] == "a"
    assert good(decided)["round"] == 1
    assert allowed_by_field(refused) == {"context.v": ["0", "1"]}


def test_raised_error_keeps_status_message_and_headers(app):
    @app.api.get("/busy")
    @allow(ANYONE)
    async def busy() -> None:
        raise HTTPException(503, "The database is busy", headers={"retry-after": "1"})

    response = call(app, "GET", "/busy")
    assert error_of(response, 503) == {"code": "unavailable", "message": "The database is busy", "fields": []}
    assert response.headers["retry-after"] == "1"


def test_unexpected_failure_leaks_nothing(app):
    """On a lean route neither: the application was not started, so it takes no operations."""

    @app.api.get("/broken")
    @allow(ANYONE)
    async def broken() -> None:
        raise RuntimeError("start")

    for response in (call(app, "GET", "/broken"), call(app, "POST", "/decide", json={"campaign": "a", "context": {}})):
        assert error_of(response, 500)["code"] == "internal_error"
        assert not re.search("start|Error|Assertion", response.text)


def test_settings_flags_win_over_variables():
    environ = {"UNDERCURRENT_HOST": "0.0.0.0", "UNDERCURRENT_PORT": "9000", "UNDERCURRENT_DATABASE_URL": "sqlite:///a"}
    assert Settings.load({}, {}) == Settings(
        host="127.0.0.1", port=8000, database_url="sqlite:///undercurrent.db", workers=1
    )
    assert Settings.load(environ, {"host": None, "port": "81"}) == Settings(
        host="0.0.0.0", port=81, database_url="sqlite:///a"
    )
    several = Settings.load(environ, {"database_url": "postgresql://u@h/n", "workers": "3"})
    assert (several.database_url, several.workers) == ("postgresql://u@h/n", 3)


def test_settings_refuse_a_bad_value_by_name():
    for environ, flags, named in (
        ({"UNDERCURRENT_PORT": "many"}, {}, "UNDERCURRENT_PORT is 'many'"),
        ({"UNDERCURRENT_PORT": "80"}, {"port": "70000"}, "--port is '70000'.* 65535"),
        ({"UNDERCURRENT_HOST": ""}, {}, "UNDERCURRENT_HOST is ''"),
        ({"UNDERCURRENT_WORKERS": "0"}, {}, "UNDERCURRENT_WORKERS is '0'.* 1"),
        ({"UNDERCURRENT_LOG_FORMAT": "xml"}, {}, "UNDERCURRENT_LOG_FORMAT is 'xml'.* 'text' or 'json'"),
        ({}, {"log_level": "loud"}, "--log-level is 'loud'.* 'error'"),
        ({"UNDERCURRENT_ACCESS_LOG": "often"}, {}, "UNDERCURRENT_ACCESS_LOG is 'often'.* boolean"),
    ):
        with pytest.raises(SettingsError, match=named):
            Settings.load(environ, flags)


def test_command_line_names_the_version_and_refuses_a_bad_port(capsys):
    for arguments, code in ((["--version"], 0), (["serve", "--port", "many"], 2)):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == code
    printed = capsys.readouterr()
    assert printed.out == f"undercurrent {__version__}\n"
    assert "--port is 'many'" in printed.err


def test_a_port_in_use_is_reported_plainly(capsys, database):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--database-url", database]) == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use. " in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_process_serves_until_it_is_stopped(tmp_path):
    """In an empty folder, stopped by Ctrl-C. Tests in tests/e2e/test_process.py stop it by SIGTERM."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UNDERCURRENT_")}
    environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    command, pipe = [sys.executable, "-m", "service.cli", "serve", "--port", "0"], subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            line = process.stdout.readline()
            url = re.fullmatch(rf"Undercurrent {__version__} is at (http://127\.0\.0\.1:\d+)\n", line)[1]
            assert f"{url}/docs" in process.stdout.readline()
            for path in ("/healthz", "/readyz"):
                assert httpx.get(f"{url}{path}", timeout=60).json() == {"status": "ok", "version": __version__}
            assert error_of(httpx.get(f"{url}/nothing", timeout=60))["code"] == "not_found"
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert complaints in (
        "",
        "undercurrent: compiling the kernels, which takes about a minute; only the first start does\n",
    )
    assert (tmp_path / "undercurrent.db").exists()
