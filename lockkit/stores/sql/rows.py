"""One row of the table: how it is read, taken and freed by one statement, repaired, and deleted
when it is old. No column is trusted: each may contain anything."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from lockkit.engine.last_words import Words, infos_of, words_of_repair
from lockkit.engine.state import SECOND, State
from lockkit.model.errors import DamagedRecord, LayoutMismatch
from lockkit.model.names import repair_command
from lockkit.model.types import Grant, LockInfo, LockState, Release, Request
from lockkit.stores.sql.codec import FREE, damaged_record, decode, is_whole, row_id, taken
from lockkit.stores.sql.connector import Connection, Missed, Parameters
from lockkit.stores.sql.dialect import repeated
from lockkit.stores.sql.words import is_words

T = TypeVar("T")

Row = Sequence[Any]
"""The database's clock, version, fence and state; all but the clock are None if there is no row."""

Tried = tuple[T | None, Row | None]
"""The answer of one statement, or None if the row was in another state than the statement expects;
and the row, if the statement has returned it."""

First = Callable[[Connection, str], Tried[T]]
"""Tries a step in one statement, without reading the row with this id first: see ``Tried``."""

UNREADABLE = "its row cannot be read, so it may be held: "
STRAYED = (
    "the row says the key prefix {!r}, so not all of it is shown: set prefix to {!r} in the row "
    "with the id {!r}"
)
MISNAMED = (
    "its row says another name than its id, and may be held: once its holder has ended, delete the "
    "row with the id {!r}"
)

DAY = 24 * 3600 * SECOND
PRUNE_EVERY = 32
PRUNE_WINDOW = 128
"""One in PRUNE_EVERY new names, chosen by a hash, makes its process prune: it looks at PRUNE_WINDOW
rows from a random place on, and deletes those of free names that were not used for a day. Because
of the hash, processes that use one name each prune as well. On average four rows are looked at for
each new one. That keeps the table small, without an index on a column that changes and without
reading the whole table at once."""


def state_of(row: Row) -> State:
    """Raises LayoutMismatch if another version of lockkit wrote it, DamagedRecord if none did.

    Its version must be a whole number below WHOLE: adding 1 to anything else may change nothing.
    """
    _, version, fence, text = row
    if version is None:
        return State()
    if not is_whole(version):
        raise damaged_record("its version")
    return decode(text, fence)


def is_free(row: Row) -> bool:
    """Whether the row may be deleted: it has last words, or nobody holds the name and nobody alive
    waits for it. A row that cannot be read is not free."""
    try:
        return is_words(row[3]) or state_of(row).sweep(row[0])
    except (LayoutMismatch, DamagedRecord):
        return False


def infos(name: str, row: Row) -> Iterator[LockInfo]:
    """The row, for people; a damaged one is shown as damaged. Raises LayoutMismatch."""
    try:
        state = state_of(row)
    except DamagedRecord:
        damage = UNREADABLE + repair_command(name)
        return iter([LockInfo(name, LockState.DAMAGED, damage=damage)])
    state.prune(row[0])
    return infos_of(name, state, row[0])


def infos_of_row(prefix: str, listed: Sequence[Any]) -> Iterator[LockInfo]:
    """A row that the statement ``page`` has read, for people. Locking goes by the id alone, so a
    row with a wrong name would mislead people, and one with a wrong prefix still locks its name."""
    now, key, version, name, fence, found, text = listed
    if text == FREE:
        return
    fits = isinstance(name, str) and row_id(prefix, name) == key
    if found != prefix:
        if fits:
            yield LockInfo(name, LockState.DAMAGED, damage=STRAYED.format(found, prefix, key))
    elif fits:
        yield from infos(name, (now, version, fence, text))
    else:
        shown = name if isinstance(name, str) else repr(name)
        yield LockInfo(shown, LockState.DAMAGED, damage=MISNAMED.format(key))


def take(request: Request, connection: Connection, row: str) -> Tried[Grant]:
    """Take the name if it is free."""
    values: Parameters = {"id": row, "state": taken(request)}
    fence, found = _tried(connection, connection.dialect.take, values)
    return None if fence is None else Grant(request.token, fence, request.ttl), found


def free(request: Request, connection: Connection, row: str) -> Tried[Release]:
    """Free the name if nothing has changed since the grant, and the lease has not expired.

    Of all changes, only this one need not be durable: if a crash undoes it, the lease expires."""
    ttl = round(request.ttl * SECOND)
    values: Parameters = {"id": row, "state": taken(request), "ttl": ttl}
    fence, found = _tried(connection, connection.dialect.free, values)
    return None if fence is None else Release.RELEASED, found


def _tried(connection: Connection, statement: str, values: Parameters) -> Tried[int]:
    """The fence, if the statement has found the state that it expects; and the row, if read."""
    result = connection.execute(statement, values)
    if result.rows:
        (*found, fence) = result.rows[0]
        return fence, found
    return result.last if result.changed else None, None


def repaired(key: str, name: str, by: str, connection: Connection) -> list[Words]:
    """Free the row if it cannot be read, and return the words of this; none if it can be read. A
    fence that can be read stays, and goes on growing."""
    dialect = connection.dialect
    row = connection.execute(dialect.read, {"id": key}).rows[0]
    try:
        state_of(row)
    except DamagedRecord:
        now, version, fence, _ = row
        values = {"id": key, "version": version, "now": now, "state": FREE}
        values["fence"] = fence if is_whole(fence) else 0
        statement = dialect.update if is_whole(version) else dialect.mend
        if connection.execute(statement, values).changed != 1:
            raise Missed from None
        return [words_of_repair(name, now, by)]
    return []


def prune_some(connection: Connection) -> None:
    """Delete some free rows that were not used for a day. A name that is used again gets a greater
    fence all the same, because fences follow the clock: a row whose fence is ahead of it stays.

    In one statement: somebody waits meanwhile who wants a lock, and each commit may take long."""
    dialect = connection.dialect
    now = connection.execute(dialect.clock, {}).rows[0][0]
    values = {"from": secrets.token_hex(32), "most": PRUNE_WINDOW, "before": now - DAY}
    old: dict[str, Any] = {}
    for row, version, fence, text in connection.execute(dialect.stale, values).rows:
        if (
            is_free((now, version, fence, text))
            and (is_words(text) or (is_whole(fence) and fence < now))
            and row.isascii()  # or others have written it, in bytes that no driver may send
        ):
            number = len(old) // 2
            old |= {f"id{number}": row, f"version{number}": version}
    if old:
        connection.execute(repeated(dialect.delete, len(old) // 2), old)
