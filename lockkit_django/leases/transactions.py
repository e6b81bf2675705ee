"""Locks enclose transactions: what is open before a lock is granted, and what is opened after it.

Reads ``atomic_blocks`` of Django's connections, as Django's own ``durable=True`` does; blocks that
TestCase opened around a test are not the user's and do not count.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from lockkit.model.errors import OpenTransaction
from lockkit_django.leases.writes import has_written, note_changes, user_blocks, why_assumed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.http import HttpRequest

__all__ = [
    "Exempt",
    "atomic_blocks",
    "atomic_requests",
    "refuse_atomic_requests",
    "refuse_open_transactions",
    "request_blocks_suspended",
]

OURS = "_lockkit_atomic_blocks"
"""Attribute of a request: the blocks that lock_view has opened for it."""


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
    for connection in connections.all(initialized_only=True):
        if user_blocks(connection):
            raise OpenTransaction(
                f"the lock {name!r} was asked for inside atomic() on the database "
                f"{connection.alias!r}: it would be released before that block commits. Acquire "
                f"it around the block (in a view: @lock_view, above @transaction.atomic), or hold "
                f"it until that COMMIT: until='commit'; in_atomic='allow' is for a lock that "
                f"protects nothing in a database",
                name=name,
            )
        _end_read_transaction(connection, name)


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


@contextmanager
def request_blocks_suspended(request: HttpRequest) -> Iterator[None]:
    """End the blocks around the view for as long as a lock is waited for and held.

    They are there when the lock is inside the callback that the handler made atomic: on a method
    of a class view, below ``@api_view``, on an action, or inside another ``lock_view``. They are
    opened again at the end. Raises OpenTransaction if something was changed in one of them, which
    would be committed before the view is.
    """
    suspended = list(_request_blocks(request))
    for connection, _ in suspended:
        if has_written(connection):
            raise OpenTransaction(
                f"the view asks for its lock after something was changed in its transaction "
                f"(ATOMIC_REQUESTS) on the database {connection.alias!r}{why_assumed(connection)}: "
                f"put the decorator above what changes it, such as on the view itself instead of "
                f"its method, or let the view be "
                f"@transaction.non_atomic_requests(using={connection.alias!r})"
            )
    for _, block in suspended:
        block.__exit__(None, None, None)
    try:
        yield
    finally:
        for connection, block in reversed(suspended):
            block.__enter__()
            note_changes(connection)


def _request_blocks(request: HttpRequest) -> Iterator[tuple[BaseDatabaseWrapper, Any]]:
    for connection in connections.all(initialized_only=True):
        blocks = user_blocks(connection)
        if len(blocks) == 1 and _belongs_to(request, connection, blocks[0]):
            yield connection, blocks[0]


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
    if has_written(connection):
        raise OpenTransaction(
            f"the lock {name!r} was asked for while the database {connection.alias!r} has a "
            f"transaction with changes{why_assumed(connection)}: commit or roll it back before",
            name=name,
        )
    connection.rollback()
