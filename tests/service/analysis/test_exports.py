"""Exports: all formats contain the same, as of one moment, in bounded memory; an interrupted stream looks broken."""

import csv
import io
import json
import socket
import subprocess
import sys
import tracemalloc
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from service.analysis import export_files
from service.analysis.export_files import FORMATS
from service.api import exports
from service.cli.commands import main
from service.storage.tables import decisions, rewards
from tests.service.answers import allowed_by_field, error_of, good
from tests.service.conftest import Clock, Worker
from tests.service.playing import CONFIGS, Script, eventually, http_post

FIELDS = [
    "round", "decision_id", "decided_at", "at", "mode", "model_version", "action", "propensity", "context",
    "excluded_actions", "belief", "reward", "reward_source", "reward_received_at", "reward_after_round", "erased",
]  # fmt: skip
CLOCK = CONFIGS["clock"] | {"rewards": {"range": [-2, 2], "wait_seconds": 5, "default": 0.25}}
CONTEXT = ["context.season", "context.spend", "context.tenure"]
COLUMNS = [*FIELDS[:8], *CONTEXT, *FIELDS[9:]]
END = b"\r\n0\r\n\r\n"  # of a complete answer
LEVELS = ("y" * 100, "z" * 100)
LONG = {  # with the longest contexts possible, 13 kB, from which it hardly learns
    "name": "long",
    "actions": ["a", "b"],
    "variables": [{"name": f"{i:x>100}", "levels": LEVELS} for i in range(64)],
    "signals": ["x" * 99 + "0"],
    "features": {"shared": ["actions"], "per_regime": []},
}


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    """A short log has several pages and groups."""
    monkeypatch.setattr(export_files, "PAGE", 7)
    monkeypatch.setattr(export_files, "PAGES_PER_GROUP", 3)


def path_of(name):
    return f"/campaigns/{name}/decisions"


def read_parquet(client, name):
    return pq.ParquetFile(pa.BufferReader(client.get(path_of(name), params={"format": "parquet"}).content))


def read(answer: httpx.Response) -> list[dict]:
    """Read any format into the objects of the NDJSON lines."""
    assert answer.status_code == 200, answer.text
    kind = answer.headers["content-type"]
    if kind == "application/x-ndjson":
        return [json.loads(line) for line in answer.text.splitlines()]
    if kind == "text/csv; charset=utf-8":
        return [_from_csv(row) for row in csv.DictReader(io.StringIO(answer.text, newline=""))]
    assert kind == "application/vnd.apache.parquet"
    return [_from_parquet(row) for row in pq.read_table(pa.BufferReader(answer.content)).to_pylist()]


def _from_csv(row: dict) -> dict:
    texts = {"decision_id", "decided_at", "at", "mode", "action", "reward_source", "reward_received_at", CONTEXT[0]}
    return _nest({k: (v or None) if k in texts else json.loads(v) if v else None for k, v in row.items()})


def _from_parquet(row: dict) -> dict:
    for name in ("decided_at", "at", "reward_received_at"):
        row[name] = row[name] and row[name].isoformat(timespec="microseconds").replace("+00:00", "Z")
    return _nest(row)


def _nest(row: dict) -> dict:
    context = {name.removeprefix("context."): row.pop(name) for name in CONTEXT}
    return row | {"context": None if row["erased"] else context}


@pytest.fixture(scope="module")
def script(shared):
    """A campaign with late, lost and default rewards, excluded actions, subjects and times sent by clients."""

    class Still:
        now = 0

    # The service's clock stands still, so `at` may be anything before it.
    config = CLOCK | {"name": "played", "rewards": CONFIGS["waiting"]["rewards"]}
    return Script(config, Still()).create(http_post(shared)).play(http_post(shared), 60)


# --- contents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_every_format_has_what_the_api_says_about_the_decisions(start, clock):
    worker = start()
    script = Script(CLOCK | {"name": "played"}, clock).create(http_post(worker.client))
    script.play(http_post(worker.client), 60)
    with worker.service.store.reading() as tx:
        query = sa.select(rewards.c.round, rewards.c.after_round)
        after_rounds = {row.round: row.after_round for row in tx.connection.execute(query)}
    expected = []
    for made in script.decisions:
        one = good(worker.client.get(f"{path_of('played')}/{made['decision_id']}"))
        reward = one["reward"] or dict.fromkeys(("reward", "source", "received_at"))
        expected.append(
            {name: one[name] for name in FIELDS[:11]}
            | {"reward": reward["reward"], "reward_source": reward["source"]}
            | {"reward_received_at": reward["received_at"], "reward_after_round": after_rounds.get(one["round"])}
            | {"erased": False}
        )
    assert {row["reward_source"] for row in expected} == {None, "client", "default"}
    assert any(row["excluded_actions"] for row in expected)
    for format in FORMATS:
        assert read(worker.client.get(path_of("played"), params={"format": format})) == expected, format
    check_erased(worker, expected)


def check_erased(worker, before):
    """Little is left of an erased decision, and an imported one may contain little."""
    erased = next(row["round"] for row in before if row["reward"] is not None)
    last = before[-1]["round"]
    gone = {"erased": True, "context": None, "subject": None, "request_hash": None}
    imported = {"propensity": 0.0, "mode": "imported", "explanation": "{}"}
    with worker.service.store.writing() as tx:
        tx.connection.execute(sa.update(decisions).where(decisions.c.round == erased).values(gone))
        tx.connection.execute(sa.update(rewards).where(rewards.c.round == erased).values(reward=None, source="erased"))
        tx.connection.execute(sa.update(decisions).where(decisions.c.round == last).values(imported))
    kept = {"round", "decision_id", "decided_at", "at", "mode", "model_version", "action"}
    expected = [
        {name: value if name in kept else None for name, value in row.items()} | {"erased": True}
        if row["round"] == erased
        else row | ({"propensity": None, "mode": "imported", "belief": None} if row["round"] == last else {})
        for row in before
    ]
    for format in FORMATS:
        assert read(worker.client.get(path_of("played"), params={"format": format})) == expected, format


def test_files_have_names_types_and_the_same_columns_without_subjects(shared, script):
    answers = {format: shared.get(path_of("played"), params={"format": format}) for format in FORMATS}
    for format, answer in answers.items():
        assert answer.headers["content-disposition"] == f'attachment; filename="played-decisions.{format}"'
        assert answer.headers["content-type"] == FORMATS[format][0]
    lines, table = shared.get(path_of("played")).text, answers["csv"].text
    assert lines == answers["ndjson"].text  # the default
    assert all([*json.loads(line)] == FIELDS for line in lines.splitlines())
    assert next(csv.reader(io.StringIO(table))) == COLUMNS
    parquet = read_parquet(shared, "played").read()
    assert parquet.column_names == COLUMNS
    assert all("customer" not in text for text in (lines, table, str(parquet.to_pydict())))


def test_a_campaign_without_decisions_has_the_same_columns(shared, script):
    good(shared.post("/campaigns", json=CLOCK | {"name": "empty"}), 201)
    assert shared.get(path_of("empty")).content == b""
    assert shared.get(path_of("empty"), params={"format": "csv"}).text == ",".join(COLUMNS) + "\r\n"
    empty, full = (read_parquet(shared, name) for name in ("empty", "played"))
    assert empty.metadata.num_rows == 0
    assert empty.schema_arrow.equals(full.schema_arrow)
    assert full.metadata.num_row_groups > 2
    types = {field.name: str(field.type) for field in full.schema_arrow}
    assert types == dict.fromkeys(COLUMNS, "string") | {
        **dict.fromkeys(("round", "model_version", "reward_after_round"), "int64"),
        **dict.fromkeys(("propensity", "reward", "context.spend", "context.tenure"), "double"),
        **dict.fromkeys(("decided_at", "at", "reward_received_at"), "timestamp[us, tz=UTC]"),
        "belief": "list<element: double>",
        "excluded_actions": "list<element: string>",
        "erased": "bool",
    }


def test_a_campaign_without_variables(shared):
    config = {"name": "bare", "actions": ["a", "b"], "variables": []}
    good(shared.post("/campaigns", json=config), 201)
    good(shared.post("/decide", json={"campaign": "bare", "decision_id": "one", "context": {}}))
    (line,) = shared.get(path_of("bare")).text.splitlines()
    assert json.loads(line)["context"] == {}
    assert CONTEXT[0] not in shared.get(path_of("bare"), params={"format": "csv"}).text
    table = read_parquet(shared, "bare").read()
    assert table.column_names == [name for name in FIELDS if name != "context"]
    assert table["decision_id"].to_pylist() == ["one"]


# --- parameters -----------------------------------------------------------------------------------------------------


def test_from_and_to_are_half_open(start, clock):
    client = start().client
    good(client.post("/campaigns", json=CLOCK | {"name": "timed"}), 201)
    begun = datetime.fromtimestamp(clock.now / 1_000_000, UTC)
    context = {"season": "spring", "spend": 3, "tenure": 1}
    for minute in range(5):
        for twin in "ab":
            body = {"campaign": "timed", "decision_id": f"{minute}{twin}", "context": context}
            good(client.post("/decide", json=body))
        clock.advance(60)

    def rounds(**query):
        minutes = {name.strip("_"): begun + timedelta(minutes=value) for name, value in query.items()}
        answer = client.get(path_of("timed"), params={name: when.isoformat() for name, when in minutes.items()})
        return [row["round"] for row in read(answer)]

    assert rounds() == [*range(1, 11)] == rounds(to=2) + rounds(from_=2)
    assert rounds(from_=1, to=3) == [3, 4, 5, 6]
    assert rounds(from_=0.5, to=1.5) == [3, 4]
    assert rounds(from_=1 + 1e-6 / 60, to=2) == []
    assert rounds(from_=9) == rounds(to=-9) == rounds(from_=2, to=2) == []
    elsewhere = (begun + timedelta(minutes=4)).astimezone(datetime.fromisoformat("2026-01-01T00:00+05:30").tzinfo)
    answer = client.get(path_of("timed"), params={"from": elsewhere.isoformat()})
    assert [row["round"] for row in read(answer)] == [9, 10]


def test_a_wrong_parameter_is_named(shared, script):
    ask = f"{path_of('played')}?"
    assert allowed_by_field(shared.get(ask + "format=xls"))["format"] == "'ndjson', 'csv' or 'parquet'"
    for field, text in (("from", "2026-10-01T00:00:00"), ("from", "2026-10-01T00:00:00+02:00"), ("to", "")):
        allowed = allowed_by_field(shared.get(f"{ask}{field}={text}"))  # a + that is not %2B is a space
        assert allowed[field].startswith("ISO 8601 with a time zone")
    swapped = shared.get(ask + "from=2026-10-02T00:00:00Z&to=2026-10-01T00:00:00Z")
    assert allowed_by_field(swapped) == {"to": "2026-10-02T00:00:00+00:00 or later"}


# --- streams --------------------------------------------------------------------------------------------------------


def decide_long(worker, rounds):
    contexts = [{variable["name"]: level for variable in LONG["variables"]} for level in LEVELS]
    items = [{"decision_id": uuid4().hex, "context": contexts[i % 2]} for i in range(rounds)]
    for start in range(0, rounds, 200):
        body = {"campaign": "long", "items": items[start : start + 200]}
        good(worker.client.post("/decide/batch", json=body))


@contextmanager
def stall(worker, format="ndjson"):
    """A client that sends a request and reads nothing yet."""
    port = httpx.URL(worker.url).port
    with socket.create_connection(("127.0.0.1", port)) as client:
        request = f"GET {path_of('long')}?format={format} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        client.sendall(request.encode())
        client.settimeout(30)
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        yield client


def read_rest(client):
    parts = []
    while part := client.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def watch_transactions(worker):
    """Count the connections of threads that are in use from now on."""
    worker.in_use = set()
    sa.event.listen(worker.service.store.engine, "checkout", lambda one, record, proxy: worker.in_use.add(record))
    sa.event.listen(worker.service.store.engine, "checkin", lambda one, record: worker.in_use.discard(record))


def count_transactions(worker):
    return len(worker.in_use)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def streaming(request, new_database):
    """A worker with a log of 15 MB: more than the buffers of a socket hold."""
    worker = Worker(new_database(request.param), Clock())
    good(worker.client.post("/campaigns", json=LONG), 201)
    decide_long(worker, 1_200)
    watch_transactions(worker)
    yield worker
    worker.stop()


def test_a_client_that_goes_away_ends_the_transaction(streaming):
    for format in ("ndjson", "csv"):
        with stall(streaming, format):
            eventually(lambda: count_transactions(streaming) == 1, "its own only")  # keys are read now and then
            decide_long(streaming, 1)  # writers do not wait for it
        eventually(lambda: count_transactions(streaming) == 0, "closed")


def test_a_client_that_reads_nothing_is_dropped(streaming, monkeypatch):
    monkeypatch.setattr(exports, "STALLED_SECONDS", 0.3)
    with stall(streaming) as client:
        eventually(lambda: count_transactions(streaming) == 0, "closed")
        assert not read_rest(client).endswith(END)


def test_an_export_is_consistent(streaming):
    before = read(streaming.client.get(path_of("long")))
    with stall(streaming) as client:
        decide_long(streaming, 30)
        body = {"campaign": "long", "decision_id": before[-1]["decision_id"], "reward": 1.0}
        good(streaming.client.post("/reward", json=body))
        text = read_rest(client)
    assert text.count(b'"round":') == text.count(b'"reward":null') == len(before)
    assert text.endswith(END)
    assert len(read(streaming.client.get(path_of("long")))) == len(before) + 30


def test_the_number_of_exports_is_limited(streaming):
    with ExitStack() as clients:
        for _ in range(exports.MAX_EXPORTS):
            clients.enter_context(stall(streaming))
        answer = streaming.client.get(path_of("long"))
        assert "exports are already running" in error_of(answer, 429)["message"]
        assert answer.headers["retry-after"]
    for _ in range(exports.MAX_EXPORTS + 1):  # a refused one takes no slot
        eventually(lambda: streaming.client.get(path_of("nobody")).status_code == 404, "free again")


def test_an_error_on_the_way_breaks_the_connection(start, clock, caplog):
    """A file that ends too early must not look complete."""
    worker = start()
    post = http_post(worker.client)
    script = Script(CLOCK | {"name": "played"}, clock).create(post).play(post, 60)
    with worker.service.store.writing() as tx:
        tx.connection.execute(sa.update(decisions).where(decisions.c.round == script.round).values(explanation="{"))
    watch_transactions(worker)
    for format in FORMATS:
        with pytest.raises(httpx.RemoteProtocolError, match=r"incomplete|without sending complete"):
            worker.client.get(path_of("played"), params={"format": format})
    eventually(lambda: count_transactions(worker) == 0, "closed")
    messages = [record.message for record in caplog.records if record.name == "undercurrent.request"]
    assert messages == ["request failed"] * 3


KILL = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND state = 'idle in transaction' AND query LIKE '%explanation%'"
)


@pytest.mark.parametrize("streaming", ["postgresql"], indirect=True, scope="module")  # SQLite has no connection to lose
def test_a_database_that_fails_on_the_way_breaks_the_connection(streaming, caplog):
    def kill():
        with streaming.service.store.writing() as tx:
            return tx.connection.execute(KILL).all() == [(True,)]

    with stall(streaming) as client:
        eventually(kill, "waiting for its client")
        assert not read_rest(client).endswith(END)
    eventually(lambda: count_transactions(streaming) == 0, "closed")
    (failed,) = (record for record in caplog.records if record.name == "undercurrent.request")
    assert "The database does not answer" in failed.exc_text
    assert streaming.client.get(path_of("long")).status_code == 200


def test_memory_does_not_grow_with_the_log(direct, monkeypatch):
    """Four times the decisions need the same peak memory in Python and in Arrow."""
    monkeypatch.setattr(export_files, "PAGE", 100)
    worker = direct()
    worker.post("/campaigns", CONFIGS["default"])
    peaks = {format: [] for format in FORMATS}
    for batches in (1, 3):
        for _ in range(batches):
            context = {"season": "spring", "spend": 3.5, "tenure": 1}
            items = [{"decision_id": uuid4().hex, "context": context} for _ in range(1_000)]
            worker.post("/decide/batch", {"campaign": "default", "items": items})
        for format in FORMATS:
            export(worker.store, format)  # the first time loads and compiles
            tracemalloc.start()
            arrow = export(worker.store, format)
            peaks[format].append(arrow + tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    for format, (short, long) in peaks.items():
        assert long < 1.2 * short, format


def export(store, format):
    """Export, and return the most bytes that Arrow held."""
    most = 0
    with store.scanning() as tx:
        config, pages, _ = export_files.open_log(tx, "default", (None, None), 0)
        for _ in FORMATS[format][1](config, pages):
            most = max(most, pa.total_allocated_bytes())
    return most


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_same_file(start, clock, tmp_path, capfdbinary):
    worker = start()
    Script(CLOCK | {"name": "played"}, clock).create(http_post(worker.client)).play(http_post(worker.client), 60)
    clock.advance(60)  # the command reads the real clock, by which all waits are over
    database = ["--database-url", worker.service.store.engine.url.render_as_string(hide_password=False)]
    for format in FORMATS:
        file = tmp_path / f"log.{format}"
        assert main(["export", "played", "--format", format, "--output", str(file), *database]) == 0
        assert file.read_bytes() == worker.client.get(path_of("played"), params={"format": format}).content
    assert {path.suffix for path in tmp_path.iterdir()} == {".ndjson", ".csv", ".parquet"}
    file = tmp_path / "no" / "log.csv"
    assert main(["export", "played", "--output", str(file), *database]) == 1
    assert f"cannot write {file}: No such file".encode() in capfdbinary.readouterr().err
    moment = read(worker.client.get(path_of("played")))[-1]["decided_at"]
    assert main(["export", "played", "--to", moment, *database]) == 0
    assert capfdbinary.readouterr().out == worker.client.get(path_of("played"), params={"to": moment}).content


def test_the_command_reports_errors(database_url, tmp_path, capsys):
    for arguments, message in (
        (["nobody"], "There is no campaign 'nobody'"),
        (["nobody", "--from", "now"], "from: 'now' is not a time with a time zone"),
    ):
        assert main(["export", *arguments, "--database-url", database_url]) == 1
        assert message in capsys.readouterr().err


def test_the_service_starts_without_arrow():
    code = "import sys, service.cli.commands; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
