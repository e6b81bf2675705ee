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

from lockkit.errors import ConfigurationError, LeaseLost

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Delete, Update
    from sqlalchemy.orm import InstrumentedAttribute, Session, scoped_session
    from sqlalchemy.sql.elements import ColumnElement

    from lockkit.lease import BaseLease

__all__ = ["COLUMN", "execute", "run", "stale", "token_of"]

COLUMN = "fence"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
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
    lease: BaseLease,
    column: str = COLUMN,
    rows: int = 1,
) -> None:
    """Run an UPDATE or DELETE that a stale holder cannot make. Commit and roll back are yours.

    The statement has ``{unless_stale}`` in its WHERE, and an UPDATE ``{set}`` in its SET; both are
    filled in with integers and need no parameter. Placeholders are those of your driver.
    ``rows``: how many the statement must write. Raises LeaseLost when it writes fewer: a later
    holder has written them, or they are not there. Then roll back: some may be written.
    Raises ConfigurationError for a statement without them, for a strange column name, and for a
    lease that others may share, as that of a semaphore.
    """
    cursor.execute(_filled(statement, lease, column), parameters)
    if 0 <= cursor.rowcount < rows:
        raise stale(lease)


def run(
    connection: Connection | Session | scoped_session[Any],
    statement: Update | Delete,
    *,
    lease: BaseLease,
    column: ColumnElement[int] | InstrumentedAttribute[int],
) -> int:
    """Execute SQLAlchemy's ``update()`` or ``delete()`` as its holder; returns the rows written.

    0: none matched. Raises LeaseLost if a row that matches was written by a later holder; then
    roll back, as some of the others may be written. One more SELECT finds that out.
    """
    from sqlalchemy import Update, exists, select

    token = token_of(lease)
    fenced = statement.where(column <= token)
    if isinstance(fenced, Update):
        fenced = fenced.values({column: token})
    written = cast("CursorResult[Any]", connection.execute(fenced)).rowcount
    left = [] if statement.whereclause is None else [statement.whereclause]
    newer = exists().select_from(statement.table).where(*left, column > token)
    if connection.execute(select(newer)).scalar():
        raise stale(lease)
    return written


def token_of(lease: BaseLease) -> int:
    """The fencing token for a write. Raises LeaseLost, or ConfigurationError if others may hold
    the name as well: of them, no one is the latest."""
    if lease.shared:
        raise ConfigurationError(
            f"the lease on {lease.name!r} is shared: it cannot fence a write, only a lock that "
            "one holds alone can"
        )
    lease.check()
    return lease.fencing_token


def stale(lease: BaseLease) -> LeaseLost:
    """The error of a write that came too late."""
    return LeaseLost(
        f"a write under {lease.name!r} was refused: a later holder than this one "
        f"(fencing token {lease.fencing_token}) has written, or there is nothing to write to; "
        "roll back and begin anew under a new lease",
        name=lease.name,
    )


def _filled(statement: str, lease: BaseLease, column: str) -> str:
    if not _IDENTIFIER.fullmatch(column):
        raise ConfigurationError(f"column is {column!r}: it must be a plain column name")
    is_update = statement.lstrip()[:6].upper() == "UPDATE"
    for mark in (_SET, _CHECK) if is_update else (_CHECK,):
        if statement.count(mark) != 1:
            raise ConfigurationError(f"the fenced statement must have {mark} once: {statement!r}")
    token = token_of(lease)
    return statement.replace(_SET, f"{column} = {token}").replace(_CHECK, f"{column} <= {token}")
