"""Writes that a stale holder cannot make: the resource compares fencing tokens.

A lock cannot stop a holder that was paused after its last check and wakes up when somebody else
holds the name. The resource can: it remembers the largest token that has written to it, and
refuses smaller ones, in the statement that writes. (M. Kleppmann, "How to do distributed locking",
2016.) The table needs a column for it: 64-bit integer, not null, default 0.

Two ways, for a cursor of the DB-API and for SQLAlchemy::

    fencing.execute(
        cursor, "UPDATE stock SET count = count - ?, {set} WHERE sku = ? AND {unless_stale}",
        (1, sku), lease=lease,
    )
    fencing.run(session, update(Stock).where(Stock.sku == sku).values(count=Stock.count - 1),
                lease=lease, column=Stock.fence)

Guarantee: of two holders of one name, the later one's write is never overwritten by the earlier
one's, however long that was paused. Limit: only for rows that are written through here by all who
write them, and under the same name: tokens of different names do not compare.
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
    from lockkit.leases.multi_lease import ViewLease

__all__ = ["COLUMN", "execute", "run", "stale", "token_of"]

COLUMN = "fence"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_COMMENTS = re.compile(r"(?:\s|--[^\n]*|/\*.*?\*/|\#[^\n]*)*", re.DOTALL)
_SET = "{set}"
_CHECK = "{unless_stale}"


class Cursor(Protocol):
    """What is needed of a DB-API cursor, whatever its placeholders are."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, statement: str, parameters: Any, /) -> object: ...


def execute(
    cursor: Cursor,
    statement: str,
    parameters: Sequence[Any] = (),
    *,
    lease: BaseLease | ViewLease,
    column: str = COLUMN,
    rows: int = 1,
) -> None:
    """Run an UPDATE or DELETE that a stale holder cannot make. Commit and roll back are yours.

    The statement has ``{unless_stale}`` in its WHERE, and ``{set}`` in its SET unless it begins
    with DELETE; both are filled in with integers and need no parameter. Beside an OR, put that
    into parentheses: ``WHERE (a OR b) AND {unless_stale}``. Placeholders are those of your driver.
    ``rows``: how many the statement must write. Raises LeaseLost when it writes fewer: a later
    holder has written them, or they are not there. Then roll back: some may be written.
    Raises ConfigurationError for a statement without them, for a strange column name, and for a
    lease that others may share, as that of a semaphore; also when the driver does not say how many
    rows were written, as sqlite3 after WITH: then roll back, too.
    """
    cursor.execute(_filled(statement, lease, column), parameters)
    if cursor.rowcount < 0 < rows:
        raise ConfigurationError(
            f"the driver does not say how many rows were written (rowcount {cursor.rowcount}), so "
            f"a stale holder would not be noticed; roll back, and write otherwise: {statement!r}"
        )
    if 0 <= cursor.rowcount < rows:
        raise stale(lease)


def run(
    connection: Connection | Session | scoped_session[Any],
    statement: Update | Delete,
    *,
    lease: BaseLease | ViewLease,
    column: ColumnElement[int] | InstrumentedAttribute[int],
) -> int:
    """Execute SQLAlchemy's ``update()`` or ``delete()`` as its holder; returns the rows written.

    0: none matched. Raises LeaseLost if a row that matches was written by a later holder; then
    roll back, as some of the others may be written. One more SELECT finds that out, where the
    statement was executed. Limit: a session that routes by statement, and whose ``get_bind`` does
    not heed ``bind``, makes that SELECT without its events and their criteria.
    """
    from sqlalchemy import Update, select

    token = token_of(lease)
    fenced = statement.where(column <= token)
    if isinstance(fenced, Update):
        fenced = fenced.values({column: token})
    written = cast("CursorResult[Any]", connection.execute(fenced))
    left = [] if statement.whereclause is None else [statement.whereclause]
    newer = select(column).select_from(statement.table).where(*left, column > token).limit(1)
    for dialect in ("mysql", "mariadb"):  # else they look at an older snapshot
        newer = newer.suffix_with("LOCK IN SHARE MODE", dialect=dialect)
    if _found(connection, newer, written.connection):
        raise stale(lease)
    return written.rowcount


def token_of(lease: BaseLease | ViewLease) -> int:
    """The fencing token for a write. Raises LeaseLost, or ConfigurationError if others may hold
    the name as well: of them, no one is the latest; or if there are several names."""
    token = lease.fencing_token
    if lease.shared:
        raise ConfigurationError(
            f"the lease on {lease.name!r} is shared: it cannot fence a write, only a lock that "
            "one holds alone can"
        )
    lease.check()
    return token


def stale(lease: BaseLease | ViewLease) -> LeaseLost:
    """The error of a write that came too late."""
    return LeaseLost(
        f"a write under {lease.name!r} was refused: a later holder than this one "
        f"(fencing token {lease.fencing_token}) has written, or there is nothing to write to; "
        "roll back and begin anew under a new lease",
        name=lease.name,
    )


def _found(
    connection: Connection | Session | scoped_session[Any],
    rows: Select[Any],
    wrote: Connection,
) -> bool:
    """Whether there are such rows, asked where they were written: a session may read elsewhere."""
    from sqlalchemy import Connection

    if not isinstance(connection, Connection):
        try:
            heeded = connection.get_bind(bind=wrote) is wrote
        except TypeError:  # takes no such argument, as in SQLAlchemy's example of routing
            heeded = False
        if heeded:
            return connection.execute(rows, bind_arguments={"bind": wrote}).first() is not None
    return wrote.execute(rows).first() is not None


def _filled(statement: str, lease: BaseLease | ViewLease, column: str) -> str:
    if not _IDENTIFIER.fullmatch(column):
        raise ConfigurationError(f"column is {column!r}: it must be a plain column name")
    words = _COMMENTS.sub("", statement, count=1)
    deletes = words[:6].upper() == "DELETE"
    for mark in (_CHECK,) if deletes else (_SET, _CHECK):
        if words.count(mark) != 1:
            unless = ", unless it begins with DELETE" if mark == _SET else ""
            raise ConfigurationError(
                f"the fenced statement must have {mark} once{unless}: {statement!r}"
            )
    token = token_of(lease)
    return statement.replace(_SET, f"{column} = {token}").replace(_CHECK, f"{column} <= {token}")
