"""PostgreSQL's hot path: values pass through libpq unchanged, errors are raised, and fibers wait concurrently."""

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


def query(tx, sql, *values):
    ((row,),) = tx._channel.query([(sql, values)])
    return row


VALUES = [
    ("text", b"bytes", 1, 0.1, True, ["a"], [1]),
    ("", b"", 0, -0.0, False, [], []),
    ('"{}\\,', bytes(range(256)), -(2**63), 5e-324, True, ['"', "\\", "{,}", "NULL", " ", ""], [2**63 - 1, -1]),
    ("ü€𝄞", b"\x00", 2**62, 1.7976931348623157e308, False, ["ü€𝄞", "a'b", "%s", "$1"], list(range(3_000))),
    (None, None, None, None, None, None, None),
]


def test_values_come_back_unchanged(store):
    with store.writing() as tx:
        for values in VALUES:
            assert query(tx, KINDS, *values) == values
        assert math.copysign(1, query(tx, "SELECT %s::FLOAT8", -0.0)[0]) == -1
    for kind, value in (("TEXT", "a\x00b"), ("TEXT[]", ["a\x00b"])):  # refused, not truncated
        with pytest.raises(UnavailableError), store.writing() as tx:
            query(tx, f"SELECT %s::{kind}", value)
    with store.writing() as tx:
        assert query(tx, "SELECT %s::TEXT", "ab") == ("ab",)


def test_a_failure_undoes_what_was_executed_before_it(store):
    """Statements are sent together. Nothing of a failed pipeline remains, and the next transaction is not affected."""
    with store.writing() as tx:
        tx._channel.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY)", [()])

    def execute(statement, value):
        with store.writing() as tx:
            tx._channel.execute("INSERT INTO numbers VALUES (%s)", [(1,)])
            if statement is None:
                raise RuntimeError("ours")
            tx._channel.execute(statement, [(value,)])

    for statement, value in (
        ("INSERT INTO numbers VALUES (%s)", 1),
        ("INSERT INTO nowhere VALUES (%s)", 1),
        ("SELECT 1 / %s::BIGINT", 0),
    ):
        with pytest.raises(UnavailableError):
            execute(statement, value)
    with pytest.raises(RuntimeError, match="ours"):
        execute(None, None)
    with store.writing() as tx:
        assert tx._channel.query([("SELECT count(*) FROM numbers", ())]) == [[(0,)]]
        tx._channel.execute("INSERT INTO numbers VALUES (%s)", [(number,) for number in range(2_000)])
    with store.reading() as tx:
        assert tx._channel.query([("SELECT sum(number) FROM numbers", ())])[0][0][0] == 1_999_000


def test_a_failed_or_ended_transaction_is_not_committed(store):
    """PostgreSQL answers such a COMMIT without an error."""

    def fail_silently():
        with store.writing() as tx, suppress(psycopg.Error):
            query(tx, "SELECT 1 / %s::BIGINT", 0)

    def end_early():
        with store.writing() as tx:
            tx._channel.query([("ROLLBACK", ())])

    for unit in (fail_silently, end_early):
        with pytest.raises(UnavailableError, match="ended before its commit"):
            unit()
    with store.writing() as tx:
        assert query(tx, "SELECT %s::BIGINT", 7) == (7,)


def test_batches_may_be_larger_than_the_sockets_buffer(store):
    """A server that cannot send its answers stops reading: a client that only sends would wait for ever."""
    large = "x" * 1_000_000
    with store.writing() as tx:
        rows = tx._channel.query([("SELECT %s::TEXT", (large,)) for _ in range(40)])
        assert rows == [[(large,)]] * 40


def test_statements_are_prepared_again_on_another_connection(store):
    for _ in range(2):
        with store.writing() as tx:
            assert query(tx, "SELECT %s::BIGINT", 7) == (7,)
        with suppress(UnavailableError), store.writing() as tx:
            query(tx, "SELECT pg_terminate_backend(pg_backend_pid()), %s::BIGINT", 7)
        assert not store.has_spare_connection  # the other connections may be dead too


def test_a_connection_in_use_during_a_disposal_is_closed_afterwards(store):
    """Its pool is gone, so nobody else would close it."""
    with store.writing() as used:
        driver = used.connection.connection.driver_connection
        store._dispose()
        assert query(used, "SELECT %s::BIGINT", 7) == (7,)
    assert driver.closed
    assert not store.has_spare_connection
    with store.writing() as other:
        assert query(other, "SELECT %s::BIGINT", 7) == (7,)
    assert store.has_spare_connection


def test_fibers_wait_concurrently(store):
    """Four transactions sleep in the database at the same time, on the loop's own thread."""
    order: list[str] = []
    with ExitStack() as stack:  # fibers use connections that are already open
        for _ in range(4):
            stack.enter_context(store.writing())

    def work(name, done):
        with store.writing() as tx:
            order.append(f"{name} begins")
            query(tx, "SELECT pg_sleep(0.3)::TEXT, %s::TEXT", name)
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
    assert [entry.split()[1] for entry in order] == ["begins"] * 4 + ["ends"] * 4  # in sequence they would alternate
    assert seconds >= 0.4


def test_idle_writing_connections_are_returned_for_readers(store, monkeypatch):
    """Writers keep up to eight of sixteen connections: the ninth reader would wait in vain."""
    monkeypatch.setattr(service.storage.store, "IDLE_SECONDS", 0.01)
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(store.writing())
    time.sleep(0.02)
    with ExitStack() as stack:
        readers = [stack.enter_context(store.reading()) for _ in range(16)]
        assert {reader.connection.exec_driver_sql("SELECT 1").scalar_one() for reader in readers} == {1}


def test_errors_are_raised_in_the_fiber(store):
    with store.writing():
        pass

    async def run():
        loop, end = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def work():
            try:
                with store.writing() as tx:
                    query(tx, "SELECT 1 / %s::BIGINT", 0)
            except UnavailableError as error:
                end.set_result(error)

        run_in_fiber(loop, work)
        return await asyncio.wait_for(end, 30)

    error = asyncio.run(run())
    assert isinstance(error.__cause__, psycopg.errors.DivisionByZero)


@only_postgresql
def test_lanes_that_wait_for_a_fiber_all_get_their_turn(start):
    """More concurrent campaigns than fibers, and connections that are closed, so that some need a thread instead."""
    worker = start()
    names = [f"c{number}" for number in range(12)]
    variables = [{"name": "risk", "levels": ["low", "high"]}]
    for name in names:
        config = {"name": name, "actions": ["none", "call"], "variables": variables}
        assert worker.client.post("/campaigns", json=config).status_code == 201

    def decide(number):
        body = {"campaign": names[number % 12], "decision_id": str(number), "context": {"risk": "low"}}
        if number % 50 == 7:
            worker.service.store._dispose()  # the next requests need a thread
        return worker.client.post("/decide", json=body).status_code

    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(decide, range(600))) == {200}
    states = [worker.client.get(f"/campaigns/{name}").json() for name in names]
    assert [state["round"] for state in states] == [50] * 12


@only_postgresql
def test_a_fiber_without_a_connection_leaves_the_work_to_a_thread(start, monkeypatch):
    """Opening one would block the event loop."""
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


def test_a_long_fold_is_left_to_a_thread(new_database, clock, monkeypatch):
    """A fiber that folds many rounds of another worker would block the event loop."""
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
            """Decide these rounds; yields those that were decided in a thread."""
            for round in range(first_round, first_round + count):
                in_threads.clear()
                body = {"campaign": "a", "decision_id": str(round), "context": {"risk": "low"}}
                assert good(worker.client.post("/decide", json=body))["round"] == round
                if in_threads:
                    yield round

        assert list(decide(first, 1, 3))[:1] == [1]  # a new campaign is in no worker's memory
        assert list(decide(second, 4, 4))[:1] == [4]
        # However slow the machine is.
        monkeypatch.setattr(Store, "has_spare_connection", property(lambda self: bool(self._kept)))
        assert list(decide(first, 8, 3)) == []  # four behind
        assert list(decide(second, 11, 5)) == []
        assert list(decide(second, 16, 3)) == []
        assert list(decide(first, 19, 3)) == [19]  # eight behind


def test_no_connection_stays_open_after_a_disposal(store, monkeypatch):
    """While others read and write: a connection returned to a disposed pool would stay open for ever."""
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


def test_an_abandoned_transaction_may_end_while_a_connection_is_returned(store):
    """In the same thread, if the garbage collector runs at that moment."""
    abandoned = store.reading()
    abandoned.__enter__()

    def give_back_connection():
        with store._keeping:
            abandoned.__exit__(None, None, None)

    thread = threading.Thread(target=give_back_connection, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
