"""Locks enclose transactions: finds those that are open when a lock is asked for.

lockkit asks the database whether an open transaction has changed anything. It asks only when a lock
is asked for, so other queries cost nothing. If a database cannot tell, that counts as yes:

- PostgreSQL knows of every change, every locked row and every locked table.
  Limit: it does not tell of SET LOCAL, NOTIFY and advisory locks.
- SQLite counts the rows that a connection has changed. The number is noted when a request begins.
  Limit: changes of the schema are not counted.
- MariaDB tells whether a transaction has begun, even by a read.
- MySQL does not tell. Its table ``innodb_trx``, which MariaDB has, too, is for administrators only,
  and may be 0.1 seconds old.

This module reads ``atomic_blocks`` of Django's connections, as Django's own ``durable=True`` does.
Blocks that TestCase opened around a test are not the user's and do not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from traceback import walk_tb
from typing import Any

from django.conf import settings
from django.core.signals import request_started
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from lockkit.leases.until import WAYS_OUT, WRITES
from lockkit.model.errors import ConfigurationError, OpenTransaction

NOTED = "_lockkit_noted"
"""Attribute of a Django connection: SQLite's own connection, and how many rows it had changed."""

KEEPER = "_lockkit_transaction"
"""Attribute of a connection: its ``Transaction``, while that keeps leases until its end."""

MARKED = "_lockkit_marked"
"""Attribute of a connection: whether ``set_rollback`` was called in its transaction."""

IN_ERROR = 3
"""libpq's status of a connection whose transaction has failed."""

ORDER: ContextVar[object] = ContextVar("lockkit_order", default=None)
"""The order that runs in this thread or task, whose connections may be in another thread."""


class OrderBlock(transaction.Atomic):
    """The block of an order. It begins before the view, and commits after the view has returned."""

    mark: Callable[[bool], None] | None = None  #: replaces Django's ``set_rollback``

    def __enter__(self) -> None:
        connection = connections[self.using or DEFAULT_DB_ALIAS]
        refuse_without_commit(connection, "orders need")
        super().__enter__()
        watch_marks(connection, self.mark)


def refuse_without_commit(connection: BaseDatabaseWrapper, who: str) -> None:
    """Raise ConfigurationError if the end of an outermost block would be no COMMIT."""
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise ConfigurationError(
            f"{who} a database that commits: the alias {connection.alias!r} has AUTOCOMMIT False, "
            f"or set_autocommit(False) was called"
        )


def refuse_open_transactions(name: str) -> None:
    """Raise OpenTransaction if a transaction is open in this thread that would outlive the lock.

    With autocommit off, a transaction that has only read is ended instead, so that the next query
    sees what the last holder committed.
    """
    if has_order_elsewhere():
        raise in_coroutine(name)
    for connection in opened():
        if blocks := user_blocks(connection):
            opened_by, instead = _told(connection, blocks[0])
            raise OpenTransaction(
                f"the lock {name!r} was asked for inside {opened_by} on the database "
                f"{connection.alias!r}: it would be released before that commits. {instead}, or "
                f"hold it until that COMMIT: {WAYS_OUT}",
                name=name,
            )
        _end_read_transaction(connection, name)


def has_order_elsewhere() -> bool:
    """Whether this is a coroutine of an order whose transaction is open in another thread."""
    if not getattr(ORDER.get(), "is_open", False):
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return not any(isinstance(each, OrderBlock) for c in opened() for each in c.atomic_blocks)


def in_coroutine(name: str) -> OpenTransaction:
    """The error for a blocking client's lock in such a coroutine."""
    return OpenTransaction(
        f"a coroutine uses the lock {name!r} of a blocking client, which is released before its "
        f"order commits. Put @lock_view below @idempotent, or take the lock in the function that "
        f"sync_to_async runs; in_atomic='allow' is for a lock that protects nothing in a database",
        name=name,
    )


def _told(connection: BaseDatabaseWrapper, outermost: object) -> tuple[str, str]:
    """For people: what has opened this block, and what to do instead."""
    if isinstance(outermost, OrderBlock):
        return "the transaction of an order", "Use @lock_view, which takes several names"
    if not connection.settings_dict["ATOMIC_REQUESTS"]:
        instead = "Acquire it around the block (in a view: @lock_view, above @transaction.atomic)"
        return "atomic()", instead
    instead = (
        "In a view use @lock_view, which takes several names, or "
        "@transaction.non_atomic_requests; elsewhere acquire it around the block"
    )
    return "the transaction of ATOMIC_REQUESTS or an atomic()", instead  # they look the same


def _end_read_transaction(connection: BaseDatabaseWrapper, name: str) -> None:
    """End a transaction that has only read: with autocommit off, the first query opened it, and
    with it a snapshot. Raises OpenTransaction if it must not end."""
    if connection.connection is None or connection.autocommit or connection.in_atomic_block:
        return
    if contents := what_may_not_end(connection):
        raise OpenTransaction(
            f"the lock {name!r} was asked for while the database {connection.alias!r} has a "
            f"transaction with {contents}: commit or roll it back before",
            name=name,
        )
    connection.rollback()


def what_may_not_end(connection: BaseDatabaseWrapper) -> str:
    """For people: why lockkit must not end its open transaction for a lock; empty if it may."""
    keeper = vars(connection).get(KEEPER)
    if keeper is not None and not keeper.is_over() and keeper.has_leases():
        return "a lock until its COMMIT"
    if connection.in_atomic_block and connection.needs_rollback:
        return "a rollback that is due (set_rollback, or an error of a query)"
    if _has_hooks(connection):
        return "a hook of on_commit"
    if not has_written(connection):
        return ""
    tells = connection.vendor in {"postgresql", "sqlite"}
    return "changes" if tells else f"changes (assumed: {connection.vendor} does not tell)"


def _has_hooks(connection: BaseDatabaseWrapper) -> bool:
    """Whether its COMMIT runs hooks of ``on_commit``. Those of a test around it do not count."""
    savepoint = {*connection.savepoint_ids[-1:]}  # empty in the outermost block
    return any(savepoint <= hook[0] for hook in connection.run_on_commit)


def has_written(connection: BaseDatabaseWrapper) -> bool:
    """Whether a ROLLBACK of its open transaction would lose anything."""
    if connection.vendor == "postgresql":
        return not _is_of_test(connection) and bool(asked(connection, WRITES)[0])
    if connection.vendor == "sqlite":
        return _has_changed_rows(connection)
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        return not _is_of_test(connection) and bool(asked(connection, "SELECT @@in_transaction")[0])
    return True


@cache
def note_each_request() -> None:
    """From now on, note SQLite's counts when requests begin. The signal is connected only once:
    below ``method_decorator``, ``lock_view`` calls this in each request, and each ``connect`` would
    leave a finalizer behind."""
    request_started.connect(note_what_is_final, dispatch_uid="lockkit_django.leases.transactions")
    if settings.configured:  # the URLconf may be imported by the first request, after its signal
        note_what_is_final()


def note_what_is_final(**_: Any) -> None:
    """Note SQLite's counts where no transaction is open: those changes, such as of authentication,
    are committed already."""
    for connection in opened():
        if connection.vendor == "sqlite" and not user_blocks(connection):
            note_changes(connection)


def is_aborted(connection: BaseDatabaseWrapper) -> bool:
    """Whether PostgreSQL has aborted the transaction, because a query of the view has failed.

    If the view caught that error, Django may not know of it, and a COMMIT would roll back without
    an error.
    """
    if connection.vendor != "postgresql":
        return False
    info = getattr(connection.connection, "info", None)
    return getattr(info, "transaction_status", None) == IN_ERROR


def is_rolled_back(connection: BaseDatabaseWrapper) -> bool:
    """Whether the open transaction can no longer commit."""
    return connection.needs_rollback or connection.closed_in_transaction or is_aborted(connection)


def is_broken(connection: BaseDatabaseWrapper) -> bool:
    """Whether the database can no longer save anything, whatever the view returns.

    False if the view itself asks for the rollback, with ``set_rollback``: it knows its answer. All
    else that marks a transaction is an error, in a query or in an ``atomic`` block within.
    """
    if connection.closed_in_transaction or is_aborted(connection):
        return True
    known = vars(connection)
    return known.get("rollback_exc") is not None or (
        connection.needs_rollback and not known.get(MARKED)
    )


def watch_marks(
    connection: BaseDatabaseWrapper, mark: Callable[[bool], None] | None = None
) -> None:
    """Note calls of ``set_rollback``, for ``is_broken``, until ``set_rollback`` is deleted from the
    connection. ``mark`` replaces it. In a block with a savepoint, a call marks only that."""

    def noted(rollback: bool) -> None:
        vars(connection)[MARKED] = rollback and not any(connection.savepoint_ids)
        (mark or partial(type(connection).set_rollback, connection))(rollback)

    vars(connection).update({"rollback_exc": None, MARKED: False, "set_rollback": noted})


def note_changes(connection: BaseDatabaseWrapper) -> None:
    """Note SQLite's count. Earlier changes then do not count for the transaction asked about."""
    if connection.vendor == "sqlite" and connection.connection is not None:
        changes = connection.connection.total_changes
        vars(connection)[NOTED] = (connection.connection, changes)


opened = partial(connections.all, initialized_only=True)
"""This thread's connections."""


def user_blocks(connection: BaseDatabaseWrapper) -> list[Any]:
    """The open ``atomic`` blocks, without those that TestCase has opened around a test."""
    blocks: list[Any] = connection.atomic_blocks
    return [block for block in blocks if not block._from_testcase]


def _is_of_test(connection: BaseDatabaseWrapper) -> bool:
    """Whether a TestCase has blocks around the user's, whose end then makes nothing final."""
    return len(user_blocks(connection)) < len(connection.atomic_blocks)


@contextmanager
def sparing_tests() -> Iterator[None]:
    """If a view raises, DRF marks the transaction of ATOMIC_REQUESTS to be rolled back. Where
    lockkit has not opened one, it would mark that of a TestCase: here it does not."""
    unmarked = [each for each in connections.all(initialized_only=True) if _is_spared(each)]
    try:
        yield
    finally:
        for each in unmarked:
            if each.in_atomic_block and not user_blocks(each):
                each.needs_rollback = False


def _is_spared(connection: BaseDatabaseWrapper) -> bool:
    is_of_test = connection.in_atomic_block and not user_blocks(connection)
    is_marked_by_drf = connection.settings_dict["ATOMIC_REQUESTS"]
    return is_of_test and is_marked_by_drf and not connection.needs_rollback


def is_of_hook(error: BaseException) -> bool:
    """Whether a hook of ``on_commit`` has raised it: then the COMMIT has succeeded."""
    hooks = BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__
    return any(frame.f_code is hooks for frame, _ in walk_tb(error.__traceback__))


def asked(connection: BaseDatabaseWrapper, query: str) -> Any:
    """Run a query, and return the first row of its answer."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()


def _has_changed_rows(connection: BaseDatabaseWrapper) -> bool:
    if not connection.in_atomic_block:
        return bool(connection.connection.in_transaction)  # reads do not begin one
    noted, changes = vars(connection).get(NOTED, (None, 0))
    before = changes if noted is connection.connection else 0  # 0: it is newer than the note
    return bool(connection.connection.total_changes > before)
