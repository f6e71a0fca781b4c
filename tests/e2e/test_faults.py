"""Disks and databases fail under a running server: it says so clearly, writes nothing by halves, and recovers."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from service.cli.commands import main
from tests.e2e.disks import BOUND, limited, open_disk, read_only
from tests.e2e.load import CAMPAIGN, RISKS, open_client, wait_until
from tests.service.answers import error_of, good

CALLERS = 8
CONTEXT = {"risk": "low", "revenue": 1}
READABLE = ("", "/mine", "/mine/stages", "/mine/revisions", "/mine/decisions/d7", "/mine/model", "/mine/diagnostics")


def start_load(load, url):
    """Start callers, and create a campaign of our own with two models."""
    with open_client(url) as client:
        good(client.post("/campaigns", json=CAMPAIGN | {"name": "mine"}), 201)
        items = [{"decision_id": f"d{i}", "context": CONTEXT} for i in range(25)]
        good(client.post("/decide/batch", json={"campaign": "mine", "items": items}))
    load.start([url], load.create_campaigns(url, "spring", "autumn"), CALLERS)
    load.wait_for_answers(40)


def write_everything(client):
    """A write of every kind, in an order in which all can succeed."""
    yield client.post("/decide", json={"campaign": "mine", "decision_id": "one", "context": CONTEXT})
    yield client.post("/decide/batch", json={"campaign": "mine", "items": [{"decision_id": "two", "context": CONTEXT}]})
    yield client.post("/reward", json={"campaign": "mine", "decision_id": "d3", "reward": 0.5})
    yield client.post("/campaigns", json=CAMPAIGN | {"name": "new"})
    yield client.patch("/campaigns/mine", json={"propensity_floor": 0.05})
    yield client.post("/campaigns/mine/rollback", json={"model_version": 1})
    yield client.post("/campaigns/mine/actions", json={"action": "letter"})
    yield client.post("/campaigns/mine/archive")


def check_refused(answer, *messages):
    """R18, R24: a 503 that says what to do and when to try again."""
    error = error_of(answer, 503)
    assert (error["code"], answer.headers["retry-after"]) == ("unavailable", "1")
    assert error["message"].startswith(messages), error
    assert error["message"].endswith("then try again")  # the database's own message is in the log only


def check_reads(client):
    """Requests that write nothing succeed, and the process is healthy."""
    for path in READABLE:
        good(client.get(f"/campaigns{path}"))
    good(client.get("/healthz"))
    assert "undercurrent_database_up 1.0" in client.get("/metrics").text


def check_recovery(load, server, database_url):
    """R14, R17: without a restart refused requests succeed now, and the log holds what was acknowledged."""
    load.wait_for_answers(40)
    load.stop()
    assert load.unanswered == []
    with open_client(server.url) as client:
        good(client.get("/readyz"))
        for answer in write_everything(client):
            assert answer.is_success, answer.text
    load.repeat_all(server.url)
    assert load.check(database_url) == []
    assert main(["verify", "mine", "--database-url", database_url]) == 0
    assert "Traceback" not in server.read_complaints()


def check_failed_start(server, *messages):
    """One line on stderr, and exit code 1."""
    assert server.wait_for_exit() == 1
    (line,) = server.read_stderr().splitlines()
    assert line.startswith(tuple(f"undercurrent: {message}" for message in messages)), line


@pytest.fixture
def folder(tmp_path):
    """A folder for nothing but a database."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


NO_SPACE = ("The disk of the database is full: free some space", "The disk of the database failed, is full or over its")


def test_a_full_disk(folder, launch, load):
    """The disk fills up under load, and is full at two starts: after a crash and after a repair."""
    database_url = f"sqlite:///{folder}/undercurrent.db"
    with open_disk(folder) as full:
        server = launch(database_url)
        start_load(load, server.url)
        with open_client(server.url) as client:
            for _ in range(2):
                with full(server.pid):
                    load.wait_for_refusals(CALLERS)
                    # A failed write may leave room in the journal for smaller ones. The one of /readyz is the smallest.
                    wait_until(lambda: client.get("/readyz").status_code == 503)
                    for answer in write_everything(client):
                        check_refused(answer, *NO_SPACE)
                    check_refused(client.get("/readyz"), *NO_SPACE)
                    check_reads(client)
                load.wait_for_answers(40)
        check_recovery(load, server, database_url)
        for refusal in load.refusals:
            check_refused(refusal, *NO_SPACE)
        server.kill()
        with full() as under:
            check_failed_start(launch(database_url, under=under), *NO_SPACE)
        assert main(["verify", "spring", "--database-url", database_url]) == 0  # opening the file repairs it
        with full() as under:
            check_failed_start(launch(database_url, under=under), *NO_SPACE)


def test_a_read_only_file(folder, launch, load):
    """The server opens the file again after a fault, and can then only read. It cannot start on such a file."""
    database_url, message = f"sqlite:///{folder}/undercurrent.db", "The database is read-only: make its file"
    server = launch(database_url, under=BOUND)
    start_load(load, server.url)
    with open_client(server.url) as client, read_only(folder):
        with limited(server.pid):
            load.wait_for_refusals(1)  # after this fault the server opens the file again
        load.wait_for_refusals(2 * CALLERS)
        for answer in write_everything(client):
            check_refused(answer, message)
        check_refused(client.get("/readyz"), message)
        check_reads(client)
    check_recovery(load, server, database_url)
    server.terminate()
    assert server.wait_for_exit() == 0
    with read_only(folder):
        check_failed_start(launch(database_url, under=BOUND), message, "The database does not answer: unable to")


# --- models ---------------------------------------------------------------------------------------------------------

LEARNER = CAMPAIGN | {"regimes": 1, "stage_length": 100, "seed": 7}


class Player:
    """Plays the same decisions and rewards on any campaign."""

    def __init__(self, name):
        self.name, self.answers, self._chance = name, [], random.Random(1)

    def play(self, client, rounds):
        self.reward(client, self.decide(client, rounds))

    def reward(self, client, decisions):
        items = [{"decision_id": decision["decision_id"], "reward": self._chance.random()} for decision in decisions]
        good(client.post("/reward/batch", json={"campaign": self.name, "items": items}))

    def decide(self, client, rounds):
        first = len(self.answers)
        items = [
            {"decision_id": f"d{i}", "context": {"risk": self._chance.choice(RISKS), "revenue": i % 50}}
            for i in range(first, first + rounds)
        ]
        body = {"campaign": self.name, "items": items}
        decisions = good(client.post("/decide/batch", json=body))["decisions"]
        self.answers += [decision | {"campaign": "", "decided_at": ""} for decision in decisions]
        return decisions


@contextmanager
def open_database(database_url):
    """Yields a function that executes a statement without the service's knowledge."""
    engine = sa.create_engine(sa.make_url(database_url), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield lambda statement, **values: connection.execute(sa.text(statement), values)


def flip_bits(database_url, table, column, campaign):
    """Flip one bit in every blob of a campaign, and return the rounds of the rows."""
    own = "campaign_id = (SELECT id FROM campaigns WHERE name = :name)"
    with open_database(database_url) as execute:
        rows = execute(f"SELECT round, {column} FROM {table} WHERE {own}", name=campaign).all()
        for round, blob in rows:
            damaged = bytes(blob[:-9]) + bytes([blob[-9] ^ 64]) + bytes(blob[-8:])
            execute(f"UPDATE {table} SET {column} = :b WHERE {own} AND round = :r", b=damaged, name=campaign, r=round)
    return [round for round, _ in rows]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_damaged_models(database_url, launch, capfd):
    """R21: damaged snapshots and models, under a running server and before a start, change no decision."""
    server, hurt, twin = launch(database_url), Player("hurt"), Player("twin")

    def apply_to_both(change, *arguments):
        with open_client(server.url) as client:
            for player in (hurt, twin):
                change(client, player, *arguments)

    def create(client, player):
        good(client.post("/campaigns", json=LEARNER | {"name": player.name}), 201)

    def roll_back(client, player, version):
        good(client.post(f"/campaigns/{player.name}/rollback", json={"model_version": version}))

    def evaluate(client, player, seen):
        report = good(client.get(f"/campaigns/{player.name}/report", params={"model_version": [2, 7]}))
        seen.append(report["off_policy"]["policies"])

    apply_to_both(create)
    apply_to_both(lambda client, player: [player.play(client, 550) for _ in range(2)])
    snapshot = "SELECT 1 FROM snapshots, campaigns WHERE id = campaign_id AND name = 'hurt'"
    with open_database(database_url) as execute:
        wait_until(lambda: execute(snapshot).all())
    assert flip_bits(database_url, "snapshots", "state", "hurt")
    apply_to_both(lambda client, player: player.play(client, 150))
    apply_to_both(evaluate, seen := [])
    apply_to_both(roll_back, 5)
    apply_to_both(lambda client, player: player.play(client, 150))
    server.kill()
    damaged = flip_bits(database_url, "snapshots", "state", "hurt")[-1]
    server = launch(database_url)
    apply_to_both(lambda client, player: player.play(client, 150))
    apply_to_both(evaluate, seen)
    apply_to_both(roll_back, 8)
    apply_to_both(lambda client, player: player.play(client, 150))
    assert hurt.answers == twin.answers
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert main(["verify", "twin", "--database-url", database_url]) == 0
    assert main(["verify", "hurt", "--database-url", database_url]) == 1
    assert f"hurt: snapshot of round {damaged}: " in capfd.readouterr().err
    assert flip_bits(database_url, "models", "theta", "twin")
    with open_client(server.url) as client:
        error = error_of(client.post("/campaigns/twin/rollback", json={"model_version": 3}), 409)
        assert "`undercurrent verify twin`" in error["message"]
        twin.play(client, 150)
        hurt.play(client, 150)
    assert hurt.answers == twin.answers
    assert main(["verify", "twin", "--database-url", database_url]) == 1
    assert "twin: model 3: its coefficients" in capfd.readouterr().err
    assert "Traceback" not in server.read_complaints()


# --- PostgreSQL -----------------------------------------------------------------------------------------------------

BLOCKED_JOBS = (  # a server that finishes a job waits for our lock
    "CREATE FUNCTION block_job() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$",
    "CREATE TRIGGER block_job BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION block_job()",
)


def test_a_worker_dies_with_a_job(new_database, launch):
    """R16: another worker takes the job over when the lease has expired, and `verify` agrees."""
    database_url = new_database("postgresql")
    server, player = launch(database_url), Player("spring")
    with open_database(database_url) as execute:
        for statement in (*BLOCKED_JOBS, "SELECT pg_advisory_lock(1)"):
            execute(statement)
        with open_client(server.url) as client:
            good(client.post("/campaigns", json=CAMPAIGN | {"name": "spring", "regimes": 8}), 201)
            for decisions in [player.decide(client, 940) for _ in range(2)]:
                player.reward(client, decisions)
            player.decide(client, 50)  # starts a re-estimation, which eight regimes make large enough to be a job
        server.kill()
        execute("SELECT pg_advisory_unlock(1)")
        ((owner, status),) = execute("SELECT owner, status FROM jobs").all()
        assert status == "waiting"
        execute("UPDATE jobs SET leased_until = 0")
        server = launch(database_url)
        wait_until(lambda: server.url and execute("SELECT status FROM jobs").scalar() == "done")
        ((taker, attempts),) = execute("SELECT owner, attempts FROM jobs").all()
        assert attempts == 2
        assert taker != owner
        with open_client(server.url) as client:
            player.play(client, 50)
        assert execute("SELECT status FROM jobs ORDER BY input_round LIMIT 1").scalar() == "published"
    assert main(["verify", "--database-url", database_url]) == 0
    assert "Traceback" not in server.read_complaints()


OURS = "datname = current_database() AND application_name = 'undercurrent'"


class FaultyPostgreSQL:
    """A campaign on a PostgreSQL database that fails on command."""

    def __init__(self, database_url, client, execute):
        self.client, self.execute, self._url = client, execute, sa.make_url(database_url)
        self._decided = 0
        good(client.post("/campaigns", json=CAMPAIGN | {"name": "mine"}), 201)

    def decide(self):
        body = {"campaign": "mine", "decision_id": f"d{self._decided}", "context": CONTEXT}
        return self.client.post("/decide", json=body)

    def wait_for_refusal(self, message):
        """Decide until the message is the reason for a refusal, and return such an answer."""
        wait_until(lambda: message in self.decide().text)
        answer = self.decide()
        assert (error_of(answer, 503)["code"], answer.headers["retry-after"]) == ("unavailable", "1")
        return answer

    @contextmanager
    def setting(self, name, value):
        """Change a setting of the database and make the service connect again, so that it applies."""
        alter = f'ALTER DATABASE "{self._url.database}"'
        self.execute(f"{alter} SET {name} = {value}")
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")
        try:
            yield
        finally:
            self.execute(f"{alter} RESET {name}")

    @contextmanager
    def unavailable(self):
        """End all connections and refuse new ones."""
        allow = f'ALTER DATABASE "{self._url.database}" WITH ALLOW_CONNECTIONS'
        with open_database(self._url.set(database="postgres")) as execute:
            execute(f"{allow} false")
            self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")
            try:
                yield
            finally:
                execute(f"{allow} true")

    @contextmanager
    def locked(self):
        """Lock the campaign's row."""
        engine = sa.create_engine(self._url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.text("SELECT 1 FROM live FOR UPDATE"))
            yield

    def change(self):
        """Change the campaign: unlike a decision, that waits for the row's lock."""
        return self.client.patch("/campaigns/mine", json={"alerts": {"rounds": 21}})

    def check_recovery(self):
        """R17: without a restart the refused decision is made now, and once."""
        wait_until(lambda: self.client.get("/readyz").status_code == 200)
        for _ in range(3):
            wait_until(lambda: self.decide().status_code == 200)
            self._decided += 1
            assert good(self.client.get("/campaigns/mine"))["round"] == self._decided


def test_postgresql_faults(new_database, launch, subtests):
    """R18: each fault is a 503, and the service recovers when the fault is over."""
    database_url = new_database("postgresql")
    server = launch(database_url)
    with open_database(database_url) as execute, open_client(server.url) as client:
        faulty = FaultyPostgreSQL(database_url, client, execute)
        faulty.check_recovery()
        with subtests.test("a standby, as after a failover"):
            with faulty.setting("default_transaction_read_only", "on"):
                message = "The database is read-only, perhaps a standby"
                check_refused(faulty.wait_for_refusal("read-only"), message)
                check_refused(client.get("/readyz"), message)
                good(client.get("/campaigns/mine"))
                good(client.get("/campaigns/mine/model"))
            faulty.check_recovery()
        with subtests.test("no connection is accepted"):
            with faulty.unavailable():
                faulty.wait_for_refusal("The database does not answer")
                for path in ("/readyz", "/campaigns/mine"):
                    answer = client.get(path)
                    assert (error_of(answer, 503)["code"], answer.headers["retry-after"]) == ("unavailable", "1")
                good(client.get("/healthz"))
            faulty.check_recovery()
        with subtests.test("a statement that takes too long"):
            with faulty.setting("statement_timeout", "'200ms'"), faulty.locked():
                wait_until(lambda: error_of(faulty.change(), 503) and "statement timeout" in server.read_stderr())
            faulty.check_recovery()
        with subtests.test("a connection lost during a transaction"):
            waiting = f"SELECT pid FROM pg_stat_activity WHERE {OURS} AND wait_event_type = 'Lock'"
            with ThreadPoolExecutor(1) as pool, faulty.locked():
                answer = pool.submit(faulty.change)
                wait_until(lambda: execute(waiting).all())
                execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS waiting")
                assert (error_of(answer.result(), 503)["code"]) == "unavailable"
            faulty.check_recovery()
    assert main(["verify", "--database-url", database_url]) == 0
    assert "Traceback" not in server.read_complaints()
