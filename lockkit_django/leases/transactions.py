"""Locks enclose transactions: what is open before a lock is granted, and what is opened after it.

Whether what is open has changed anything, the database is asked, and only when a lock is asked for:
other queries cost nothing. Where it cannot tell, the answer is yes. PostgreSQL knows of every
change and every locked row. SQLite counts the rows that a connection has changed, since the number
that was noted when the request began; limit: changes of the schema are not counted. MariaDB tells
whether a transaction has begun, by a read as well. What it and MySQL know of changes
(``innodb_trx``) is for administrators only, and may be 0.1 seconds old.

Reads ``atomic_blocks`` of Django's connections, as Django's own ``durable=True`` does; blocks that
TestCase opened around a test are not the user's and do not count.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import cache
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from django.core.signals import request_started
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from lockkit.leases.until import NUMBERED
from lockkit.model.errors import OpenTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django.http import HttpRequest

NOTED = "_lockkit_noted"
"""Attribute of a connection: SQLite's own, and how many rows it had changed."""

KEEPER = "_lockkit_transaction"
"""Attribute of a connection, while its transaction keeps a lease until its end."""

IN_ERROR = 3
"""Of libpq's PGTransactionStatusType."""

OURS = "_lockkit_atomic_blocks"
"""Attribute of a request: the blocks that lock_view has opened for it."""


class OrderBlock(transaction.Atomic):
    """That of an order, which begins before the view and commits long after it."""


class Exempt(set[Any]):
    """For ``_non_atomic_requests``: tells the handler that the view is in no database's
    ATOMIC_REQUESTS, because its wrapper opens the transactions itself, under its lock. Remembers
    which ones the user has exempted.
    """

    def __contains__(self, alias: object) -> bool:
        return True

    def by_user(self, alias: str) -> bool:
        return set.__contains__(self, alias)


def refuse_open_transactions(name: str) -> None:
    """Raise OpenTransaction if a transaction is open in this thread that would outlive the lock.

    One that has only read (with autocommit off) is ended, so that the next query sees what the
    last holder committed.
    """
    for connection in opened():
        if blocks := user_blocks(connection):
            opened_by, instead = _told(connection, blocks[0])
            raise OpenTransaction(
                f"the lock {name!r} was asked for inside {opened_by} on the database "
                f"{connection.alias!r}: it would be released before that commits. {instead}, or "
                f"hold it until that COMMIT: until='commit'; in_atomic='allow' is for a lock that "
                f"protects nothing in a database",
                name=name,
            )
        _end_read_transaction(connection, name)


def _told(connection: BaseDatabaseWrapper, outermost: object) -> tuple[str, str]:
    """For people: what has opened this block, and what to do without it."""
    if isinstance(outermost, OrderBlock):
        return "the transaction of an order", "Use @lock_view, which takes several names"
    if not connection.settings_dict["ATOMIC_REQUESTS"]:
        instead = "Acquire it around the block (in a view: @lock_view, above @transaction.atomic)"
        return "atomic()", instead
    instead = (
        "In a view use @lock_view, which takes several names, or "
        "@transaction.non_atomic_requests; elsewhere acquire it around the block"
    )
    return "the transaction of ATOMIC_REQUESTS or an atomic()", instead  # the former has no mark


def atomic_requests(exempt: Callable[[str], bool]) -> list[str]:
    """The databases whose ATOMIC_REQUESTS applies to a view that is exempt for some."""
    settings = connections.settings.items()
    return [alias for alias, entry in settings if entry["ATOMIC_REQUESTS"] and not exempt(alias)]


def refuse_atomic_requests(exempt: Exempt) -> None:
    """What Django itself says of an async view, where it can see that it is one."""
    if atomic_requests(exempt.by_user):
        raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")


@contextmanager
def atomic_blocks(request: HttpRequest, aliases: Sequence[str], *, durable: bool) -> Iterator[None]:
    """Open a transaction on each; durable: leaving the block is the COMMIT, or an error."""
    before = getattr(request, OURS, ())
    with ExitStack() as stack:
        blocks = [transaction.Atomic(alias, savepoint=True, durable=durable) for alias in aliases]
        for alias, block in zip(aliases, blocks, strict=True):
            stack.enter_context(block)
            note_changes(connections[alias])
        setattr(request, OURS, (*before, *blocks))
        try:
            yield
        finally:
            setattr(request, OURS, before)


class request_blocks_suspended:  # noqa: N801  for ``with``
    """End the blocks around the view for as long as a lock is waited for and held.

    They are there when the lock is inside the callback that the handler made atomic: on a method
    of a class view, below ``@api_view``, on an action, or inside another ``lock_view``. They are
    opened again at the end. Raises OpenTransaction if something was changed in one of them, or is
    to be done at its COMMIT, which would come before that of the view; if it is to be rolled back;
    or if it keeps a lease, which would be given back.
    """

    def __init__(self, request: HttpRequest) -> None:
        self._blocks = [
            (connection, blocks[0])
            for connection in opened()
            if connection.atomic_blocks and len(blocks := user_blocks(connection)) == 1
            if _belongs_to(request, connection, blocks[0])
        ]

    def __enter__(self) -> None:
        for connection, _ in self._blocks:
            if contents := what_may_not_end(connection):
                raise OpenTransaction(
                    f"the view asks for its lock inside a transaction (ATOMIC_REQUESTS) on the "
                    f"database {connection.alias!r} with {contents}: put the decorator above what "
                    f"made that, such as on the view itself instead of its method, or let the view "
                    f"be @transaction.non_atomic_requests(using={connection.alias!r}); if another "
                    f"lock_view made it, name both locks in that one"
                )
        for _, block in self._blocks:
            block.__exit__(None, None, None)

    def __exit__(self, *_: object) -> None:
        for connection, block in reversed(self._blocks):
            if is_aborted(connection):  # an order's, which is still open, and takes no SAVEPOINT
                connection.needs_rollback = True
            block.__enter__()
            note_changes(connection)


def _belongs_to(request: HttpRequest, connection: BaseDatabaseWrapper, block: object) -> bool:
    """Whether it is the block of ATOMIC_REQUESTS, or of a lock_view further out."""
    if block in getattr(request, OURS, ()):
        return True
    if request.resolver_match is None or not connection.settings_dict["ATOMIC_REQUESTS"]:
        return False
    exempt = getattr(request.resolver_match.func, "_non_atomic_requests", ())
    return connection.alias not in exempt


def _end_read_transaction(connection: BaseDatabaseWrapper, name: str) -> None:
    """With autocommit off the first query opened a transaction, and with it a snapshot."""
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
    """For people: why what is open on it is not ended for a lock. Empty if it may be."""
    keeper = vars(connection).get(KEEPER)
    if keeper is not None and keeper.holds():
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
    """Whether its COMMIT runs hooks: those of the test around it do not count."""
    savepoint = {*connection.savepoint_ids[-1:]}  # none: it is the outermost block
    return any(savepoint <= hook[0] for hook in connection.run_on_commit)


def has_written(connection: BaseDatabaseWrapper) -> bool:
    """Whether what is open on it would be lost by a ROLLBACK."""
    if connection.vendor == "postgresql":
        return not _is_of_test(connection) and bool(asked(connection, NUMBERED)[0])
    if connection.vendor == "sqlite":
        return _has_changed_rows(connection)
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        return bool(asked(connection, "SELECT @@in_transaction")[0])
    return True


@cache
def note_each_request() -> None:
    """From now on SQLite's numbers are noted when requests begin. Called by each ``lock_view``, and
    by one in ``method_decorator`` for each request: connecting again leaves a finalizer behind."""
    request_started.connect(note_what_is_final, dispatch_uid="lockkit_django.leases.transactions")


def note_what_is_final(**_: Any) -> None:
    """What was changed where no transaction is open, such as by authentication, is committed."""
    for connection in opened():
        if connection.vendor == "sqlite" and not user_blocks(connection):
            note_changes(connection)


def is_aborted(connection: BaseDatabaseWrapper) -> bool:
    """Whether PostgreSQL has given the transaction up, after an error in a cursor of the view's.

    Django knows of its models' errors only; and a COMMIT would roll back without an error.
    """
    if connection.vendor != "postgresql":
        return False
    info = getattr(connection.connection, "info", None)
    return getattr(info, "transaction_status", None) == IN_ERROR


def note_changes(connection: BaseDatabaseWrapper) -> None:
    """What was changed before this moment is not of the transaction that is asked about later."""
    if connection.vendor == "sqlite" and connection.connection is not None:
        changes = connection.connection.total_changes
        vars(connection)[NOTED] = (connection.connection, changes)


def opened() -> list[BaseDatabaseWrapper]:
    """``connections.all(initialized_only=True)``, which looks twice for each, and slowly."""
    of_thread = connections._connections  # type: ignore[attr-defined]  # no other way
    found = (getattr(of_thread, alias, None) for alias in connections.settings)
    return [connection for connection in found if connection is not None]


def user_blocks(connection: BaseDatabaseWrapper) -> list[Any]:
    """The open ``atomic`` blocks, without those that TestCase has opened around a test."""
    blocks: list[Any] = connection.atomic_blocks
    return [block for block in blocks if not block._from_testcase]


def _is_of_test(connection: BaseDatabaseWrapper) -> bool:
    """Whether the block is a savepoint within a TestCase, whose end makes nothing final."""
    return len(user_blocks(connection)) < len(connection.atomic_blocks)


def is_of_hook(error: BaseException) -> bool:
    """Whether a hook of ``on_commit`` has raised it: then the COMMIT is through."""
    hooks = BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__
    return any(frame.f_code is hooks for frame, _ in walk_tb(error.__traceback__))


def asked(connection: BaseDatabaseWrapper, query: str) -> Any:
    """The first row of the answer."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()


def _has_changed_rows(connection: BaseDatabaseWrapper) -> bool:
    if not connection.in_atomic_block:
        return bool(connection.connection.in_transaction)  # reads do not begin one
    noted, changes = vars(connection).get(NOTED, (None, 0))
    before = changes if noted is connection.connection else 0  # it was made since
    return bool(connection.connection.total_changes > before)
