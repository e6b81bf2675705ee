"""Whether the transaction that is open on a connection has changed anything yet.

The database is asked, and only when a lock is asked for: other queries cost nothing. Where it
cannot tell, the answer is yes. PostgreSQL knows of every change and every locked row. SQLite counts
the rows that a connection has changed, since the number that was noted when the request began;
limit: changes of the schema are not counted. MariaDB tells whether a transaction has begun, by
a read as well. What it and MySQL know of changes (``innodb_trx``) is for administrators only, and
may be 0.1 seconds old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.signals import request_started
from django.db import connections

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = [
    "has_written",
    "note_changes",
    "note_each_request",
    "note_what_is_final",
    "user_blocks",
    "why_assumed",
]

NUMBERED = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL"
"""PostgreSQL numbers a transaction at its first change."""

NOTED = "_lockkit_noted"
"""Attribute of a connection: SQLite's own, and how many rows it had changed."""


def has_written(connection: BaseDatabaseWrapper) -> bool:
    """Whether what is open on it would be lost by a ROLLBACK."""
    if connection.vendor == "postgresql":
        return not _is_of_test(connection) and _is_told(connection, NUMBERED)
    if connection.vendor == "sqlite":
        return _has_changed_rows(connection)
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        return _is_told(connection, "SELECT @@in_transaction")
    return True


def why_assumed(connection: BaseDatabaseWrapper) -> str:
    """For people: the answer is not the database's."""
    tells = connection.vendor in {"postgresql", "sqlite"}
    return "" if tells else f" (assumed: {connection.vendor} does not tell)"


def note_each_request() -> None:
    """From now on SQLite's numbers are noted when requests begin. For who uses ``lock_view``."""
    request_started.connect(note_what_is_final, dispatch_uid="lockkit_django.leases.writes")


def note_what_is_final(**_: Any) -> None:
    """What was changed where no transaction is open, such as by authentication, is committed."""
    for connection in connections.all(initialized_only=True):
        if not user_blocks(connection):
            note_changes(connection)


def note_changes(connection: BaseDatabaseWrapper) -> None:
    """What was changed before this moment is not of the transaction that is asked about later."""
    if connection.vendor == "sqlite" and connection.connection is not None:
        changes = connection.connection.total_changes
        vars(connection)[NOTED] = (connection.connection, changes)


def user_blocks(connection: BaseDatabaseWrapper) -> list[Any]:
    """The open ``atomic`` blocks, without those that TestCase has opened around a test."""
    blocks: list[Any] = connection.atomic_blocks
    return [block for block in blocks if not block._from_testcase]


def _is_of_test(connection: BaseDatabaseWrapper) -> bool:
    """Whether the block is a savepoint within a TestCase, whose end makes nothing final."""
    return len(user_blocks(connection)) < len(connection.atomic_blocks)


def _is_told(connection: BaseDatabaseWrapper, query: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return bool(cursor.fetchone()[0])


def _has_changed_rows(connection: BaseDatabaseWrapper) -> bool:
    if not connection.in_atomic_block:
        return bool(connection.connection.in_transaction)  # reads do not begin one
    noted, changes = vars(connection).get(NOTED, (None, 0))
    before = changes if noted is connection.connection else 0  # it was made since
    return bool(connection.connection.total_changes > before)
