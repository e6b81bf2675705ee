"""Writes that a stale holder cannot make: the resource compares fencing tokens.

A lock cannot stop a holder that was paused after its last check and wakes up when somebody else
holds the name. The resource can: it remembers the largest token that has written to it, and
refuses smaller ones in the statement that writes. (M. Kleppmann, "How to do distributed locking",
2016.) The table needs a column for this token: a 64-bit integer, not null, with default 0.

There are two ways, one for a cursor of the DB-API and one for SQLAlchemy::

    fencing.execute(
        cursor, "UPDATE stock SET count = count - ?, {set} WHERE sku = ? AND {unless_stale}",
        (1, sku), lease=lease,
    )
    fencing.run(session, update(Stock).where(Stock.sku == sku).values(count=Stock.count - 1),
                lease=lease, column=Stock.fence)

Guarantee: an earlier holder never overwrites the write of a later holder of the same name, however
long it was paused. Limit: all programs must write these rows through this module, under a lock of
the same name. Tokens of different names cannot be compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from lockkit.model.errors import ConfigurationError, LeaseLost

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Delete, Select, Update
    from sqlalchemy.orm import InstrumentedAttribute, Session, scoped_session
    from sqlalchemy.sql.elements import ColumnElement

    from lockkit.leases.lease import BaseLease
    from lockkit.leases.multi import MultiLease

COLUMN = "fence"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_COMMENTS = re.compile(r"(?:\s|--[^\n]*|/\*.*?\*/|\#[^\n]*)*", re.DOTALL)
_SET = "{set}"
_CHECK = "{unless_stale}"
_FOUND_ROWS = 2
"""MySQL's flag CLIENT.FOUND_ROWS: an UPDATE counts the rows it finds, not those it changes."""


class Cursor(Protocol):
    """The members of a DB-API cursor that ``execute`` uses. Placeholders may be of any style."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, statement: str, parameters: Any, /) -> object: ...


def execute(
    cursor: Cursor,
    statement: str,
    parameters: Sequence[Any] = (),
    *,
    lease: BaseLease | MultiLease,
    column: str = COLUMN,
    rows: int = 1,
) -> None:
    """Run an UPDATE or DELETE that a stale holder cannot make. You commit or roll back.

    The statement must have ``{unless_stale}`` in its WHERE and, unless it begins with DELETE,
    ``{set}`` in its SET. They become ``fence <= 42`` and ``fence = 42``, for the column and the
    token, and need no parameter. Put an OR into parentheses: ``WHERE (a OR b) AND {unless_stale}``.
    Placeholders are those of your driver. ``rows``: the least number of rows that the statement
    must write.

    Raises LeaseLost if the lease is lost, or if the statement writes fewer rows, because a later
    holder has written them or they are not there. Raises ConfigurationError

    - if ``cursor`` is a connection, which does not say how many rows were written;
    - if the driver does not say it, as sqlite3 for a WITH statement;
    - if PyMySQL or mysqlclient counts the rows that were changed, and not those that were found: a
      write that changes nothing would look like one that came too late. Connect with
      ``client_flag=CLIENT.FOUND_ROWS``, and have other drivers of MySQL do the same;
    - if the statement does not have each mark once, or the column is not a plain name;
    - if the lease is on several names, if others may share it (a semaphore's or a reader's), or if
      its store has no fencing tokens.

    Roll back after LeaseLost, and after an unknown number of rows: some may have been written.
    """
    filled = _filled(statement, lease, column)
    if not hasattr(cursor, "rowcount"):  # before it writes, in a transaction of its own perhaps
        raise ConfigurationError(
            f"a {type(cursor).__name__} does not say how many rows were written: use a cursor, as "
            "of connection.cursor(), or fencing.run() for SQLAlchemy"
        )
    if rows > 0 and not _deletes(statement):
        _check_that_found_rows_count(cursor)
    cursor.execute(filled, parameters)
    if cursor.rowcount < 0 < rows:
        raise ConfigurationError(
            f"the driver does not say how many rows were written (rowcount {cursor.rowcount}), so "
            f"a stale holder would not be noticed; roll back, and write it another way: "
            f"{statement!r}"
        )
    if 0 <= cursor.rowcount < rows:
        raise stale(lease)


def run(
    connection: Connection | Session | scoped_session[Any],
    statement: Update | Delete,
    *,
    lease: BaseLease | MultiLease,
    column: ColumnElement[int] | InstrumentedAttribute[int],
) -> int:
    """Execute SQLAlchemy's ``update()`` or ``delete()``; return the number of rows written.

    0 means that no row matched. Raises LeaseLost if the lease is lost, or if a later holder has
    written a matching row. Then roll back, because the statement may have written other rows.
    Raises ConfigurationError for a lease that ``execute`` refuses. One more SELECT, on the
    connection of the statement, looks for rows of later holders. Limit: if a session chooses its
    engine by the statement, and its ``get_bind`` ignores ``bind``, that SELECT runs outside the
    session: without the session's events, and without criteria that they add.
    """
    from sqlalchemy import Update, select

    token = token_of(lease)
    fenced = statement.where(column <= token)
    if isinstance(fenced, Update):
        fenced = fenced.values({column: token})
    written = cast("CursorResult[Any]", connection.execute(fenced))
    left = [] if statement.whereclause is None else [statement.whereclause]
    newer = select(column).select_from(statement.table).where(*left, column > token).limit(1)
    for dialect in ("mysql", "mariadb"):  # otherwise they read an older snapshot
        newer = newer.suffix_with("LOCK IN SHARE MODE", dialect=dialect)
    if _found(connection, newer, written.connection):
        raise stale(lease)
    return written.rowcount


def token_of(lease: BaseLease | MultiLease) -> int:
    """The fencing token for a write. Raises LeaseLost if the lease is lost.

    Raises ConfigurationError if the lease is on several names, if its store has no fencing tokens,
    or if others may share the name, because then no holder is the latest.
    """
    token = lease.fencing_token
    if lease.shared:
        raise ConfigurationError(
            f"the lease on {lease.name!r} is shared, so it cannot fence a write: use a lock that "
            "has one holder"
        )
    lease.check()
    return token


def stale(lease: BaseLease | MultiLease) -> LeaseLost:
    """Make the error for a write that came too late."""
    return LeaseLost(
        f"a write under {lease.name!r} was refused: a later holder than this one "
        f"(fencing token {lease.fencing_token}) has written, or there is no such row; "
        "roll back and start again under a new lease",
        name=lease.name,
    )


def _found(
    connection: Connection | Session | scoped_session[Any],
    rows: Select[Any],
    wrote: Connection,
) -> bool:
    """Whether the SELECT finds a row on the connection that wrote: a session may read elsewhere."""
    from sqlalchemy import Connection

    if not isinstance(connection, Connection):
        try:
            heeded = connection.get_bind(bind=wrote) is wrote
        except TypeError:  # its get_bind takes no ``bind``, as in SQLAlchemy's example of routing
            heeded = False
        if heeded:
            return connection.execute(rows, bind_arguments={"bind": wrote}).first() is not None
    return wrote.execute(rows).first() is not None


def _check_that_found_rows_count(cursor: Cursor) -> None:
    """Raise ConfigurationError if MySQL would count changed rows.

    Only PyMySQL and mysqlclient show the flag. Django and SQLAlchemy set it.
    """
    flags = getattr(getattr(cursor, "connection", None), "client_flag", None)
    if isinstance(flags, int) and not flags & _FOUND_ROWS:
        raise ConfigurationError(
            "this connection counts the rows that a statement has changed, so one that changes "
            "nothing would look like a stale holder's: connect with client_flag=CLIENT.FOUND_ROWS"
        )


def _without_comments(statement: str) -> str:
    """The statement without the comments before its first word."""
    return _COMMENTS.sub("", statement, count=1)


def _deletes(statement: str) -> bool:
    return _without_comments(statement)[:6].upper() == "DELETE"


def _filled(statement: str, lease: BaseLease | MultiLease, column: str) -> str:
    if not _IDENTIFIER.fullmatch(column):
        raise ConfigurationError(f"column is {column!r}: it must be a plain column name")
    words = _without_comments(statement)
    for mark in (_CHECK,) if _deletes(statement) else (_SET, _CHECK):
        if words.count(mark) != 1:
            unless = ", unless it begins with DELETE" if mark == _SET else ""
            raise ConfigurationError(
                f"the fenced statement must have {mark} once{unless}: {statement!r}"
            )
    token = token_of(lease)
    return statement.replace(_SET, f"{column} = {token}").replace(_CHECK, f"{column} <= {token}")
