"""Disks and databases that fail a running server: told clearly, nothing half-written, and over when the fault is."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from service.cli.commands import main
from tests.e2e.disks import BOUND, DISKS, limited, read_only
from tests.e2e.load import CAMPAIGN, RISKS, client_of, wait_until
from tests.service.answers import error_of, good

CALLERS = 8
CONTEXT = {"risk": "low", "revenue": 1}
READ = ("", "/mine", "/mine/stages", "/mine/revisions", "/mine/decisions/d7", "/mine/model", "/mine/diagnostics")


def begin(load, url):
    """Callers at work, and a campaign of our own with two models."""
    with client_of(url) as client:
        good(client.post("/campaigns", json=CAMPAIGN | {"name": "mine"}), 201)
        items = [{"decision_id": f"d{i}", "context": CONTEXT} for i in range(25)]
        good(client.post("/decide/batch", json={"campaign": "mine", "items": items}))
    load.start([url], load.create(url, "spring", "autumn"), CALLERS)
    load.wait_for(40)


def every_kind(client):
    """A write of every kind, in an order in which all can succeed."""
    yield client.post("/decide", json={"campaign": "mine", "decision_id": "one", "context": CONTEXT})
    yield client.post("/decide/batch", json={"campaign": "mine", "items": [{"decision_id": "two", "context": CONTEXT}]})
    yield client.post("/reward", json={"campaign": "mine", "decision_id": "d3", "reward": 0.5})
    yield client.post("/campaigns", json=CAMPAIGN | {"name": "new"})
    yield client.patch("/campaigns/mine", json={"propensity_floor": 0.05})
    yield client.post("/campaigns/mine/rollback", json={"model_version": 1})
    yield client.post("/campaigns/mine/actions", json={"action": "letter"})
    yield client.post("/campaigns/mine/archive")


def check_refused(answer, *said):
    """R18, R24: a clear 503 that says what to do, and when to ask again."""
    error = error_of(answer, 503)
    assert (error["code"], answer.headers["retry-after"]) == ("unavailable", "1")
    assert error["message"].startswith(said), error
    assert error["message"].endswith("then try again")  # the database's own words are for the log


def check_reads(client):
    """What needs no write is answered; the process lives, and says that it cannot decide."""
    for path in READ:
        good(client.get(f"/campaigns{path}"))
    good(client.get("/healthz"))
    assert "undercurrent_database_up 1.0" in client.get("/metrics").text


def check_end(load, server, database_url):
    """It goes on without a restart: what was refused can be done, and the log is what was answered (R14, R17)."""
    load.wait_for(40)
    load.stop()
    assert load.unanswered == []
    with client_of(server.url) as client:
        good(client.get("/readyz"))
        for answer in every_kind(client):
            assert answer.is_success, answer.text
    load.retry(server.url)
    assert load.check(database_url) == []
    assert main(["verify", "mine", "--database-url", database_url]) == 0
    assert "Traceback" not in server.complaints()


def check_no_start(server, *said):
    """A message for people, and the exit code of a failure."""
    assert server.exit_code() == 1
    (line,) = server.said().splitlines()
    assert line.startswith(tuple(f"undercurrent: {message}" for message in said)), line


@pytest.fixture
def folder(tmp_path):
    """For a database and nothing else."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


NO_SPACE = ("The disk of the database is full: free some space", "The disk of the database fails, is full or over a")


@pytest.mark.parametrize("kind", DISKS)
def test_a_full_disk(folder, launch, load, kind):
    """It fills up under load, twice; and at two starts, after a clean end and after a crash."""
    with DISKS[kind](folder) as disk:
        server = launch(disk.database_url)
        begin(load, server.url)
        with client_of(server.url) as client:
            for _ in range(2):
                with disk.full(server.pid):
                    load.wait_for_refusals(CALLERS)
                    # What failed may leave pages in the journal, where smaller writes fit. This is the smallest.
                    wait_until(lambda: client.get("/readyz").status_code == 503)
                    for answer in every_kind(client):
                        check_refused(answer, *NO_SPACE)
                    check_refused(client.get("/readyz"), *NO_SPACE)
                    check_reads(client)
                load.wait_for(40)
        check_end(load, server, disk.database_url)
        for refusal in load.refusals:
            check_refused(refusal, *NO_SPACE)
        server.kill()
        with disk.full() as under:
            check_no_start(launch(disk.database_url, under=under), *NO_SPACE)
        assert main(["verify", "spring", "--database-url", disk.database_url]) == 0  # whose end was a clean one
        with disk.full() as under:
            check_no_start(launch(disk.database_url, under=under), *NO_SPACE)


def test_a_read_only_file(folder, launch, load):
    """Who has it open could write on; whoever opens it again, as after any fault, can only read. And at a start."""
    database_url, read_only_told = f"sqlite:///{folder}/undercurrent.db", "The database is read-only: make its file"
    server = launch(database_url, under=BOUND)
    begin(load, server.url)
    with client_of(server.url) as client, read_only(folder):
        with limited(server.pid):
            load.wait_for_refusals(1)  # the fault after which it opens the file again
        load.wait_for_refusals(2 * CALLERS)
        for answer in every_kind(client):
            check_refused(answer, read_only_told)
        check_refused(client.get("/readyz"), read_only_told)
        check_reads(client)
    check_end(load, server, database_url)
    server.terminate()
    assert server.exit_code() == 0
    with read_only(folder):
        check_no_start(launch(database_url, under=BOUND), read_only_told, "The database does not answer: unable to")


# --- models ---------------------------------------------------------------------------------------------------------

LEARNER = CAMPAIGN | {"regimes": 1, "stage_length": 100, "seed": 7}


class Player:
    """The same decisions and rewards for any campaign, in order."""

    def __init__(self, name):
        self.name, self.answers, self._chance = name, [], random.Random(1)

    def play(self, client, rounds):
        self.pay(client, self.decide(client, rounds))

    def pay(self, client, decided):
        paid = [{"decision_id": made["decision_id"], "reward": self._chance.random()} for made in decided]
        good(client.post("/reward/batch", json={"campaign": self.name, "items": paid}))

    def decide(self, client, rounds):
        first = len(self.answers)
        items = [
            {"decision_id": f"d{i}", "context": {"risk": self._chance.choice(RISKS), "revenue": i % 50}}
            for i in range(first, first + rounds)
        ]
        body = {"campaign": self.name, "items": items}
        decided = good(client.post("/decide/batch", json=body))["decisions"]
        self.answers += [{field: made[field] for field in made if field not in UNLIKE} for made in decided]
        return decided


UNLIKE = ("campaign", "decided_at")


@contextmanager
def behind_its_back(database_url):
    """Statements on the database, beside the service."""
    engine = sa.create_engine(sa.make_url(database_url), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield lambda statement, **values: connection.execute(sa.text(statement), values)


def flip(database_url, table, column, campaign):
    """Turn one bit of every blob of a campaign."""
    own = "campaign_id = (SELECT id FROM campaigns WHERE name = :name)"
    with behind_its_back(database_url) as execute:
        rows = execute(f"SELECT round, {column} FROM {table} WHERE {own}", name=campaign).all()
        for round, blob in rows:
            damaged = bytes(blob[:-9]) + bytes([blob[-9] ^ 64]) + bytes(blob[-8:])
            execute(f"UPDATE {table} SET {column} = :b WHERE {own} AND round = :r", b=damaged, name=campaign, r=round)
    return [round for round, _ in rows]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_damaged_models(database_url, launch, capfd):
    """R21: while it runs and while it does not, snapshots and models are damaged: nothing is decided differently."""
    server, hurt, twin = launch(database_url), Player("hurt"), Player("twin")

    def both(change, *arguments):
        with client_of(server.url) as client:
            for player in (hurt, twin):
                change(client, player, *arguments)

    def create(client, player):
        good(client.post("/campaigns", json=LEARNER | {"name": player.name}), 201)

    def roll_back(client, player, version):
        good(client.post(f"/campaigns/{player.name}/rollback", json={"model_version": version}))

    def evaluate(client, player, seen):
        found = good(client.get(f"/campaigns/{player.name}/report", params={"model_version": [2, 7]}))
        seen.append(found["off_policy"]["policies"])

    both(create)
    both(lambda client, player: [player.play(client, 550) for _ in range(2)])
    snapshot = "SELECT 1 FROM snapshots, campaigns WHERE id = campaign_id AND name = 'hurt'"
    with behind_its_back(database_url) as execute:
        wait_until(lambda: execute(snapshot).all())
    assert flip(database_url, "snapshots", "state", "hurt")
    both(lambda client, player: player.play(client, 150))
    both(evaluate, seen := [])
    both(roll_back, 5)
    both(lambda client, player: player.play(client, 150))
    server.kill()
    damaged = flip(database_url, "snapshots", "state", "hurt")[-1]
    server = launch(database_url)
    both(lambda client, player: player.play(client, 150))
    both(evaluate, seen)
    both(roll_back, 8)
    both(lambda client, player: player.play(client, 150))
    assert hurt.answers == twin.answers
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert main(["verify", "twin", "--database-url", database_url]) == 0
    assert main(["verify", "hurt", "--database-url", database_url]) == 1
    assert f"hurt: snapshot of round {damaged}: " in capfd.readouterr().err
    assert flip(database_url, "models", "theta", "twin")
    with client_of(server.url) as client:
        error = error_of(client.post("/campaigns/twin/rollback", json={"model_version": 3}), 409)
        assert "`undercurrent verify twin`" in error["message"]
        twin.play(client, 150)
        hurt.play(client, 150)
    assert hurt.answers == twin.answers
    assert main(["verify", "twin", "--database-url", database_url]) == 1
    assert "twin: model 3: its coefficients" in capfd.readouterr().err
    assert "Traceback" not in server.complaints()


# --- PostgreSQL -----------------------------------------------------------------------------------------------------

HELD_UP = (  # whoever finishes a job waits for us
    "CREATE FUNCTION held_up() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$",
    "CREATE TRIGGER held_up BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION held_up()",
)


def test_a_worker_dies_with_a_job(new_database, launch):
    """R16: another takes it over when its lease is up, and the log folds as if it had been the first one's."""
    database_url = new_database("postgresql")
    server, player = launch(database_url), Player("spring")
    with behind_its_back(database_url) as execute:
        for statement in (*HELD_UP, "SELECT pg_advisory_lock(1)"):
            execute(statement)
        with client_of(server.url) as client:
            good(client.post("/campaigns", json=CAMPAIGN | {"name": "spring"}), 201)
            for decided in [player.decide(client, 940) for _ in range(4)]:
                player.pay(client, decided)
            player.decide(client, 50)  # now there are rewards: a re-estimation is due, and it is large
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
        with client_of(server.url) as client:
            player.play(client, 50)
        assert execute("SELECT status FROM jobs ORDER BY input_round LIMIT 1").scalar() == "published"
    assert main(["verify", "--database-url", database_url]) == 0
    assert "Traceback" not in server.complaints()


OURS = "datname = current_database() AND application_name = 'undercurrent'"


class Faulty:
    """A campaign, and a PostgreSQL that can be made to fail it."""

    def __init__(self, database_url, client, execute):
        self.client, self.execute, self._url = client, execute, sa.make_url(database_url)
        self._decided = 0
        good(client.post("/campaigns", json=CAMPAIGN | {"name": "mine"}), 201)

    def decide(self):
        body = {"campaign": "mine", "decision_id": f"d{self._decided}", "context": CONTEXT}
        return self.client.post("/decide", json=body)

    def refused(self, said):
        """The answer to a decision that cannot be made, as soon as that is why."""
        wait_until(lambda: said in self.decide().text)
        answer = self.decide()
        assert (error_of(answer, 503)["code"], answer.headers["retry-after"]) == ("unavailable", "1")
        return answer

    @contextmanager
    def setting(self, name, value):
        """A setting of the database, for all who connect from now on, and everybody has to; later, who likes to."""
        alter = f'ALTER DATABASE "{self._url.database}"'
        self.execute(f"{alter} SET {name} = {value}")
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")
        try:
            yield
        finally:
            self.execute(f"{alter} RESET {name}")

    @contextmanager
    def locked(self):
        """Somebody else has the campaign's row for as long as it takes."""
        engine = sa.create_engine(self._url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.text("SELECT 1 FROM live FOR UPDATE"))
            yield

    def check_over(self):
        """It goes on without a restart; what was refused is decided now, and once (R17)."""
        wait_until(lambda: self.client.get("/readyz").status_code == 200)
        for _ in range(3):
            wait_until(lambda: self.decide().status_code == 200)
            self._decided += 1
            assert good(self.client.get("/campaigns/mine"))["round"] == self._decided


def test_a_postgresql_that_refuses(new_database, launch, subtests):
    """R18: a standby, a time-out, a connection lost in the middle: 503 each time, and over when that is."""
    database_url = new_database("postgresql")
    server = launch(database_url)
    with behind_its_back(database_url) as execute, client_of(server.url) as client:
        faulty = Faulty(database_url, client, execute)
        faulty.check_over()
        with subtests.test("a standby, as after a failover"):
            with faulty.setting("default_transaction_read_only", "on"):
                told = "The database is read-only, as a standby is"
                check_refused(faulty.refused("read-only"), told)
                check_refused(client.get("/readyz"), told)
                good(client.get("/campaigns/mine"))
                good(client.get("/campaigns/mine/model"))
            faulty.check_over()
        with subtests.test("a statement that waits for too long"):
            with faulty.setting("statement_timeout", "'200ms'"), faulty.locked():
                faulty.refused("The database does not answer; the service's log says why")
                wait_until(lambda: "statement timeout" in server.said())
            faulty.check_over()
        with subtests.test("a connection lost in a transaction"):
            waiting = f"SELECT pid FROM pg_stat_activity WHERE {OURS} AND wait_event_type = 'Lock'"
            with ThreadPoolExecutor(1) as pool, faulty.locked():
                answer = pool.submit(faulty.decide)
                wait_until(lambda: execute(waiting).all())
                execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS them")
                assert (error_of(answer.result(), 503)["code"]) == "unavailable"
            faulty.check_over()
    assert main(["verify", "--database-url", database_url]) == 0
    assert "Traceback" not in server.complaints()
