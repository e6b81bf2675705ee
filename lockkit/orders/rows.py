# ruff: noqa: S608  names are ours, and values are parameters
"""The records of orders in a table of the application's database, in SQL for every framework.

Guarantee: a key exists once. Expiry goes by the clock of the database. A row of a newer release
is not touched, because the meaning of its columns is not known here.

An order begins with the INSERT of its record. If another transaction has inserted the same key
and has not ended, the INSERT waits, by default without limit (PostgreSQL) or for 50 seconds
(MariaDB, MySQL). SQLite has one writer and a limit of its own, the driver's timeout.

With psycopg 3, PostgreSQL gets the statements in as few messages as possible: see ``psycopg``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from lockkit.orders import psycopg
from lockkit.orders.failures import states_of
from lockkit.orders.psycopg import Step
from lockkit.orders.record import (
    MICROSECONDS,
    DuplicateKeyError,
    Record,
    RecordChangedError,
    RecordState,
    StillRunningError,
    dump_headers,
    recorded,
)

TABLE = "lockkit_order"
CHANGED = ("state", "status", "headers", "body")
COLUMNS = ("key", "order_id", "request", "fingerprint", "version", *CHANGED)

_ON_MYSQL = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_CLOCKS = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
    "postgresql": "CAST(date_part('epoch', statement_timestamp()) * 1000000 AS bigint)",
    "mysql": _ON_MYSQL,
    "mariadb": _ON_MYSQL,
}
"""SQL for the present time in microseconds, by the clock of the database; SQLite's is that of its
host. It is constant within a statement, so an index can be used, but advances in a transaction."""

_BOUND = (
    "left(set_config('lock_timeout', left(set_config('lockkit.before', "
    "current_setting('lock_timeout'), true), 0) || %s, true), 0)"
)
_UNBOUND = "RETURNING set_config('lock_timeout', current_setting('lockkit.before'), true)"
"""For PostgreSQL: an empty text which, when it is computed, limits the waits of its statement, and
a clause that restores the old limit. Separate statements would add half the time of an INSERT."""

MOST_MS = 2**31 - 1
LEAST_MS = 100  # with less, PostgreSQL may give up on a free key: a table grows under a lock
LOCK_NOT_AVAILABLE, DIVISION_BY_ZERO = "55P03", "22012"
LOCK_WAIT_TIMEOUT, DEADLOCK, RUNNING = 1205, 1213, str(RecordState.RUNNING)


class Database(Protocol):
    """One connection of the application. The adapter translates the errors of its driver."""

    @property
    def vendor(self) -> str:
        """The kind of database, as Django and SQLAlchemy call it: "postgresql", …"""

    def run(self, *steps: Step, commit: bool = False) -> Any:
        """Run statements in this order, in one message if possible. Returns the rows of the last,
        or the number of rows that it changed. ``%s`` is a parameter.

        ``commit``: these are the last statements of a transaction, so COMMIT may be sent with them.
        Whether or not it was sent, the adapter commits afterwards.
        """


class _Statements(NamedTuple):
    """The statements about one record, in the dialect of one database."""

    find: str
    insert: str
    expired: str  #: delete the record if it is expired
    update: str
    finish: str  #: on PostgreSQL, the update that is sent with COMMIT
    forget: str


@lru_cache(maxsize=16)
def _statements(vendor: str, now: str) -> _Statements:
    of_key, names = f"WHERE {quoted(vendor, 'key')} = %s", [quoted(vendor, n) for n in COLUMNS]
    columns, values = ", ".join(names), marks(COLUMNS)
    into, life = f"INSERT INTO {TABLE} ({columns}, created, expires) VALUES", f"{now}, {now} + %s"
    changes = ", ".join(f"{name} = %s" for name in CHANGED)
    update = f"UPDATE {TABLE} SET {changes} {of_key} AND state = %s"
    insert, expired, finish = f"{into} ({values}, {life})", f"{of_key} AND expires <= {now}", ""
    if vendor == "postgresql":
        insert = f"{into} ({_BOUND} || {values}, {life}) {_UNBOUND}"
        changes = ", ".join(f"{name} = excluded.{name}" for name in CHANGED)
        mine = f"CASE {TABLE}.state WHEN '{RUNNING}' THEN {TABLE}.created ELSE 0 END"
        finish = f"{into} (%s, '', '', '', 0, {marks(CHANGED)}, 0, 0) ON CONFLICT ({names[0]}) DO "
        finish += f"UPDATE SET {changes}, created = {mine} RETURNING 1 / created"  # see update()
        expired = f"WHERE ctid IN (SELECT ctid FROM {TABLE} {expired} FOR UPDATE SKIP LOCKED)"
    return _Statements(
        f"SELECT {columns}, expires, {now} FROM {TABLE} {of_key}",
        insert,
        f"DELETE FROM {TABLE} {expired}",
        update,
        finish,
        f"DELETE FROM {TABLE} {of_key}",
    )


def _statements_of(database: Database) -> _Statements:
    return _statements(database.vendor, clock_of(database.vendor))


def find(database: Database, key: str) -> Record | None:
    """The record, with the time that it has left; None if there is none."""
    rows = database.run((_statements_of(database).find, (key,)))
    return recorded(rows[0]) if rows else None


def insert(database: Database, record: Record, *, replaces: bool, wait: float) -> None:
    """Insert a record; ``replaces``: delete an expired one first. A key that exists is an error.

    Raises StillRunningError after ``wait`` seconds if another transaction has inserted the key and
    has not ended; afterwards the connection's own limit applies again. ``wait`` is at least 0.1
    seconds on PostgreSQL, and whole seconds, at least one, on MariaDB and MySQL. These two report a
    deadlock if several tries waited for one that failed: this is a DuplicateKeyError.

    It must be the first write of its transaction: SQLite's driver begins a transaction only at the
    first write, and a SAVEPOINT before that would be a transaction itself. The transaction must be
    rolled back if this raises.
    """
    said, values = _statements_of(database), _values(record)
    if database.vendor == "postgresql":
        values = (str(min(max(round(wait * 1000), LEAST_MS), MOST_MS)), *values)
    steps = [(said.insert, values)]
    if replaces:  # only an expired row, because another request may have been quicker
        steps.insert(0, (said.expired, (record.key,)))
    try:
        with _bounded(database, wait):
            database.run(*steps)
    except Exception as error:
        states = states_of(error)
        if LOCK_NOT_AVAILABLE in states or LOCK_WAIT_TIMEOUT in states:
            raise StillRunningError from error
        if DEADLOCK in states:  # several waited for a try that failed, and one has the key now
            raise DuplicateKeyError from error
        raise


def update(database: Database, record: Record, was: str = RUNNING, *, commit: bool = False) -> None:
    """Write the end of an order into the row that ``insert`` made. ``commit``: as for ``run``; only
    with the usual ``was``.

    Raises RecordChangedError if the row is gone, or its state is not ``was``. COMMIT may be sent
    along, so the statement itself must fail: ``finish`` divides by zero if it finds no running row.
    """
    said = _statements_of(database)
    step = said.update, (*_answer(record), record.key, was)
    if commit and said.finish:
        step = said.finish, (record.key, *_answer(record))
    try:
        changed = database.run(step, commit=commit)
    except Exception as error:
        if DIVISION_BY_ZERO not in states_of(error):
            raise
        changed = 0
    if not changed:
        raise RecordChangedError


def forget(database: Database, key: str, *, commit: bool = False) -> None:
    """Delete the row of one order. ``commit``: as for ``run``."""
    database.run((_statements_of(database).forget, (key,)), commit=commit)


def quoted(vendor: str, name: str) -> str:
    """The name in quotes: ``key`` is a keyword of MySQL."""
    return f"`{name}`" if vendor in ("mysql", "mariadb") else f'"{name}"'


def marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))


def clock_of(vendor: str) -> str:
    """An SQL expression: microseconds since the epoch, by the clock of the database.

    For a database that lockkit does not know, it is a number from the clock of this host.
    """
    return _CLOCKS.get(vendor) or str(int(time.time() * MICROSECONDS))


def _values(record: Record) -> tuple[object, ...]:
    return *record[:4], record.version, *_answer(record), int(record.left * MICROSECONDS)


def _answer(record: Record) -> tuple[object, ...]:
    answer = record.snapshot
    return str(record.state), answer.status, dump_headers(answer.headers), answer.body


@contextmanager
def _bounded(database: Database, seconds: float) -> Iterator[None]:
    """On MariaDB and MySQL: limit waits in this block. Always undone: others use the connection."""
    if database.vendor not in ("mysql", "mariadb"):
        yield
        return
    name, most = "innodb_lock_wait_timeout", max(int(seconds), 1)
    before = f"COALESCE(@lockkit_wait, @@SESSION.{name})"  # an interrupt may come before the first
    back = (f"SET SESSION {name} = {before}, @lockkit_wait = NULL", ())
    try:
        database.run((f"SET @lockkit_wait = @@SESSION.{name}, SESSION {name} = {most}", ()))
        yield
    except BaseException:
        with suppress(Exception):  # the connection is gone, and the limit with it
            database.run(back)
        raise
    database.run(back)


def send(connection: Any, steps: Sequence[Step], *, commit: bool) -> Any:
    """``psycopg.send``, with the statements of an order that are worth preparing."""
    said = _statements("postgresql", clock_of("postgresql"))
    worth = said.find, said.insert, said.expired, said.finish
    return psycopg.send(connection, steps, commit=commit, statements=worth)
