"""`undercurrent migrate | verify | keys | config-check`, what `serve` refuses, the settings, and compiling at start."""

import hashlib
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

import service.cli.serve
from policy import CampaignConfig
from service.access.keys import get_key_id
from service.base.settings import PREFIX, Settings, SettingsError
from service.cli.commands import main
from service.cli.flags import SETTINGS
from service.cli.serve import choose_host
from service.storage.keys import read_keys
from service.storage.schema import get_head, get_schema_revision
from service.storage.store import Store
from service.storage.tables import decisions, metadata
from tests.service.playing import CONFIGS, Script, eventually

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"name": "spring", "actions": ["none", "mail"], "variables": [{"name": "risk", "levels": ["low", "high"]}]}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    """Run in an empty folder, without settings from the environment."""
    for name in Settings.model_fields:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def database_url(request, new_database):
    """A new SQLite database, or one of the kind that the test names."""
    return new_database(getattr(request, "param", "sqlite"))


@pytest.fixture
def run(capsys):
    """A function that runs `undercurrent …` and returns the exit code, the output and the error output."""

    def run(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def busy_port(monkeypatch):
    """A port that is busy_port: `serve` does everything up to listening, except for loading the kernels, and stops."""
    monkeypatch.setattr(service.cli.serve, "_load_kernels", lambda report: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def transact(url, function):
    """What the function returns, given a transaction of the database."""
    with closing(Store(url)) as store, store.writing() as tx:
        return function(tx)


def execute(url, statement):
    transact(url, lambda tx: tx.connection.execute(sa.text(statement)))


def get_revision(url):
    return transact(url, get_schema_revision)


@pytest.fixture
def old_database(database_url):
    """A database without tables."""
    transact(database_url, lambda tx: metadata.drop_all(tx.connection))
    execute(database_url, "DROP TABLE alembic_version")
    return database_url


on_both = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
only_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

# --- migrate, and how serve treats a schema ------------------------------------------------------------------------


@on_both
def test_migrate_updates_a_database(run, old_database):
    for _ in range(2):
        assert run("migrate", "--database-url", old_database) == (0, "The database is up to date.\n", "")
        assert get_revision(old_database) == get_head()


def test_migrate_refuses_a_database_of_a_newer_version(run, database_url):
    execute(database_url, "UPDATE alembic_version SET version_num = '9999'")
    code, output, error = run("migrate", "--database-url", database_url)
    assert (code, output, "9999" in error, "newer" in error) == (1, "", True, True)


def test_serve_creates_and_migrates_an_embedded_database(run, old_database, busy_port, tmp_path):
    code, _, error = run("serve", "--port", busy_port, "--database-url", old_database)
    assert (code, "cannot listen" in error) == (1, True)
    assert get_revision(old_database) == get_head()
    run("serve", "--port", busy_port)
    assert get_revision(f"sqlite:///{tmp_path}/undercurrent.db") == get_head()


def read_advice(error):
    """The arguments of the command that an error message says to run, split as a shell would."""
    _, advice, command = error.partition("run: ")
    assert advice, error
    program, *arguments = shlex.split(command)
    assert program == "undercurrent"
    return arguments


@only_postgresql
def test_serve_refuses_a_server_without_tables_and_names_the_command(run, old_database, busy_port):
    serve = ("serve", "--port", busy_port, "--database-url")
    url = sa.make_url(old_database).set(password="swordfish").render_as_string(hide_password=False)
    code, output, error = run(*serve, url)
    assert (code, output) == (1, "")
    assert "has no tables yet" in error
    assert "swordfish" not in error
    _, _, error = run(*serve, old_database)
    assert get_revision(old_database) is None  # nothing was changed
    assert run(*read_advice(error))[0] == 0
    assert "cannot listen" in run(*serve, old_database)[2]  # the database is accepted


@only_postgresql
def test_serve_refuses_another_schema(run, database_url, busy_port):
    serve = ("serve", "--port", busy_port, "--database-url", database_url)
    for revision, words in (("0000", f"is at revision 0000, not {get_head()}"), ("9999", "upgrade the service")):
        execute(database_url, f"UPDATE alembic_version SET version_num = '{revision}'")
        code, _, error = run(*serve)
        assert (code, words in error, "migrate" in error) == (1, True, revision == "0000")


@only_postgresql
def test_commands_need_the_current_schema(run, old_database):
    keys = (["keys", "create", "--role", "admin"], ["keys", "list"], ["keys", "revoke", "x"])
    for command in (["verify"], *keys):
        code, output, error = run(*command, "--database-url", old_database)
        assert (code, output, read_advice(error)[0]) == (1, "", "migrate")


BAD_ADDRESSES = """
undercurrent.db mysql://host/name sqlite:// sqlite:///:memory: sqlite:///file?mode=memory postgres://user@host/name
postgresql+asyncpg://user@host/name postgresql:// postgresql://user@host:port/name
"""


@pytest.mark.parametrize("url", ["", *BAD_ADDRESSES.split()])
def test_a_bad_database_address_is_refused(run, url, tmp_path):
    code, output, error = run("migrate", "--database-url", url)
    assert (code, output, "--database-url" in error, "sqlite:///FILE" in error) == (2, "", True, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["serve", "migrate", "verify"])
def test_an_unreachable_database_is_reported_in_one_line(run, command):
    for url, reason in (
        ("postgresql://user@127.0.0.1:1/name", "refused"),
        ("sqlite:////nowhere/at/all.db", "nowhere/at/all|unable to open"),
    ):
        code, output, error = run(command, "--database-url", url)
        assert (code, output) == (1, "")
        assert re.fullmatch(f"undercurrent: .*({reason}).*\n", error)


def test_serve_refuses_several_workers_on_sqlite(run, tmp_path):
    """R19: with the reason, and before anything is written."""
    code, _, error = run("serve", "--workers", 2)
    assert code == 2
    assert "--workers: SQLite has one writer" in error
    assert list(tmp_path.iterdir()) == []


@only_postgresql
def test_every_command_closes_its_connections(run, database_url, busy_port):
    """Whether it succeeds or fails: a server has a limited number of connections."""
    watching = sa.create_engine(sa.make_url(database_url).set(database="postgres"), isolation_level="AUTOCOMMIT")
    count = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = :name")
    name = {"name": sa.make_url(database_url).database}
    with watching.connect() as connection:
        keys = (["keys", "list"], ["keys", "create", "--role", "viewer"], ["keys", "revoke", "nobody"])
        for command in (["migrate"], ["verify"], ["verify", "nobody"], ["serve", "--port", busy_port], *keys):
            run(*command, "--database-url", database_url)
            # The server notices a moment later that a connection is gone.
            eventually(lambda: connection.execute(count, name).scalar_one() == 0, f"closed by {command}")
    watching.dispose()


# --- verify -------------------------------------------------------------------------------------------------------


@pytest.fixture
def played(direct, clock):
    """A worker with two campaigns of a few stages."""
    worker = direct()
    for name in ("given", "smoothed"):
        Script(CONFIGS[name], clock).create(worker.post).play(worker.post, 20)
    return worker


@on_both
def test_verify_reports_differences(run, database_url, played):
    """R14: exit code 0 if everything is as stored, 1 if anything differs in any campaign."""
    at = ("--database-url", database_url)
    rows = [played.campaign(name) for name in ("given", "smoothed")]
    given, smoothed = (f"{r.name}: {r.round} decisions, {r.arrived} rewards, model {r.model_version}" for r in rows)
    assert run("verify", *at) == (0, f"{given}: as stored\n{smoothed}: as stored\n", "")
    assert run("verify", "smoothed", *at) == (0, f"{smoothed}: as stored\n", "")

    change = sa.update(decisions).where(decisions.c.campaign_id == rows[0].campaign_id).values(mode="elsewhere")
    played.execute(change.where(decisions.c.round.in_([7, 9])))
    code, output, error = run("verify", *at)
    assert (code, output) == (1, f"{given}: 2 DIFFERENCES\n{smoothed}: as stored\n")
    first, second = error.splitlines()
    assert first.startswith("given: round 7: mode is elsewhere")
    assert second.startswith("given: round 9: mode is elsewhere")
    assert run("verify", "given", *at)[0] == 1
    assert run("verify", "smoothed", *at)[0] == 0

    played.execute(change)  # all are counted, and the first are listed
    code, output, error = run("verify", "given", *at)
    assert (code, f"{rows[0].round} DIFFERENCES" in output) == (1, True)
    assert 10 <= error.count("\n") <= rows[0].round


def test_verify_of_an_unknown_campaign(run, database_url, tmp_path):
    expected = (1, "", "undercurrent: There is no campaign 'nobody'\n")
    assert run("verify", "nobody", "--database-url", database_url) == expected
    assert run("verify", "--database-url", database_url) == (0, "", "")  # no campaign, no difference
    assert run("verify", "--database-url", "sqlite:///none.db")[0] == 1
    assert list(tmp_path.iterdir()) == []  # no file was created


# --- keys, and where serve listens without them -----------------------------------------------------------------------


@pytest.fixture
def keys(run, database_url):
    """`undercurrent keys …` on the test's database."""
    return lambda *arguments: run("keys", *arguments, "--database-url", database_url)


def stored_keys(url):
    return transact(url, read_keys)


def test_a_key_is_printed_once_and_nothing_else(keys, database_url):
    code, output, note = keys("create", "--role", "admin")
    key = output.removesuffix("\n")
    assert code == 0
    assert re.fullmatch(r"uc_[0-9a-f]{10}_[A-Za-z0-9_-]{43}", key)
    assert "not shown again" in note
    assert "Authorization: Bearer" in note
    secret = key.split("_", 2)[2]
    assert secret not in note
    (row,) = stored_keys(database_url)
    assert (row.id, row.secret_hash) == (get_key_id(key), hashlib.sha256(secret.encode()).digest())
    assert secret[:8] not in keys("list")[1]


@on_both
def test_keys_are_listed_as_a_table(keys):
    assert keys("list")[:2] == (0, "")
    names = ["--campaign", "spring", "--campaign", "autumn", "--campaign", "spring"]
    _, first, note = keys("create", "--role", "client", *names, "--rate-limit", "2.5", "--name", "web shop")
    assert "no campaign 'spring' yet" in note
    _, second, _ = keys("create", "--role", "viewer")
    assert keys("revoke", get_key_id(first))[0] == 0
    code, output, error = keys("list")
    assert (code, error) == (0, "")
    head, *rows = output.splitlines()
    titles = re.split(r"  +", head)
    assert titles == ["id", "name", "role", "campaigns", "rate limit", "created", "revoked"]
    assert len({head.index(title) for title in titles}) == 7
    cells = [dict(zip(titles, re.split(r"  +", row), strict=True)) for row in rows]
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
    for row, key in zip(cells, (first, second), strict=True):
        assert row.pop("id") == get_key_id(key)
        assert re.fullmatch(day, row.pop("created"))
    assert re.fullmatch(day, cells[0].pop("revoked"))
    assert cells[0] == {"name": "web shop", "role": "client", "campaigns": "autumn, spring", "rate limit": "2.5/s"}
    assert cells[1] == {"name": "-", "role": "viewer", "campaigns": "all", "rate limit": "-", "revoked": "-"}


def test_a_key_is_revoked_by_its_id(keys, database_url):
    key, other = (keys("create", "--role", "viewer")[1].strip() for _ in range(2))
    assert keys("revoke", get_key_id(key)) == (0, "", f"Key {get_key_id(key)} is revoked.\n")
    assert [row.revoked_at is None for row in stored_keys(database_url)].count(True) == 1
    assert keys("revoke", get_key_id(key)) == (0, "", f"Key {get_key_id(key)} was already revoked.\n")
    # Given a whole key, the command does not print its secret.
    assert keys("revoke", other) == (0, "", f"Key {get_key_id(other)} is revoked.\n")
    code, output, error = keys("revoke", "nobody")
    assert (code, output) == (1, "")
    assert error == "undercurrent: There is no key 'nobody'; `undercurrent keys list` lists the keys\n"


def test_a_wrong_flag_of_keys_create_is_named(run, tmp_path):
    for *flag, named in (
        ("--role", "boss", "admin"),
        ("--rate-limit", "0", "'0' is not a number of requests per second"),
        ("--rate-limit", "nan", "'nan' is not"),
        ("--rate-limit", "inf", "0.001 to 1000000"),
        ("--rate-limit", "many", "'many' is not"),
        ("--campaign", "No Such", "'No Such' is not a campaign name"),
        ("--campaign", "", "'' is not a campaign name"),
        ("--name", "x" * 101, "at most 100"),
        ("--name", "a\nb", "printable"),
    ):
        code, output, error = run("keys", "create", "--role", "admin", *flag)
        assert (code, output, named in error) == (2, "", True), error
    assert "--role" in run("keys", "create")[2]
    assert list(tmp_path.iterdir()) == []


def test_the_first_key_may_come_before_the_first_start(run, old_database, tmp_path):
    assert run("keys", "create", "--role", "admin", "--database-url", old_database)[0] == 0
    assert run("keys", "create", "--role", "admin")[0] == 0
    assert len(stored_keys(f"sqlite:///{tmp_path}/undercurrent.db")) == 1


def test_without_a_key_serve_stays_on_this_machine(run, database_url, busy_port):
    """Whatever --host says. The command in the warning creates a key, and then --host counts."""
    serve = ("serve", "--host", "0.0.0.0", "--port", busy_port, "--database-url", database_url)
    code, _, error = run(*serve)
    warning, failure = error.splitlines()
    assert code == 1
    assert "no keys" in warning
    assert "listens on 127.0.0.1 only, not on 0.0.0.0" in warning
    assert f"cannot listen on 127.0.0.1 port {busy_port}" in failure
    words = shlex.split(warning.partition("start again: ")[2])
    assert run(*words[1:])[0] == 0
    key_id = stored_keys(database_url)[0].id
    assert run(*serve)[2].startswith(f"undercurrent: cannot listen on 0.0.0.0 port {busy_port}")
    # A revoked key counts too: the service requires keys, so it may listen anywhere.
    run("keys", "revoke", key_id, "--database-url", database_url)
    assert run(*serve)[2].startswith(f"undercurrent: cannot listen on 0.0.0.0 port {busy_port}")
    instead = {"192.0.2.1": "127.0.0.1", "::": "::1", "2001:db8::1": "::1", "::1": "::1", "127.3.2.1": "127.3.2.1"}
    instead["no.such.host.invalid"] = "no.such.host.invalid"  # listening there fails with a message
    assert {host: choose_host(host) for host in instead} == instead


# --- config-check -------------------------------------------------------------------------------------------------


def test_config_check_fills_in_every_default(run, tmp_path, monkeypatch):
    text = json.dumps(CONFIG | {"seed": 3})
    (tmp_path / "good.json").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    for source in ("good.json", "-"):
        code, output, error = run("config-check", source)
        assert (code, error) == (0, "")
        assert CampaignConfig.model_validate_json(output) == CampaignConfig(**CONFIG, seed=3)
        assert json.loads(output).keys() == set(CampaignConfig.model_fields)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (json.dumps(CONFIG | {"actions": ["none"], "stage_length": 0}).encode(), ["actions", "stage_length"]),
        (json.dumps(CONFIG | {"stage_lenght": 3}).encode(), ["stage_lenght", "stage_length"]),
        (b"{", ["JSON"]),
        (b"[]", ["object"]),
        (b"\xff\xfe\x00", ["undercurrent: bad.json is not UTF-8"]),
        (None, ["undercurrent: cannot read bad.json: "]),
    ],
)
def test_config_check_names_what_is_wrong(run, tmp_path, text, named):
    if text is not None:
        (tmp_path / "bad.json").write_bytes(text)
    code, output, error = run("config-check", "bad.json")
    assert (code, output, "Traceback" in error) == (1, "", False)
    assert all(word in error for word in named), error


# --- settings -----------------------------------------------------------------------------------------------------

VALUES = {
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("81", 81),
    "database_url": ("postgresql://user@host/name", "postgresql://user@host/name"),
    "workers": ("3", 3),
    "log_format": ("json", "json"),
    "log_level": ("debug", "debug"),
    "access_log": ("true", True),
    "https": ("true", True),
    "allowed_hosts": ("a.example,b.example", "a.example,b.example"),
    "webhook_private": ("true", True),
    "rehearsal": ("true", True),
}


def test_every_setting_is_a_flag_and_a_variable(run, monkeypatch, tmp_path):
    """Its row in the README is checked in tests/test_project.py."""
    variables_only = {"webhook_secret"}  # others can read command lines
    assert set(VALUES) == set(Settings.model_fields) - variables_only == set(SETTINGS)
    flags = re.findall(r"^  --([a-z-]+)", run("serve", "--help")[1], re.MULTILINE)
    assert [flag.replace("-", "_") for flag in flags] == list(SETTINGS)
    base = {"database_url": "postgresql://localhost/x"}  # with it any number of workers is allowed
    for name, (text, value) in VALUES.items():
        assert getattr(Settings.load({}, base | {name: text}), name) == value
        other = {PREFIX + key.upper(): known for key, known in (base | {name: text}).items()}
        assert getattr(Settings.load(other, {}), name) == value
        assert PREFIX + name.upper() in SETTINGS[name]
        assert str(Settings.model_fields[name].default) in SETTINGS[name]
    monkeypatch.setenv("UNDERCURRENT_DATABASE_URL", "sqlite:///from-variable.db")  # a flag comes before it
    for flag, file in (((), "from-variable.db"), (("--database-url", "sqlite:///from-flag.db"), "from-flag.db")):
        assert run("migrate", *flag)[0] == 0
        assert (tmp_path / file).exists()


def test_a_refused_address_is_shown_without_its_password():
    with pytest.raises(SettingsError) as refused:
        Settings.load({"UNDERCURRENT_DATABASE_URL": "mysql://user:swordfish@host/name"}, {})
    assert "UNDERCURRENT_DATABASE_URL" in str(refused.value)
    assert "swordfish" not in str(refused.value)


# --- kernels ------------------------------------------------------------------------------------------------------

COMPILED = """
import json, tempfile
from policy import describe, kernels
from service.engine.operations import ReadState
from service.engine.warm_up import warm_up
from service.storage.schema import upgrade
from service.storage.store import Store
from tests.policy import make_golden
from tests.service.conftest import Clock
from tests.service.playing import CONFIGS, Direct, Script

def count_signatures():
    return {name: len(kernel.signatures) for name, kernel in vars(kernels).items() if hasattr(kernel, "signatures")}

assert sum(count_signatures().values()) == 0, "something was compiled when it was imported"
warm_up()
before, clock, url = count_signatures(), Clock(), f"sqlite:///{tempfile.mkdtemp()}/x.db"
store = Store(url)
upgrade(store)
store.close()
default_clock = CONFIGS["default"] | {"name": "default-clock", "clock": {"period_seconds": 1.5}}
for config in (*CONFIGS.values(), default_clock):
    worker = Direct(url, clock)
    Script(config, clock).create(worker.post).play(worker.post, 95 if "default" in config["name"] else 50)
    worker = Direct(url, clock)
    assert worker.differences(config["name"]) == []
    worker.process(ReadState(config["name"]))

golden = json.loads(make_golden.PATH.read_text())
worker.post("/campaigns", golden["config"])
for t, row in enumerate(golden["rounds"], start=1):
    for s, reward in row["rewards"]:
        worker.post("/reward", {"campaign": "golden-trace", "decision_id": str(s), "reward": reward})
    item = {"context": row["context"], "excluded_actions": row["excluded"], "subject": row["subject"]}
    worker.post("/decide", {"campaign": "golden-trace", "decision_id": str(t), **item})
(state,) = worker.process(ReadState("golden-trace"))
describe(*state)
print(json.dumps([before, count_signatures()]))
"""


@pytest.mark.slow
def test_no_request_compiles_a_kernel():
    """After `warm_up`, campaigns of every kind need no other signature. The kernels come from the usual cache."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert sum(before.values()) > 20
    assert {name: count for name, count in after.items() if count != before[name]} == {}
