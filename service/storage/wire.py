"""PostgreSQL's hot path: statements go to libpq in one batch, with one wait.

A transaction of one decision has five statements. The driver's cursors and pipelines would spend more time on them than
the database does: they inspect every parameter's type and wait after each step. Here the statements are prepared, so
the server knows the types.
"""

import re
from collections.abc import Iterable, MutableMapping, Sequence
from itertools import count
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.pq.abc import PGresult
from psycopg.waiting import Wait

from service.storage.fibers import wait_for

Rows = list[tuple[Any, ...]]
PREPARED = "undercurrent.prepared"  # key in a connection's info: names of its prepared statements, by their text
BINARY, TEXT = pq.Format.BINARY, pq.Format.TEXT
FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_numbers = count(1)  # no name is used twice: a failed preparation may have left it behind


class Wire:
    """One transaction on one connection. What it executes is sent with the next query, or with the commit."""

    def __init__(self, driver: psycopg.Connection[Any], kept: MutableMapping[str, Any]) -> None:
        self._pg = driver.pgconn
        self._rows = Transformer(driver)
        self._names: dict[str, bytes] = kept.setdefault(PREPARED, {})
        self._waiting: list[tuple[str, Sequence[Any]]] = []
        self._lost = False  # the connection is unusable

    def begin(self) -> None:
        self._waiting.append(("BEGIN", ()))

    def query(self, queries: Iterable[tuple[str, Sequence[Any]]]) -> list[Rows]:
        """The answers to some queries, sent after everything that waits."""
        before = len(self._waiting)
        self._waiting += queries
        return self._send()[before:]

    def execute(self, sql: str, rows: Sequence[Sequence[Any]]) -> int | None:
        """Queue a statement for each of the rows; how many it changes is not known yet."""
        self._waiting += [(sql, row) for row in rows]
        return None

    def flush(self) -> None:
        """Send what waits."""
        if self._waiting:
            self._send()

    def commit(self) -> None:
        """Commit, unless a statement fails. PostgreSQL turns COMMIT of a failed transaction into a silent rollback."""
        begins = self._waiting and self._waiting[0][0] == "BEGIN"
        if not begins and self._pg.transaction_status != pq.TransactionStatus.INTRANS:
            raise psycopg.OperationalError("the transaction has ended before its commit")
        self._waiting.append(("COMMIT", ()))
        self._send()

    def roll_back(self) -> None:
        self._waiting.clear()  # not even sent
        if not self._lost and self._pg.transaction_status != pq.TransactionStatus.IDLE:
            self._waiting.append(("ROLLBACK", ()))
            self._send()

    def close(self) -> None:
        """Nothing is held."""

    def _send(self) -> list[Rows]:
        """Send what waits in one batch, and wait for all of it; raises the first error."""
        statements, self._waiting = [(sql, _encode(values)) for sql, values in self._waiting], []
        new: dict[str, bytes] = {}
        is_query: list[bool] = []  # otherwise a preparation
        self._lost = True  # until everything is received: answers to this batch would be taken for later ones
        self._pg.enter_pipeline_mode()
        for sql, values in statements:
            name = self._names.get(sql) or new.get(sql)
            if name is None:
                name = new[sql] = b"undercurrent_%d" % next(_numbers)
                self._pg.send_prepare(name, _number_placeholders(sql))
                is_query.append(False)
            self._pg.send_query_prepared(name, *values, TEXT)
            is_query.append(True)
        self._pg.pipeline_sync()
        results, failure = self._receive()
        self._pg.exit_pipeline_mode()
        self._lost = False
        if failure is not None:
            raise failure
        self._names |= new
        return [self._read(result) for result, has_rows in zip(results, is_query, strict=True) if has_rows]

    def _receive(self) -> tuple[list[PGresult], psycopg.Error | None]:
        """Receive a result for each statement, up to the one that failed."""
        pg = self._pg
        results, failure = list[PGresult](), None
        while pg.flush():  # reading too: a server that cannot send does not read
            wait_for(pg.socket, Wait.RW)
            pg.consume_input()
        while True:
            while pg.is_busy():
                wait_for(pg.socket, Wait.R)
                pg.consume_input()
            result = pg.get_result()
            if pg.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError(pg.get_error_message())
            if result is None:
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return results, failure
            if result.status in FINE:
                results.append(result)
            elif failure is None:  # the statements after it were not executed
                failure = psycopg.errors.error_from_result(result)

    def _read(self, result: PGresult) -> Rows:
        if not result.ntuples:
            return []
        self._rows.set_pgresult(result)
        return self._rows.load_rows(0, result.ntuples, tuple)


def _number_placeholders(sql: str) -> bytes:
    """Replace the placeholders by those of libpq."""
    numbers = count(1)
    return re.sub("%s", lambda _: f"${next(numbers)}", sql).encode()


def _encode(values: Sequence[Any]) -> tuple[list[bytes | None], list[int]]:
    """Encode parameters, with their formats. Text is sent as binary, with its length, so no character can end it."""
    made: list[bytes | None] = []
    formats: list[int] = [TEXT] * len(values)
    for place, value in enumerate(values):
        kind = value.__class__
        if value is None:
            made.append(None)
        elif kind is str:
            made.append(value.encode())
            formats[place] = BINARY
        elif kind is bytes:
            made.append(value)
            formats[place] = BINARY
        elif kind is bool:
            made.append(b"t" if value else b"f")
        elif kind is list:
            made.append(_encode_array(value))
        elif isinstance(value, int):
            made.append(b"%d" % value)
        else:
            made.append(repr(float(value)).encode())
    return made, formats


def _encode_array(values: Sequence[str | int]) -> bytes:
    """Encode an array as PostgreSQL reads it; in quotes only two characters are special."""
    text = ",".join(
        '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else str(value)
        for value in values
    )
    if "\x00" in text:
        raise psycopg.DataError("PostgreSQL's text has no zero byte")
    return f"{{{text}}}".encode()
