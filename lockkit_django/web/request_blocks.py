"""The transactions around views: those of ATOMIC_REQUESTS, and those that lock_view opens instead.

A lock on a method, or below ``@api_view``, is inside the block that Django's handler has opened.
That block is ended before the lock is acquired, and opened again after the lock is released.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction
from django.db import connections, transaction

from lockkit.leases.lease import result_of
from lockkit.model.errors import OpenTransaction
from lockkit_django.leases.transactions import (
    OrderBlock,
    is_aborted,
    note_changes,
    opened,
    refuse_without_commit,
    user_blocks,
    what_may_not_end,
)
from lockkit_django.web.request import of_async_class

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.http import HttpRequest

OURS = "_lockkit_atomic_blocks"
"""Attribute of a request: the blocks that lock_view has opened for it."""


class Exempt(set[Any]):
    """A view's ``_non_atomic_requests``, which tells Django's handler that the view is exempt from
    ATOMIC_REQUESTS on every database: its wrapper opens the transactions itself, under its lock.
    Its elements are the databases for which the user has exempted the view.
    """

    def __contains__(self, alias: object) -> bool:
        return True

    def atomic_requests(self) -> list[str]:
        """The databases whose ATOMIC_REQUESTS applies to the view."""
        exempt = [*self]
        settings = connections.settings.items()
        return [each for each, entry in settings if entry["ATOMIC_REQUESTS"] and each not in exempt]


def around(view: Any, run: Callable[..., Coroutine[Any, Any, Any]], marked: Any = None) -> Any:
    """A view that awaits ``run(exempt, args, kwargs)``, which never suspends in a thread.

    ``exempt``: None in an event loop, where Django refuses ATOMIC_REQUESTS; in a thread: the
    databases from which ``marked`` (default: the view) is exempt.
    """
    if iscoroutinefunction(view):

        @wraps(view)
        async def in_loop(*args: Any, **kwargs: Any) -> Any:
            return await run(None, args, kwargs)

        return in_loop
    exempt = Exempt(getattr(marked or view, "_non_atomic_requests", ()))

    @wraps(view)
    def in_thread(*args: Any, **kwargs: Any) -> Any:
        if not of_async_class(view, args):
            return result_of(run(exempt, args, kwargs))
        if exempt.atomic_requests():  # what Django raises for a view that it can see is async
            raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
        return run(None, args, kwargs)

    # ``wraps`` has copied one. Django's views of a class share that of ``dispatch``, and what is
    # added to it for one route would be for all of them.
    in_thread._non_atomic_requests = (  # type: ignore[attr-defined]
        Exempt(exempt) if _is_dispatch(view) else exempt
    )
    return in_thread


def _is_dispatch(view: Any) -> bool:
    owner, _, name = getattr(view, "__qualname__", "").rpartition(".")
    return name == "dispatch" and bool(owner) and not owner.endswith("<locals>")


@contextmanager
def atomic_blocks(request: HttpRequest, aliases: Sequence[str], *, durable: bool) -> Iterator[None]:
    """Open a transaction on each database. ``durable``: leaving the block is its COMMIT; raises
    RuntimeError inside another block. Raises ConfigurationError if autocommit is off."""
    before = getattr(request, OURS, ())
    with ExitStack() as stack:
        blocks = [transaction.Atomic(alias, savepoint=True, durable=durable) for alias in aliases]
        for alias, block in zip(aliases, blocks, strict=True):
            refuse_without_commit(connections[alias], "lock_view needs")
            stack.enter_context(block)
            note_changes(connections[alias])
        setattr(request, OURS, (*before, *blocks))
        try:
            yield
        finally:
            setattr(request, OURS, before)


class request_blocks_suspended:  # noqa: N801  for ``with``
    """End the blocks around the view for as long as a lock is waited for and held.

    There are such blocks if the lock is inside the callback that the handler made atomic: on a
    method of a class view, below ``@api_view``, on an action, or inside another ``lock_view``. They
    are opened again at the end. Raises OpenTransaction if a block must not end yet: if it has
    changes or hooks of ``on_commit``, which must wait for the view; if it must be rolled back; or
    if it keeps a lease, which its end would release.
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
            if is_aborted(connection):  # that of an order is still open, and takes no SAVEPOINT
                connection.needs_rollback = True
            with _deferred(connection):
                block.__enter__()
            note_changes(connection)


@contextmanager
def _deferred(connection: Any) -> Iterator[None]:
    """On SQLite, have BEGIN take no lock, whatever ``transaction_mode`` says: what the view has
    saved is committed, and an error of waiting for the next writer would be answered instead."""
    if connection.vendor != "sqlite":
        yield
        return
    mode = connection.transaction_mode
    connection.transaction_mode = None
    try:
        yield
    finally:
        connection.transaction_mode = mode


def _belongs_to(request: HttpRequest, connection: BaseDatabaseWrapper, block: object) -> bool:
    """Whether it is the block of ATOMIC_REQUESTS, or of a lock_view further out."""
    if block in getattr(request, OURS, ()):
        return True
    if isinstance(block, OrderBlock):  # the order's end is not ours to make
        return False
    if request.resolver_match is None or not connection.settings_dict["ATOMIC_REQUESTS"]:
        return False
    exempt = getattr(request.resolver_match.func, "_non_atomic_requests", ())
    return connection.alias not in exempt
