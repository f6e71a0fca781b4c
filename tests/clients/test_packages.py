"""Both clients as users install them, in empty environments, and the TypeScript client's own tests."""

import json
import os
import sys
import zipfile

import pytest

from tests.clients.guide import check, make_patient, read_programs
from tests.clients.packages import (
    PYTHON,
    ROOT,
    TYPESCRIPT,
    build_tarball,
    build_wheel,
    compile_typescript,
    find_obstacle,
    generate_types,
    run,
)
from undercurrent_client import __version__

pytestmark = pytest.mark.slow
OPENFEATURE = ("@openfeature/server-sdk", "@openfeature/ofrep-provider", "@openfeature/ofrep-core")


@pytest.fixture
def node() -> None:
    """Skip a test that needs Node where there is none; in CI, fail it."""
    if message := find_obstacle():
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)


def test_the_wheel_in_an_empty_environment(service, tmp_path):
    wheel = build_wheel(tmp_path)
    sources = {f"undercurrent_client/{path.name}" for path in PYTHON.glob("undercurrent_client/*.*")}
    assert {name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name} == sources
    python = tmp_path / "venv" / "bin" / "python"
    run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check"]
    run([*pip, "--constraint", ROOT / "requirements.lock", wheel])
    program = make_patient(read_programs("python")[0], service.url).replace("order-2001", "wheel-1")
    check(service, run([python, "-c", program], tmp_path), "wheel-1", 1.25)


@pytest.mark.usefixtures("node")
def test_the_tarball_in_an_empty_environment(service, tmp_path):
    """Installed with OpenFeature's packages; then both programs of the guide are checked and run."""
    tarball = build_tarball(tmp_path)
    versions = json.loads((TYPESCRIPT / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    others = [f"{name}@{versions[f'node_modules/{name}']['version']}" for name in OPENFEATURE]
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    run(["npm", "install", "--silent", "--no-package-lock", tarball, *others], folder)
    client, openfeature = (make_patient(program, service.url) for program in read_programs("typescript"))
    for name, program in (("client", client), ("openfeature", openfeature)):
        for suffix in ("ts", "mjs"):  # Node runs what is JavaScript as well
            (folder / f"{name}.{suffix}").write_text(program, encoding="utf-8")
    tsc = [TYPESCRIPT / "node_modules" / ".bin" / "tsc", "--noEmit", "--strict", "--skipLibCheck"]
    run([*tsc, "--module", "nodenext", "--lib", "es2022,dom", "client.ts", "openfeature.ts"], folder)
    check(service, run(["node", "client.mjs"], folder), "order-2002", 1.25)
    check(service, run(["node", "openfeature.mjs"], folder), "order-2005", None)
    installed = json.loads((folder / "node_modules/@undercurrent/client/package.json").read_text(encoding="utf-8"))
    assert installed["version"] == __version__
    assert "dependencies" not in installed


@pytest.mark.usefixtures("node")
def test_the_typescript_client():
    """Its types, and its own tests with a real service."""
    compile_typescript()
    run([TYPESCRIPT / "node_modules" / ".bin" / "tsc", "--noEmit"], TYPESCRIPT)
    run([TYPESCRIPT / "node_modules" / ".bin" / "vitest", "run"], TYPESCRIPT)


@pytest.mark.usefixtures("node")
def test_the_generated_types_are_current(tmp_path):
    generate_types(tmp_path / "openapi.ts")
    written = (TYPESCRIPT / "src" / "openapi.ts").read_text(encoding="utf-8")
    assert (tmp_path / "openapi.ts").read_text(encoding="utf-8") == written, "the API has changed: `make client-types`"


def test_the_lock_names_no_registry():
    text = (TYPESCRIPT / "package-lock.json").read_text(encoding="utf-8")
    packages = json.loads(text)["packages"]
    assert '"resolved"' not in text
    assert all("integrity" in package for name, package in packages.items() if name)
