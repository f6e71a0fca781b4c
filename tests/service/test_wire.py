"""PostgreSQL's hot path: values go through libpq as they are, errors come back, and fibers wait side by side."""

import asyncio
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import psycopg
import pytest
import sqlalchemy as sa
from greenlet import getcurrent

import service.engine.cache
import service.storage.store
from service.base.errors import UnavailableError
from service.engine.lanes import Lanes
from service.storage.fibers import run_in_fiber
from service.storage.store import Store
from tests.service.answers import good
from tests.service.conftest import Worker

pytestmark = pytest.mark.slow  # all need PostgreSQL

only_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
KINDS = "SELECT %s::TEXT, %s::BYTEA, %s::BIGINT, %s::FLOAT8, %s::BOOLEAN, %s::TEXT[], %s::BIGINT[]"


@pytest.fixture
def store(new_database):
    opened = Store(new_database("postgresql"))
    yield opened
    opened.close()


def asked(tx, sql, *values):
    ((row,),) = tx._channel.query([(sql, values)])
    return row


@pytest.mark.parametrize(
    "values",
    [
        ("text", b"bytes", 1, 0.1, True, ["a"], [1]),
        ("", b"", 0, -0.0, False, [], []),
        ('"{}\\,', bytes(range(256)), -(2**63), 5e-324, True, ['"', "\\", "{,}", "NULL", " ", ""], [2**63 - 1, -1]),
        ("ü€𝄞", b"\x00", 2**62, 1.7976931348623157e308, False, ["ü€𝄞", "a'b", "%s", "$1"], list(range(3_000))),
        (None, None, None, None, None, None, None),
    ],
)
def test_values_come_back_as_they_went(store, values):
    with store.writing() as tx:
        assert asked(tx, KINDS, *values) == values
        assert math.copysign(1, asked(tx, "SELECT %s::FLOAT8", -0.0)[0]) == -1


@pytest.mark.parametrize("value", ["a\x00b", ["a\x00b"]])
def test_a_zero_byte_is_refused_and_cuts_nothing_off(store, value):
    kind = "TEXT[]" if isinstance(value, list) else "TEXT"
    with pytest.raises(UnavailableError), store.writing() as tx:
        asked(tx, f"SELECT %s::{kind}", value)
    with store.writing() as tx:
        assert asked(tx, "SELECT %s::TEXT", "ab") == ("ab",)


def test_what_fails_undoes_what_was_told_before_it(store):
    """All that waits goes out together; of a pipeline that broke nothing is left, and the next transaction is whole."""
    with store.writing() as tx:
        tx._channel.execute("CREATE TABLE told (number BIGINT PRIMARY KEY)", [()])

    def tell(statement, value):
        with store.writing() as tx:
            tx._channel.execute("INSERT INTO told VALUES (%s)", [(1,)])
            if statement is None:
                raise RuntimeError("ours")
            tx._channel.execute(statement, [(value,)])

    for statement, value in (
        ("INSERT INTO told VALUES (%s)", 1),
        ("INSERT INTO nowhere VALUES (%s)", 1),
        ("SELECT 1 / %s::BIGINT", 0),
    ):
        with pytest.raises(UnavailableError):
            tell(statement, value)
    with pytest.raises(RuntimeError, match="ours"):
        tell(None, None)
    with store.writing() as tx:
        assert tx._channel.query([("SELECT count(*) FROM told", ())]) == [[(0,)]]
        tx._channel.execute("INSERT INTO told VALUES (%s)", [(number,) for number in range(2_000)])
    with store.reading() as tx:
        assert tx._channel.query([("SELECT sum(number) FROM told", ())])[0][0][0] == 1_999_000


def test_a_transaction_that_failed_or_ended_on_the_way_is_not_committed(store):
    """PostgreSQL answers such a COMMIT without an error."""

    def failed_unseen():
        with store.writing() as tx, suppress(psycopg.Error):
            asked(tx, "SELECT 1 / %s::BIGINT", 0)

    def ended():
        with store.writing() as tx:
            tx._channel.query([("ROLLBACK", ())])

    for unit in (failed_unseen, ended):
        with pytest.raises(UnavailableError, match="ended before its commit"):
            unit()
    with store.writing() as tx:
        assert asked(tx, "SELECT %s::BIGINT", 7) == (7,)


def test_more_than_the_socket_holds_goes_both_ways(store):
    """A server that cannot send its answers does not read on: who only sends would wait for ever."""
    large = "x" * 1_000_000
    with store.writing() as tx:
        rows = tx._channel.query([("SELECT %s::TEXT", (large,)) for _ in range(40)])
        assert rows == [[(large,)]] * 40


def test_statements_are_prepared_again_on_another_connection(store):
    for _ in range(2):
        with store.writing() as tx:
            assert asked(tx, "SELECT %s::BIGINT", 7) == (7,)
        with suppress(UnavailableError), store.writing() as tx:
            asked(tx, "SELECT pg_terminate_backend(pg_backend_pid()), %s::BIGINT", 7)
        assert not store.has_spare_connection  # the other connections may be dead as well


def test_what_is_in_use_when_connections_are_disposed_of_is_closed_after_it(store):
    """It belongs to a pool that nobody will ask for it again."""
    with store.writing() as used:
        driver = used.connection.connection.driver_connection
        store._dispose()
        assert asked(used, "SELECT %s::BIGINT", 7) == (7,)
    assert driver.closed
    assert not store.has_spare_connection
    with store.writing() as other:
        assert asked(other, "SELECT %s::BIGINT", 7) == (7,)
    assert store.has_spare_connection


def test_fibers_wait_side_by_side(store):
    """Each transaction sleeps in the database, all together, on the loop's own thread."""
    order: list[str] = []
    with ExitStack() as stack:  # fibers begin with connections that are there
        for _ in range(4):
            stack.enter_context(store.writing())

    def work(name, done):
        with store.writing() as tx:
            order.append(f"{name} begins")
            asked(tx, "SELECT pg_sleep(0.3)::TEXT, %s::TEXT", name)
            tx.connection.exec_driver_sql("SELECT pg_sleep(0.1)")  # SQLAlchemy waits in the same way
        order.append(f"{name} ends")
        done.set_result(getcurrent())

    async def both():
        loop = asyncio.get_running_loop()
        ends = [loop.create_future() for _ in range(4)]
        begun = loop.time()
        for number, end in enumerate(ends):
            run_in_fiber(loop, lambda number=number, end=end: work(str(number), end))
        fibers = await asyncio.wait_for(asyncio.gather(*ends), 30)
        return fibers, loop.time() - begun

    fibers, seconds = asyncio.run(both())
    assert len(set(fibers)) == 4
    assert [entry.split()[1] for entry in order] == ["begins"] * 4 + ["ends"] * 4  # one by one: in turns
    assert seconds >= 0.4


def test_connections_that_no_longer_write_are_for_readers(store, monkeypatch):
    """A writer keeps some at hand; the pool has sixteen in all, and the ninth reader would wait for one in vain."""
    monkeypatch.setattr(service.storage.store, "IDLE_SECONDS", 0.01)
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(store.writing())
    time.sleep(0.02)
    with ExitStack() as stack:
        readers = [stack.enter_context(store.reading()) for _ in range(16)]
        assert {reader.connection.exec_driver_sql("SELECT 1").scalar_one() for reader in readers} == {1}


def test_a_fiber_sees_its_errors(store):
    with store.writing():
        pass

    async def run():
        loop, end = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def work():
            try:
                with store.writing() as tx:
                    asked(tx, "SELECT 1 / %s::BIGINT", 0)
            except UnavailableError as error:
                end.set_result(error)

        run_in_fiber(loop, work)
        return await asyncio.wait_for(end, 30)

    error = asyncio.run(run())
    assert isinstance(error.__cause__, psycopg.errors.DivisionByZero)


@only_postgresql
def test_lanes_that_wait_for_a_fiber_all_get_their_turn(start):
    """More campaigns at once than fibers; and connections that come to an end, so that some need a thread instead."""
    worker = start()
    names = [f"c{number}" for number in range(12)]
    variables = [{"name": "risk", "levels": ["low", "high"]}]
    for name in names:
        config = {"name": name, "actions": ["none", "call"], "variables": variables}
        assert worker.client.post("/campaigns", json=config).status_code == 201

    def decide(number):
        body = {"campaign": names[number % 12], "decision_id": str(number), "context": {"risk": "low"}}
        if number % 50 == 7:
            worker.service.store._dispose()  # the next ones need a thread
        return worker.client.post("/decide", json=body).status_code

    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(decide, range(600))) == {200}
    states = [worker.client.get(f"/campaigns/{name}").json() for name in names]
    assert [state["round"] for state in states] == [50] * 12


@only_postgresql
def test_a_fiber_that_finds_no_connection_leaves_it_to_a_thread(start, monkeypatch):
    """A thread may have taken the one that was there; waiting for another would hold up everybody."""
    worker = start()
    config = {"name": "a", "actions": ["none", "call"], "variables": [{"name": "risk", "levels": ["low", "high"]}]}
    assert worker.client.post("/campaigns", json=config).status_code == 201
    store = worker.service.store
    monkeypatch.setattr(Store, "has_spare_connection", property(lambda self: True))
    for number in range(20):
        store._dispose()
        body = {"campaign": "a", "decision_id": str(number), "context": {"risk": "low"}}
        answer = worker.client.post("/decide", json=body)
        assert (answer.status_code, answer.json()["round"]) == (200, number + 1)


def test_what_takes_long_to_catch_up_with_is_left_to_a_thread(new_database, clock, monkeypatch):
    """A fiber that folds what another worker has decided holds up all other campaigns of its own."""
    monkeypatch.setattr(service.engine.cache, "MOST_ROUNDS_BEHIND", 5)
    in_threads, left = list[str](), Lanes._work_in_thread

    def work_in_thread(lanes, key, *work):
        in_threads.append(key)
        left(lanes, key, *work)

    monkeypatch.setattr(Lanes, "_work_in_thread", work_in_thread)
    url = new_database("postgresql")
    with ExitStack() as stack:
        first, second = Worker(url, clock), Worker(url, clock)
        for worker in (first, second):
            stack.callback(worker.stop)
        config = {"name": "a", "actions": ["none", "call"], "variables": [{"name": "risk", "levels": ["low", "high"]}]}
        good(first.client.post("/campaigns", json=config), 201)

        def decide(worker, first_round, count):
            """Which of these rounds were decided in a thread."""
            for round in range(first_round, first_round + count):
                in_threads.clear()
                body = {"campaign": "a", "decision_id": str(round), "context": {"risk": "low"}}
                assert good(worker.client.post("/decide", json=body))["round"] == round
                if in_threads:
                    yield round

        assert list(decide(first, 1, 3))[:1] == [1]  # after its creation it is in nobody's memory yet
        assert list(decide(second, 4, 4))[:1] == [4]
        # However slow the machine is.
        monkeypatch.setattr(Store, "has_spare_connection", property(lambda self: bool(self._kept)))
        assert list(decide(first, 8, 3)) == []  # four behind
        assert list(decide(second, 11, 5)) == []
        assert list(decide(second, 16, 3)) == []
        assert list(decide(first, 19, 3)) == [19]  # eight behind


def test_connections_are_closed_whenever_they_are_disposed_of(store, monkeypatch):
    """While others read and write: one that goes back to a pool which is no more would stay open for ever."""
    monkeypatch.setattr(service.storage.store, "IDLE_SECONDS", 0.0)
    opened, over = list[psycopg.Connection](), threading.Event()

    @sa.event.listens_for(store.engine, "connect")
    def remember(connection, _):
        opened.append(connection)

    def use(opening):
        while not over.is_set():
            with opening():
                pass

    with ThreadPoolExecutor(6) as pool:
        users = [pool.submit(use, opening) for opening in (store.reading, store.writing) * 3]
        for _ in range(150):
            time.sleep(0.005)
            store._dispose()
        over.set()
        for user in users:
            user.result()
    store._dispose()
    assert len(opened) > 100
    assert [connection for connection in opened if not connection.closed] == []


def test_an_abandoned_transaction_may_end_while_a_connection_is_given_back(store):
    """In the same thread, when the collector comes at that moment."""
    abandoned = store.reading()
    abandoned.__enter__()

    def give_back_connection():
        with store._keeping:
            abandoned.__exit__(None, None, None)

    thread = threading.Thread(target=give_back_connection, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
