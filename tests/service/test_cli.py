"""`undercurrent migrate | verify | keys | config-check`, what `serve` refuses, settings, kernels compiled at start."""

import argparse
import hashlib
import io
import json
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from policy import CampaignConfig
from service.access.keys import get_key_id
from service.base.settings import PREFIX, Settings, SettingsError
from service.cli.commands import build_parser, main
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
    """No setting of the machine, and an empty folder to be in."""
    for name in Settings.model_fields:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def database_url(request, new_database):
    """SQLite, unless a test asks for another."""
    return new_database(getattr(request, "param", "sqlite"))


@pytest.fixture
def called(capsys):
    """`undercurrent …`: the exit code, what it printed, and what it complained about."""

    def call(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def taken():
    """A port on which nobody else can listen: `serve` gets as far as that, and stops."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def old_database(database_url):
    """A database of another schema: what it says of itself, before any table is made."""
    store = Store(database_url)
    with store.writing() as tx:
        metadata.drop_all(tx.connection)
        tx.connection.execute(sa.text("DROP TABLE alembic_version"))
    store.close()
    return database_url


def revision(url):
    store = Store(url)
    with store.reading() as tx:
        found = get_schema_revision(tx)
    store.close()
    return found


def execute(url, statement):
    store = Store(url)
    with store.writing() as tx:
        tx.connection.execute(statement)
    store.close()


on_both = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
only_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

# --- migrate, and what serve makes of a schema --------------------------------------------------------------------


@on_both
def test_migrate_brings_a_database_up_to_date(called, old_database):
    assert called("migrate", "--database-url", old_database) == (0, "The database is up to date.\n", "")
    assert revision(old_database) == get_head()
    assert called("migrate", "--database-url", old_database) == (0, "The database is up to date.\n", "")


def test_migrate_reads_the_variable(called, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERCURRENT_DATABASE_URL", "sqlite:///from-variable.db")
    assert called("migrate")[0] == 0
    assert revision(f"sqlite:///{tmp_path}/from-variable.db") == get_head()
    assert called("migrate", "--database-url", "sqlite:///from-flag.db")[0] == 0
    assert (tmp_path / "from-flag.db").exists()


def test_migrate_refuses_a_database_of_a_newer_version(called, database_url):
    execute(database_url, sa.text("UPDATE alembic_version SET version_num = '9999'"))
    code, printed, complaint = called("migrate", "--database-url", database_url)
    assert (code, printed) == (1, "")
    assert "9999" in complaint
    assert "newer" in complaint


def test_serve_migrates_an_embedded_database_by_itself(called, old_database, taken):
    code, _, complaint = called("serve", "--port", taken, "--database-url", old_database)
    assert (code, "cannot listen" in complaint) == (1, True)
    assert revision(old_database) == get_head()


def test_serve_makes_its_database_where_it_is_started(called, tmp_path, taken):
    called("serve", "--port", taken)
    assert revision(f"sqlite:///{tmp_path}/undercurrent.db") == get_head()


def named_command(complaint):
    """The command that a refusal says to run, as a shell would take it."""
    _, found, command = complaint.partition("run: ")
    assert found, complaint
    words = shlex.split(command)
    assert words[0] == "undercurrent"
    return words[1:]


@only_postgresql
def test_serve_refuses_a_server_without_tables_and_names_the_command(called, old_database, taken):
    arguments = ("serve", "--port", taken, "--database-url", old_database)
    code, printed, complaint = called(*arguments)
    assert (code, printed) == (1, "")
    assert "has no tables yet" in complaint
    assert revision(old_database) is None  # nothing was done to it
    assert called(*named_command(complaint))[0] == 0
    assert "cannot listen" in called(*arguments)[2]  # so the database was good


@only_postgresql
def test_serve_refuses_another_schema(called, database_url, taken):
    serve = ("serve", "--port", taken, "--database-url", database_url)
    execute(database_url, sa.text("UPDATE alembic_version SET version_num = '0000'"))
    code, _, complaint = called(*serve)
    assert code == 1
    assert f"is at revision 0000, not {get_head()}" in complaint
    assert named_command(complaint)[0] == "migrate"
    execute(database_url, sa.text("UPDATE alembic_version SET version_num = '9999'"))
    code, _, complaint = called(*serve)
    assert (code, "upgrade the service" in complaint, "migrate" in complaint) == (1, True, False)


@only_postgresql
def test_no_password_is_printed(called, old_database, taken):
    url = sa.make_url(old_database).set(password="swordfish").render_as_string(hide_password=False)
    code, printed, complaint = called("serve", "--port", taken, "--database-url", url)
    assert code == 1
    assert "has no tables yet" in complaint
    assert "swordfish" not in printed + complaint


@pytest.mark.parametrize(
    "url",
    [
        "",
        "undercurrent.db",
        "mysql://host/name",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file?mode=memory",
        "postgres://user@host/name",
        "postgresql+asyncpg://user@host/name",
        "postgresql://",
        "postgresql://user@host:port/name",
    ],
)
def test_a_bad_database_address_is_refused_by_name(called, url, tmp_path):
    code, printed, complaint = called("migrate", "--database-url", url)
    assert (code, printed) == (2, "")
    assert "--database-url" in complaint
    assert "sqlite:///FILE" in complaint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://user@127.0.0.1:1/name", "refused"),
        ("sqlite:////nowhere/at/all.db", "nowhere/at/all|unable to open"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "migrate", "verify"])
def test_a_database_that_is_away_is_said_plainly(called, command, url, reason):
    code, printed, complaint = called(command, "--database-url", url)
    assert (code, printed) == (1, "")
    assert complaint.startswith("undercurrent: ")
    assert any(word in complaint for word in reason.split("|"))
    assert complaint.count("\n") == 1


def test_serve_refuses_several_workers_on_sqlite(called, tmp_path):
    """R19: with the reason, and before anything is done."""
    code, _, complaint = called("serve", "--workers", 2)
    assert code == 2
    assert "--workers: SQLite has one writer" in complaint
    assert list(tmp_path.iterdir()) == []


@only_postgresql
def test_every_command_lets_go_of_its_database(called, database_url, taken):
    """Whether it succeeds or fails: a server has only so many connections."""
    watching = sa.create_engine(sa.make_url(database_url).set(database="postgres"), isolation_level="AUTOCOMMIT")
    count = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = :name")
    name = {"name": sa.make_url(database_url).database}
    with watching.connect() as connection:
        keys = (["keys", "list"], ["keys", "create", "--role", "viewer"], ["keys", "revoke", "nobody"])
        for command in (["migrate"], ["verify"], ["verify", "nobody"], ["serve", "--port", taken], *keys):
            called(*command, "--database-url", database_url)
            # The server notices a moment later that a connection is gone.
            eventually(lambda: connection.execute(count, name).scalar_one() == 0, f"let go by {command}")
    watching.dispose()


# --- verify -------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_played(direct, clock):
    """Two campaigns of a few stages."""
    worker = direct()
    for name in ("given", "smoothed"):
        Script(CONFIGS[name], clock).create(worker.post).play(worker.post, 20)
    return worker


@on_both
def test_verify_says_what_it_found(called, database_url, two_played):
    """R14: exit code 0 when all is as stored, 1 when anything differs, whichever campaign it is."""
    at = ("--database-url", database_url)
    rows = [two_played.campaign(name) for name in ("given", "smoothed")]
    said = [f"{r.name}: {r.round} decisions, {r.arrived} rewards, model {r.model_version}" for r in rows]
    good = f"{said[0]}: as stored\n{said[1]}: as stored\n"
    assert called("verify", *at) == (0, good, "")
    assert called("verify", "smoothed", *at) == (0, f"{said[1]}: as stored\n", "")

    number = rows[0].campaign_id
    changed = (decisions.c.campaign_id == number) & (decisions.c.round.in_([7, 9]))
    two_played.execute(sa.update(decisions).where(changed).values(mode="elsewhere"))
    code, printed, complaint = called("verify", *at)
    assert (code, printed) == (1, f"{said[0]}: 2 DIFFERENCES\n{said[1]}: as stored\n")
    first, second = complaint.splitlines()
    assert first.startswith("given: round 7: mode is elsewhere")
    assert second.startswith("given: round 9: mode is elsewhere")
    assert called("verify", "given", *at)[0] == 1
    assert called("verify", "smoothed", *at)[0] == 0


def test_verify_shows_the_first_differences_and_counts_all(called, database_url, two_played):
    two_played.execute(sa.update(decisions).values(mode="elsewhere"))
    rounds = two_played.campaign("given").round
    code, printed, complaint = called("verify", "given", "--database-url", database_url)
    assert (code, f"{rounds} DIFFERENCES" in printed) == (1, True)
    assert 10 <= complaint.count("\n") <= rounds


def test_verify_of_an_unknown_campaign(called, database_url, tmp_path):
    expected = (1, "", "undercurrent: There is no campaign 'nobody'\n")
    assert called("verify", "nobody", "--database-url", database_url) == expected
    assert called("verify", "--database-url", database_url) == (0, "", "")  # no campaign, nothing that differs
    assert called("verify", "--database-url", "sqlite:///none.db")[0] == 1
    assert list(tmp_path.iterdir()) == []  # no file was made


def test_verify_needs_the_current_schema(called, old_database):
    code, printed, complaint = called("verify", "--database-url", old_database)
    assert (code, printed) == (1, "")
    assert named_command(complaint)[0] == "migrate"


# --- keys, and where serve listens without any -----------------------------------------------------------------------


@pytest.fixture
def keys(called, database_url):
    """`undercurrent keys …` on the test's database."""
    return lambda *arguments: called("keys", *arguments, "--database-url", database_url)


def stored_keys(url):
    store = Store(url)
    with store.reading() as tx:
        found = read_keys(tx)
    store.close()
    return found


def test_a_key_is_printed_once_and_nothing_else(keys, database_url):
    code, printed, note = keys("create", "--role", "admin")
    key = printed.removesuffix("\n")
    assert code == 0
    assert re.fullmatch(r"uc_[0-9a-f]{10}_[A-Za-z0-9_-]{43}", key)
    assert "not shown again" in note
    assert "Authorization: Bearer" in note
    secret = key.split("_", 2)[2]
    assert secret not in note
    (row,) = stored_keys(database_url)
    assert row.id == get_key_id(key)
    assert row.secret_hash == hashlib.sha256(secret.encode()).digest()
    _, listed, _ = keys("list")
    assert secret not in listed
    assert secret[:8] not in listed


@on_both
def test_keys_are_listed_as_a_table(keys, called):
    assert keys("list")[:2] == (0, "")
    names = ["--campaign", "spring", "--campaign", "autumn", "--campaign", "spring"]
    _, first, note = keys("create", "--role", "client", *names, "--rate-limit", "2.5", "--name", "web shop")
    assert "no campaign 'spring' yet" in note
    _, second, _ = keys("create", "--role", "viewer")
    assert keys("revoke", get_key_id(first))[0] == 0
    code, printed, complaint = keys("list")
    assert (code, complaint) == (0, "")
    head, *rows = printed.splitlines()
    titles = re.split(r"  +", head)
    assert titles == ["id", "name", "role", "campaigns", "rate limit", "created", "revoked"]
    assert len({head.index(title) for title in titles}) == 7
    told = [dict(zip(titles, re.split(r"  +", row), strict=True)) for row in rows]
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
    for row, key in zip(told, (first, second), strict=True):
        assert row.pop("id") == get_key_id(key)
        assert re.fullmatch(day, row.pop("created"))
    assert re.fullmatch(day, told[0].pop("revoked"))
    assert told[0] == {"name": "web shop", "role": "client", "campaigns": "autumn, spring", "rate limit": "2.5/s"}
    assert told[1] == {"name": "-", "role": "viewer", "campaigns": "all", "rate limit": "-", "revoked": "-"}


def test_a_key_is_revoked_by_its_id(keys, database_url):
    key, other = (keys("create", "--role", "viewer")[1].strip() for _ in range(2))
    assert keys("revoke", get_key_id(key)) == (0, "", f"Key {get_key_id(key)} is revoked.\n")
    assert [row.revoked_at is None for row in stored_keys(database_url)].count(True) == 1
    assert keys("revoke", get_key_id(key)) == (0, "", f"Key {get_key_id(key)} was already revoked.\n")
    # Whoever gives the whole key does not see its secret again.
    assert keys("revoke", other) == (0, "", f"Key {get_key_id(other)} is revoked.\n")
    code, printed, complaint = keys("revoke", "nobody")
    assert (code, printed) == (1, "")
    assert complaint == "undercurrent: There is no key 'nobody'; `undercurrent keys list` lists the keys\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--role"),
        (["--role", "boss"], "admin"),
        (["--role", "admin", "--rate-limit", "0"], "'0' is not a number of requests per second"),
        (["--role", "admin", "--rate-limit", "nan"], "'nan' is not"),
        (["--role", "admin", "--rate-limit", "inf"], "0.001 to 1000000"),
        (["--role", "admin", "--rate-limit", "many"], "'many' is not"),
        (["--role", "admin", "--campaign", "No Such"], "'No Such' is not a campaign name"),
        (["--role", "admin", "--campaign", ""], "'' is not a campaign name"),
        (["--role", "admin", "--name", "x" * 101], "at most 100"),
        (["--role", "admin", "--name", "a\nb"], "printable"),
    ],
)
def test_a_bad_key_is_refused_by_name(called, tmp_path, arguments, named):
    code, printed, complaint = called("keys", "create", *arguments)
    assert (code, printed) == (2, "")
    assert named in complaint
    assert list(tmp_path.iterdir()) == []


def test_the_first_key_may_come_before_the_first_start(called, old_database, tmp_path):
    assert called("keys", "create", "--role", "admin", "--database-url", old_database)[0] == 0
    assert called("keys", "create", "--role", "admin")[0] == 0
    assert len(stored_keys(f"sqlite:///{tmp_path}/undercurrent.db")) == 1


@only_postgresql
def test_keys_need_the_current_schema(called, old_database):
    for action in (["create", "--role", "admin"], ["list"], ["revoke", "x"]):
        code, printed, complaint = called("keys", *action, "--database-url", old_database)
        assert (code, printed) == (1, "")
        assert named_command(complaint)[0] == "migrate"


def test_without_a_key_serve_stays_on_this_machine(called, database_url, taken):
    """Whatever --host says; and the command it names opens it."""
    serve = ("serve", "--host", "0.0.0.0", "--port", taken, "--database-url", database_url)
    code, _, complaint = called(*serve)
    warning, failure = complaint.splitlines()
    assert code == 1
    assert "no keys" in warning
    assert "listens on 127.0.0.1 only, not on 0.0.0.0" in warning
    assert f"cannot listen on 127.0.0.1 port {taken}" in failure
    words = shlex.split(warning.partition("start again: ")[2])
    assert called(*words[1:])[0] == 0
    key_id = stored_keys(database_url)[0].id
    assert called(*serve)[2].startswith(f"undercurrent: cannot listen on 0.0.0.0 port {taken}")
    # A revoked key is still one: the service asks for keys, so everyone may knock.
    called("keys", "revoke", key_id, "--database-url", database_url)
    assert called(*serve)[2].startswith(f"undercurrent: cannot listen on 0.0.0.0 port {taken}")


@pytest.mark.parametrize(
    ("host", "instead"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("192.0.2.1", "127.0.0.1"),
        ("::", "::1"),
        ("2001:db8::1", "::1"),
        ("::1", "::1"),
        ("127.3.2.1", "127.3.2.1"),
        ("no.such.host.invalid", "no.such.host.invalid"),  # nobody can listen there, and that is what is said
    ],
)
def test_where_serve_listens_without_a_key(host, instead):
    assert choose_host(host) == instead


# --- config-check -------------------------------------------------------------------------------------------------


def test_config_check_fills_in_every_default(called, tmp_path):
    (tmp_path / "good.json").write_text(json.dumps(CONFIG | {"seed": 3}), encoding="utf-8")
    code, printed, complaint = called("config-check", "good.json")
    assert (code, complaint) == (0, "")
    assert CampaignConfig.model_validate_json(printed) == CampaignConfig(**CONFIG, seed=3)
    assert json.loads(printed).keys() == set(CampaignConfig.model_fields)


def test_config_check_reads_standard_input(called, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(CONFIG)))
    code, printed, _ = called("config-check", "-")
    assert (code, json.loads(printed)["name"]) == (0, "spring")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (json.dumps(CONFIG | {"actions": ["none"], "stage_length": 0}).encode(), ["actions", "stage_length"]),
        (json.dumps(CONFIG | {"stage_lenght": 3}).encode(), ["stage_lenght", "stage_length"]),
        (b"{", ["JSON"]),
        (b"[]", ["object"]),
        (b"\xff\xfe\x00", ["bad.json is not UTF-8"]),
    ],
)
def test_config_check_names_what_is_wrong(called, tmp_path, text, named):
    (tmp_path / "bad.json").write_bytes(text)
    code, printed, complaint = called("config-check", "bad.json")
    assert (code, printed) == (1, "")
    assert all(word in complaint for word in named), complaint
    assert "Traceback" not in complaint


@pytest.mark.parametrize("file", ["missing.json", "."])
def test_config_check_of_what_cannot_be_read(called, file):
    code, printed, complaint = called("config-check", file)
    assert (code, printed) == (1, "")
    assert complaint.startswith(f"undercurrent: cannot read {file}: ")


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
}


def serve_flags():
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {option for action in commands.choices["serve"]._actions for option in action.option_strings}


def test_every_setting_is_a_flag_and_a_variable():
    """Its row in the README is checked in tests/test_project.py."""
    variables_only = {"webhook_secret"}  # others can read command lines
    assert set(VALUES) == set(Settings.model_fields) - variables_only == set(SETTINGS)
    assert serve_flags() - {"-h", "--help"} == {f"--{name.replace('_', '-')}" for name in SETTINGS}
    base = {"database_url": "postgresql://localhost/x"}  # with it any number of workers is allowed
    for name, (text, value) in VALUES.items():
        assert getattr(Settings.load({}, base | {name: text}), name) == value
        other = {PREFIX + key.upper(): known for key, known in (base | {name: text}).items()}
        assert getattr(Settings.load(other, {}), name) == value
        assert PREFIX + name.upper() in SETTINGS[name]
        assert str(Settings.model_fields[name].default) in SETTINGS[name]


def test_no_complaint_about_an_address_shows_its_password():
    with pytest.raises(SettingsError) as refused:
        Settings.load({"UNDERCURRENT_DATABASE_URL": "mysql://user:swordfish@host/name"}, {})
    assert "UNDERCURRENT_DATABASE_URL" in str(refused.value)
    assert "swordfish" not in str(refused.value)


# --- kernels ------------------------------------------------------------------------------------------------------

COMPILED = """
import json, tempfile
from numba.core.dispatcher import Dispatcher
from policy import describe, kernels
from service.engine.operations import ReadState
from service.storage.schema import upgrade
from service.storage.store import Store
from service.engine.warm_up import warm_up
from tests.policy import make_golden
from tests.service.playing import BEGIN, CONFIGS, Direct, Script

def signatures():
    return {name: len(found.signatures) for name, found in vars(kernels).items() if isinstance(found, Dispatcher)}

class Clock:
    now = BEGIN
    def __call__(self):
        return self.now

assert sum(signatures().values()) == 0, "something was compiled when it was imported"
warm_up()
before, clock, url = signatures(), Clock(), f"sqlite:///{tempfile.mkdtemp()}/x.db"
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
(described,) = worker.process(ReadState("golden-trace"))
describe(*described)
print(json.dumps([before, signatures()]))
"""


@pytest.mark.slow
def test_no_request_compiles_a_kernel():
    """Kernels are compiled at set-up or start: after `warm_up` campaigns of every kind need no other signature."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(Path.home())}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert sum(before.values()) > 20
    assert {name: count for name, count in after.items() if count != before[name]} == {}
