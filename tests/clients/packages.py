"""Builds the packages of both clients; `python -m tests.clients.packages` puts them into `dist/`.

With `types` it generates the types of the TypeScript client from this service's OpenAPI document.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from service.base.settings import Settings
from service.cli.application import create_app

ROOT = Path(__file__).resolve().parents[2]
PYTHON, TYPESCRIPT = ROOT / "clients" / "python", ROOT / "clients" / "typescript"
OLDEST_NODE = 20


def find_obstacle() -> str | None:
    """Say what is missing to build the TypeScript client; None if nothing is."""
    if not (shutil.which("node") and shutil.which("npm")):
        return f"The TypeScript client needs Node {OLDEST_NODE} or newer, with npm"
    version = run(["node", "--version"]).strip()
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        return f"The TypeScript client needs Node {OLDEST_NODE} or newer; this is {version}"
    return None


def run(command: Sequence[str | Path], folder: Path = ROOT) -> str:
    """Run a command; return what it prints. If it fails, the error has all that it said."""
    environment = {**os.environ, "UNDERCURRENT_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@contextmanager
def hold(file: Path) -> Iterator[None]:
    """Let one process at a time use what belongs to a file."""
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def build_wheel(target: Path) -> Path:
    """Build the wheel of the Python client from a copy, since a build leaves files beside its sources."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(PYTHON, Path(folder) / "python", ignore=shutil.ignore_patterns("*.egg-info", "build"))
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--no-build-isolation", "-w", target, copy])
    (wheel,) = target.glob("undercurrent_client-*.whl")
    return wheel


def install_tools() -> None:
    """Install what the TypeScript client is built with, in the versions of its lock."""
    with hold(TYPESCRIPT / "package.json"):
        installed, lock = TYPESCRIPT / "node_modules" / ".package-lock.json", TYPESCRIPT / "package-lock.json"
        if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
            run(["npm", "ci", "--silent"], TYPESCRIPT)
            installed.touch()


def compile_typescript() -> None:
    """Compile the TypeScript client into its `dist/`."""
    install_tools()
    with hold(TYPESCRIPT / "tsconfig.json"):
        run([TYPESCRIPT / "node_modules" / ".bin" / "tsc", "-p", "tsconfig.build.json"], TYPESCRIPT)


def build_tarball(target: Path) -> Path:
    """Build the npm package of the TypeScript client."""
    compile_typescript()
    name = run(["npm", "pack", "--silent", "--pack-destination", target], TYPESCRIPT).split()[-1]
    return target / name


def generate_types(target: Path) -> None:
    """Generate the types of the API from the OpenAPI document."""
    install_tools()
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(database_url=f"sqlite:///{folder}/never-opened.db"))
        document = Path(folder) / "openapi.json"
        document.write_text(json.dumps(app.openapi(), indent=1, sort_keys=True), encoding="utf-8")
        tool = TYPESCRIPT / "node_modules" / ".bin" / "openapi-typescript"
        run([tool, document, "--default-non-nullable=false", "-o", target], TYPESCRIPT)


def main() -> int:
    if sys.argv[1:] != ["types"]:
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        (ROOT / "dist").mkdir()
        print(build_wheel(ROOT / "dist").relative_to(ROOT))
    if obstacle := find_obstacle():
        print(obstacle, file=sys.stderr)
        return 1
    if sys.argv[1:] == ["types"]:
        generate_types(TYPESCRIPT / "src" / "openapi.ts")
    else:
        print(build_tarball(ROOT / "dist").relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
