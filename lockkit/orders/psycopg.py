"""Statements to PostgreSQL past psycopg's cursors, in few messages that take it little time.

BEGIN is sent with the first statement of a transaction, and COMMIT with the last. psycopg's cursors
would send each statement alone, and take longer for that than the server takes to execute it.

A connection that is used again and again has its statements prepared: reading and planning them is
a third of the time that the server takes. Nothing is prepared behind a pooler, whose next
transaction may have another connection to the server, or where psycopg prepares statements itself:
it then deallocates all of them now and then. If the server has lost what was prepared (DISCARD
ALL), or cannot use it any more (ALTER TABLE), the first message of a transaction is sent again as
plain text, and the connection goes on without.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.pq.abc import PGresult

IDLE, OPEN, IN_ERROR, COMMAND_OK, TUPLES_OK = 0, 2, 3, 1, 2  # from libpq's enumerations

PREPARED_AFTER = 5
"""The transaction of a connection before which its statements are prepared: that takes as long as
it saves in this many."""

LOCK_MS = 100
"""Milliseconds that preparing waits for a lock on the table."""

LOST = frozenset({"26000", "0A000", "42804", "22003"})
"""The server does not know the prepared statement, or it does not fit a table that was changed: its
result or its parameters have other types, or another range. As plain text it may succeed."""

PREPARED = "_lockkit_prepared"
"""Attribute of a psycopg connection: its ``PreparedStatements``."""

Step = tuple[str, tuple[object, ...]]
"""A statement and its parameters."""


class PreparedStatements:
    """What one connection has prepared."""

    def __init__(self) -> None:
        self._transactions = 0
        self._names: dict[str, str] = {}  #: of statements; empty: none are prepared
        self._begun = False  #: the open transaction began with one, so the server has them

    def names(
        self, connection: Connection[Any], statements: Sequence[str], *, commit: bool
    ) -> dict[str, str]:
        """The names of the statements that the next message may use: the first of a transaction,
        which can be sent again, or the last of one that began so."""
        begun, self._begun = self._begun, False
        if connection.pgconn.transaction_status != IDLE:
            return self._names if begun and commit else {}
        if not connection.autocommit:
            self._transactions += 1
            is_due = self._transactions == PREPARED_AFTER
            if is_due and connection.prepare_threshold is None:
                self._prepare(connection, statements)
        self._begun = bool(self._names)
        return self._names

    def is_lost(self, error: Any) -> bool:
        """Whether it may be the fault of what was prepared, which is given up then."""
        if not self._names or error.sqlstate not in LOST:
            return False
        self._names = {}
        return True

    def _prepare(self, connection: Connection[Any], statements: Sequence[str]) -> None:
        """Behind a pooler, only ask for the process: the pooler has greeted us with another."""
        (pid,) = _run(connection, b"SELECT pg_backend_pid()")
        if pid.status != TUPLES_OK or pid.get_value(0, 0) != b"%d" % connection.pgconn.backend_pid:
            return
        names = {sql: f"lockkit_order_{i}" for i, sql in enumerate(statements)}
        said = [f"PREPARE {name} AS {_numbered(sql)}" for sql, name in names.items()]
        said.insert(0, f"SET LOCAL lock_timeout = {LOCK_MS}")
        if not _failed(_run(connection, ";".join(said).encode())):
            self._names = names


def is_plain(connection: Any) -> bool:
    """Whether ``send`` may be used: psycopg 3, UTF-8, no pipeline, no READ ONLY or DEFERRABLE."""
    pgconn = getattr(connection, "pgconn", None)
    if pgconn is None or pgconn.pipeline_status:
        return False
    if pgconn.parameter_status(b"client_encoding") != b"UTF8":
        return False
    if pgconn.transaction_status != IDLE or connection.autocommit:
        return True
    return connection.read_only is connection.deferrable is None


def status_of(connection: Any) -> int | None:
    """The transaction's status, of libpq, also in psycopg2: IN_ERROR if a statement has failed, so
    that PostgreSQL takes only ROLLBACK. None if it is another driver's connection."""
    status: int | None = getattr(getattr(connection, "info", None), "transaction_status", None)
    return status


def send(
    connection: Connection[Any],
    steps: Sequence[Step],
    *,
    commit: bool,
    statements: Sequence[str] = (),
) -> Any:
    """Run the statements; return the rows of the last, or the number of rows that it changed.
    Raises psycopg's errors.

    A transaction is begun if psycopg would begin one. ``commit``: end it, too, unless a statement
    fails. ``statements``: those that are worth preparing.
    """
    pgconn, prepared = connection.pgconn, _prepared(connection)
    is_first = pgconn.transaction_status == IDLE
    names = prepared.names(connection, statements, commit=commit)
    said = [_said(pgconn, step, names) for step in steps]
    if is_first and not connection.autocommit:
        level = connection.isolation_level
        kind = "" if level is None else f" ISOLATION LEVEL {level.name.replace('_', ' ')}"
        said.insert(0, f"BEGIN{kind}".encode())
    if commit:
        said.append(b"COMMIT")
    results = _run(connection, b";".join(said))
    if not (failed := _failed(results)):
        return _read(results[-2 if commit else -1])
    error = _psycopg()[0](failed[0])
    if not (names and prepared.is_lost(error) and is_first):
        raise error
    if pgconn.transaction_status != IDLE:
        _run(connection, b"ROLLBACK")
    return send(connection, steps, commit=commit, statements=statements)


def _prepared(connection: Connection[Any]) -> PreparedStatements:
    prepared: PreparedStatements | None = vars(connection).get(PREPARED)
    if prepared is None:
        prepared = vars(connection)[PREPARED] = PreparedStatements()
    return prepared


def _failed(results: Sequence[PGresult]) -> list[PGresult]:
    return [each for each in results if each.status not in (COMMAND_OK, TUPLES_OK)]


def _said(pgconn: Any, step: Step, names: dict[str, str]) -> bytes:
    """The statement with its parameters in it."""
    sql, values = step
    escape = _psycopg()[2](pgconn).escape_literal
    literals = [b"%d" % v if isinstance(v, int) else escape(_raw(v)) for v in values]
    if sql in names:
        return b"EXECUTE %b(%b)" % (names[sql].encode(), b", ".join(literals))
    return sql.encode() % tuple(literals)


def _numbered(sql: str) -> str:
    """The statement with the parameters $1, $2, … instead of %s."""
    first, *rest = sql.split("%s")
    return first + "".join(f"${i}{part}" for i, part in enumerate(rest, 1))


def _run(connection: Connection[Any], said: bytes) -> Sequence[PGresult]:
    pgconn = connection.pgconn
    with connection.lock:
        pgconn.send_query(said)
        found: Sequence[PGresult] = connection.wait(_psycopg()[1](pgconn))
    return found


@cache
def _psycopg() -> tuple[Any, Any, Any]:
    from psycopg import errors, generators, pq

    return errors.error_from_result, generators.execute, pq.Escaping


def _raw(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else b"\\x" + bytes(value).hex().encode()


def _read(result: PGresult) -> Any:
    if result.status == COMMAND_OK:
        return result.command_tuples or 0
    columns = [(c, _READERS.get(result.ftype(c), bytes.decode)) for c in range(result.nfields)]
    value, rows = result.get_value, range(result.ntuples)
    return [[None if (v := value(r, c)) is None else read(v) for c, read in columns] for r in rows]


_READERS: dict[int, Any] = {
    **dict.fromkeys((20, 21, 23), int),
    17: lambda raw: _psycopg()[2]().unescape_bytea(raw),
}
"""How to read a value, by the type of its column: integers and bytes. Everything else is text."""
