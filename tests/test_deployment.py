"""The deployment files fit the settings and the command line, and their commands work. The tests need no Docker."""

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from service.base.settings import PREFIX, Settings
from service.cli.commands import build_parser
from service.storage.tables import metadata
from tests.databases import Databases
from tests.e2e.load import CAMPAIGN, open_client
from tests.e2e.server import UNDERCURRENT, Server, get_environment
from tests.test_project import PROJECT, ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
WORKERS = ["service:8000", "service-2:8000"]
SECRETS = {"POSTGRES_PASSWORD": "p@ss/word", "GRAFANA_PASSWORD": "another", "METRICS_KEY": "a key"}
VARIABLE = re.compile(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}")


class UnsetError(Exception):
    """A variable has neither a value nor a default; the message comes from the file."""


def interpolate(value: object, environ: Mapping[str, str]) -> str:
    """A value of the compose file as Docker reads it: ${NAME}, ${NAME:-default}, ${NAME:?message}."""

    def replace(match: re.Match[str]) -> str:
        name, operator, text = match.groups()
        if environ.get(name):
            return environ[name]
        if operator == ":?":
            raise UnsetError(text)
        return text or ""

    return VARIABLE.sub(replace, str(value))


def get_service_environment(service: str, environ: Mapping[str, str] = SECRETS) -> dict[str, str]:
    return {name: interpolate(value, environ) for name, value in SERVICES[service].get("environment", {}).items()}


def split_command(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else command


def read_instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, in order."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for line in lines if line.strip() for word, _, rest in [line.partition(" ")]]


def get_last(word: str) -> str:
    return [rest for known, rest in read_instructions() if known == word][-1]


def get_image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for word, rest in read_instructions() if word == "ENV" for pair in shlex.split(rest))


# --- the files -------------------------------------------------------------------------------------------------------


def test_services_and_their_order():
    assert set(SERVICES) == {"service", "service-2", "migrate", "postgresql", "nginx", "prometheus", "grafana"}
    assert set(OURS) == {"service", "service-2", "migrate"}
    assert SERVICES["service"] == SERVICES["service-2"]
    assert SERVICES["migrate"]["restart"] == "no"
    conditions = {name: needed["condition"] for name, needed in SERVICES["service"]["depends_on"].items()}
    assert conditions == {"postgresql": "service_healthy", "migrate": "service_completed_successfully"}
    assert "healthcheck" in SERVICES["postgresql"]
    mounted = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}
    assert {name for name in mounted if not name.startswith(".")} == set(COMPOSE["volumes"])


def test_every_variable_is_a_setting_with_an_allowed_value():
    for variables in (
        get_image_environment(),
        *(get_image_environment() | get_service_environment(name) for name in OURS),
    ):
        ours = {name: value for name, value in variables.items() if name.startswith(PREFIX)}
        assert set(ours) <= {PREFIX + name.upper() for name in Settings.model_fields}
        settings = Settings.load(ours, {})
        assert settings.host == "0.0.0.0"
        assert f"{settings.port}" == get_last("EXPOSE")
    assert Settings.load(get_service_environment("service"), {}).workers == 1


def test_every_command_exists():
    (entry,) = json.loads(get_last("ENTRYPOINT"))
    assert PROJECT["scripts"][entry] == "service.cli.__main__:main"
    commands = [json.loads(get_last("CMD")), *(split_command(SERVICES[name]["command"]) for name in OURS)]
    assert [build_parser().parse_args(command).command for command in commands] == [
        "serve",
        "migrate",
        "serve",
        "serve",
    ]


@pytest.mark.parametrize("missing", ["POSTGRES_PASSWORD", "GRAFANA_PASSWORD"])
def test_passwords_have_no_default(missing):
    """A default password would be public."""
    environ = {name: value for name, value in SECRETS.items() if name != missing}
    with pytest.raises(UnsetError, match=r"\.env"):
        [get_service_environment(name, environ) for name in SERVICES]
    for name in SERVICES:
        for variable, value in get_service_environment(name).items():
            assert "PASSWORD" not in variable or value in SECRETS.values()
    assert (
        get_service_environment("service")["PGPASSWORD"] == get_service_environment("postgresql")["POSTGRES_PASSWORD"]
    )
    assert COMPOSE["secrets"]["metrics_key"] == {"environment": "METRICS_KEY"}


def test_ports_are_published_on_this_machine_only():
    ports = [interpolate(port, {}) for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_runs_as_a_user_that_owns_the_kernels():
    """Numba reads its cache only where it may write."""
    order = read_instructions()
    user = get_last("USER")
    assert user != "root"
    assert not user.startswith("0")
    assert order.index(("USER", user)) < order.index(("RUN", '["python", "-m", "service.engine.warm_up"]'))
    (install,) = (rest for word, rest in order if word == "RUN" and "install --directory" in rest)
    assert f"--owner {user}" in install
    assert get_image_environment()["NUMBA_CACHE_DIR"] in install.split()


def test_every_mounted_file_exists():
    mounts = [mount.split(":") for service in SERVICES.values() for mount in service.get("volumes", [])]
    files = {source: target for source, target, *_ in mounts if source.startswith("./")}
    assert set(files) == {
        f"./deploy/{name}"
        for name in ("nginx.conf", "prometheus.yml", "grafana/provisioning", "grafana/undercurrent.json")
    }
    assert all((ROOT / source).exists() for source in files)
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "undercurrent.yml").read_text())["providers"]
    assert files["./deploy/grafana/undercurrent.json"].startswith(provider["options"]["path"])
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"].removeprefix("http://").split(":")[0] in SERVICES


def test_prometheus_sends_its_key():
    """Other containers reach the service only if it has keys, so Prometheus always needs one."""
    (scraped,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": WORKERS}]
    (secret,) = SERVICES["prometheus"]["secrets"]
    assert scraped["authorization"]["credentials_file"] == secret["target"]


def test_nginx_knows_every_worker():
    """What the configuration does is tested by tests/e2e/test_nginx.py."""
    config = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    assert re.findall(r"^ +server ([\w:-]+) max_fails", config, re.MULTILINE) == WORKERS
    assert set(SERVICES["nginx"]["depends_on"]) == {worker.partition(":")[0] for worker in WORKERS}
    assert {secret["target"] for secret in SERVICES["nginx"]["secrets"]} == set(
        re.findall(r"ssl_certificate(?:_key)? (.*);", config)
    )
    for secret in ("tls_certificate", "tls_key"):
        file = interpolate(COMPOSE["secrets"][secret]["file"], {})
        assert file.removeprefix(".") in (ROOT / ".gitignore").read_text().split()


def test_every_documented_command_exists():
    document = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", document, re.MULTILINE | re.DOTALL))
    inside = re.findall(r"docker compose run --rm (?:-T )?service ([^)\n]*)", blocks)
    direct = re.findall(r"^undercurrent (.*)$", blocks, re.MULTILINE)
    assert len(inside) >= 3
    assert len(direct) >= 4
    for command in inside + direct:
        build_parser().parse_args(shlex.split(command, comments=True))


def test_tables_can_be_distributed_by_campaign():
    """Citus requires, and docs/deployment.md promises, that every key of a distributed table has the campaign."""
    document = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    distributed = re.findall(r"create_distributed_table\('(\w+)', 'campaign_id'", document)
    reference = re.findall(r"create_reference_table\('(\w+)'", document)
    assert sorted(distributed + reference) == sorted(metadata.tables)
    for name in distributed:
        table = metadata.tables[name]
        unique = [c for c in table.constraints if isinstance(c, sa.PrimaryKeyConstraint | sa.UniqueConstraint)]
        assert all("campaign_id" in constraint.columns for constraint in unique)
        for key in table.foreign_key_constraints:
            assert key.referred_table.name in reference or "campaign_id" in key.column_keys


# --- the image --------------------------------------------------------------------------------------------------------


def is_sent_to_docker(name: str) -> bool:
    """Whether .dockerignore lets the path through: the last matching line decides."""
    allowed = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").replace("**/", "*")
            if any(fnmatch.fnmatch(str(part), pattern) for part in (Path(name), *Path(name).parents[:-1])):
                allowed = line.startswith("!")
    return allowed


@pytest.mark.slow
def test_the_image_holds_the_service_only(tmp_path):
    """Build the wheel as the Dockerfile does: it has no simulator, tests or benchmarks, and can migrate a database."""
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(is_sent_to_docker, filter(None, listed.split("\0"))):
        (tmp_path / "sent" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "sent" / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "."]
    subprocess.run([*build, "./sent"], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    packages = {path.name for path in (tmp_path / "installed").iterdir() if path.suffix != ".dist-info"}
    assert packages == {"migrations", "policy", "service"}
    environ = get_environment() | {"PYTHONPATH": str(tmp_path / "installed")}
    migrate = [*UNDERCURRENT, "migrate", "--database-url", f"sqlite:///{tmp_path}/new.db"]
    done = subprocess.run(migrate, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "The database is up to date.\n"), done.stderr


# --- the commands -----------------------------------------------------------------------------------------------------


def run_healthcheck(url: str) -> int:
    """The exit code of Docker's health check."""
    command = json.loads(get_last("HEALTHCHECK").partition("CMD")[2])
    assert command[0] == "python"
    environ = get_environment() | {f"{PREFIX}PORT": url.rsplit(":", 1)[1]}
    done = subprocess.run([sys.executable, *command[1:]], env=environ, capture_output=True, timeout=60, check=False)
    return done.returncode


@pytest.mark.slow
def test_the_commands_migrate_and_serve(new_database: Databases, tmp_path: Path):
    """Run `migrate` and `serve` with the environment of the compose file, on an empty PostgreSQL."""
    address = {f"{PREFIX}DATABASE_URL": new_database.postgresql.create("composed", "template1"), f"{PREFIX}PORT": "0"}
    migrate = [*UNDERCURRENT, *split_command(SERVICES["migrate"]["command"])]
    environ = get_environment() | get_service_environment("migrate") | address
    for _ in range(2):  # every start runs it again
        done = subprocess.run(migrate, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "The database is up to date.\n"), done.stderr
    server = Server(
        split_command(SERVICES["service"]["command"]), get_service_environment("service") | address, tmp_path / "stderr"
    )
    try:
        with open_client(server.url) as client:
            assert client.post("/campaigns", json={"name": "spring"} | CAMPAIGN).status_code == 201
            body = {"campaign": "spring", "decision_id": "first", "context": {"risk": "low", "revenue": 20}}
            answers = [client.post("/decide", json=body) for _ in range(20)]  # either worker may answer
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["round"] for answer in answers} == {1}
        assert run_healthcheck(server.url) == 0
        server.terminate()
        assert server.wait_for_exit() == 0
        assert run_healthcheck(server.url) != 0
    finally:
        server.end()
