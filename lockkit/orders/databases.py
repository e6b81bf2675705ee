"""What a database is told besides the queries of its records, by its name in Django and SQLAlchemy.

The claim of an order is the INSERT of its record. Where somebody else has inserted the same key
and has not ended, a server lets it wait, by default without bound (PostgreSQL) or for 50 seconds
(MariaDB, MySQL). SQLite has one writer and a bound of its own, the driver's timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

MICROSECONDS = 1_000_000
"""The unit of the times in the tables."""

_ON_MYSQL = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_CLOCKS = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
    "postgresql": "CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint)",
    "mysql": _ON_MYSQL,
    "mariadb": _ON_MYSQL,
}
"""They stand still within a statement, so that an index of times can be used; in a transaction
they go on. SQLite's is the clock of its host."""

Execute = Callable[[str], Sequence[Any] | None]
"""Runs one statement on the connection that claims, in any state; returns the first row."""

LEAST_MS = 100  # less, and PostgreSQL gives up where nobody has the key: tables grow under a lock
LOCK_NOT_AVAILABLE = "55P03"
LOCK_WAIT_TIMEOUT = 1205


def clock_of(database: str) -> str:
    """An SQL expression: microseconds since the epoch, by the clock of the database.

    Of one that lockkit does not know it is a number, by the clock of this host.
    """
    return _CLOCKS.get(database) or str(int(time.time() * MICROSECONDS))


@contextmanager
def claiming(database: str, execute: Execute, seconds: float) -> Iterator[None]:
    """Inside, no lock is waited for longer than ``seconds``; after it, as before.

    In a transaction that is rolled back if the body raises. PostgreSQL counts 0.1 seconds at
    least, MariaDB and MySQL count whole seconds, one at least.
    """
    bound = {"postgresql": _on_postgresql, "mysql": _on_mysql, "mariadb": _on_mysql}.get(database)
    if bound is None:
        yield
        return
    with bound(execute, seconds):
        yield


@contextmanager
def _on_postgresql(execute: Execute, seconds: float) -> Iterator[None]:
    """For this transaction; a rollback takes it back."""
    most = max(round(seconds * 1000), LEAST_MS)
    row = execute(
        f"SELECT current_setting('lock_timeout'), set_config('lock_timeout', '{most}', true)"
    )
    before = row[0] if row else 0
    yield
    execute(f"SET LOCAL lock_timeout = '{before}'")


@contextmanager
def _on_mysql(execute: Execute, seconds: float) -> Iterator[None]:
    """For this connection, which may serve others later: taken back whatever happens."""
    execute(
        "SET @lockkit_wait = @@SESSION.innodb_lock_wait_timeout, "
        f"SESSION innodb_lock_wait_timeout = {max(int(seconds), 1)}"
    )
    back = "SET SESSION innodb_lock_wait_timeout = @lockkit_wait"
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the connection is gone, and what was set with it
            execute(back)
        raise
    execute(back)


def is_lock_timeout(error: BaseException | None) -> bool:
    """Whether a driver says by this error that a lock was waited for as long as is allowed."""
    if LOCK_NOT_AVAILABLE in (getattr(error, "sqlstate", None), getattr(error, "pgcode", None)):
        return True
    return error is not None and error.args[:1] == (LOCK_WAIT_TIMEOUT,)
