"""``until="commit"`` in Django: a lease is held until the outermost ``atomic`` block has ended.

The first such lease replaces the methods of the connection that may end the transaction. They come
back after its end: COMMIT, ROLLBACK, or ``close()``, which Django calls if a connection is lost.
The blocks that TestCase opens around a test do not count: inside them, the end of the user's
outermost savepoint is the end.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS, Error, OperationalError, connections

from lockkit.leases.lease import give_back
from lockkit.leases.until import BEGIN_TO_WRITE, Transaction, refuse_level
from lockkit.model.errors import LeaseLost, OpenTransaction
from lockkit_django.leases.transactions import (
    KEEPER,
    ORDER,
    OrderBlock,
    asked,
    has_order_elsewhere,
    in_coroutine,
    opened,
    user_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from lockkit.leases.client import Lease

OF_SAVEPOINTS = ("savepoint_commit", "savepoint_rollback")
"""Methods that may end a block, too: in a test, the outermost one may be a savepoint."""

ENDS = ("commit", "rollback", "close", "set_autocommit")
"""Methods that may end a transaction. Django calls the last even if another was interrupted."""

IDLE = 0
"""libpq's status of a connection outside of any transaction."""


def open_transactions() -> list[Transaction]:
    """The user's open transactions in this thread, on any database."""
    return _keepers(each for each in _begun() if _is_open(each))


def of_orders() -> Sequence[Transaction]:
    """The transactions of orders in this thread that can still commit."""
    if ORDER.get() is None:
        return ()
    found = (each for each in opened() if each.in_atomic_block and not each.closed_in_transaction)
    return _keepers(c for c in found if isinstance(next(iter(user_blocks(c)), None), OrderBlock))


def _keepers(connections: Iterable[BaseDatabaseWrapper]) -> list[Transaction]:
    found: list[Transaction] = [_keeper(each) or _Outermost(each) for each in connections]
    return [*found, _OrderElsewhere()] if has_order_elsewhere() else found


def _keeper(connection: BaseDatabaseWrapper) -> _Outermost | None:
    keeper: _Outermost | None = vars(connection).get(KEEPER)
    if keeper is not None and keeper.is_over():
        keeper.give_back()
        return None
    return keeper


def _begun() -> Sequence[BaseDatabaseWrapper]:
    """This thread's connections. If the default one has AUTOCOMMIT False, it is connected now: its
    statements wait for a COMMIT. Others are not: a lease waits for each, and nobody may use it."""
    default = connections[DEFAULT_DB_ALIAS]
    if not (default.settings_dict["AUTOCOMMIT"] or default.in_atomic_block):
        with suppress(Error, AssertionError):  # it is down, or forbidden in this TestCase
            default.ensure_connection()
    return opened()


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    if connection.in_atomic_block:
        return bool(user_blocks(connection)) and not connection.closed_in_transaction
    return connection.connection is not None and not connection.autocommit


class _Outermost(Transaction):
    """The user's outermost transaction on one connection."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        super().__init__()
        self._connection: Any = connection
        is_atomic = connection.in_atomic_block and connection.commit_on_exit
        self._block = user_blocks(connection)[0] if is_atomic else None  #: None: autocommit is off
        self._hooked = (*(OF_SAVEPOINTS if is_atomic else ()), *ENDS)

    def is_open(self) -> bool:
        return vars(self._connection).get(KEEPER) is self

    def is_over(self) -> bool:
        """Whether it ended without a call of these methods, as a block with ``savepoint=False``
        does inside a test's."""
        return self._block is not None and self._is_left()

    def refuse_snapshot(self, name: str) -> None:
        refuse_level(_level_in_use(self._connection), name)

    def keep(self, lease: Lease) -> None:
        if self._connection.vendor == "sqlite" and not self._connection.needs_rollback:
            _take_write_lock(self._connection, lease.name)
        if not self.is_open():
            methods = {name: getattr(self._connection, name) for name in self._hooked}
            hooks = {name: partial(self._end_by, name, method) for name, method in methods.items()}
            vars(self._connection).update({**hooks, KEEPER: self})  # all or none, if interrupted
        super().keep(lease)

    def _end_by(self, name: str, method: Callable[..., None], *args: Any, **options: Any) -> None:
        """Replaces a method of the connection that may end the transaction."""
        still_off = self._block is None and False in (*args[:1], options.get("autocommit"))
        if self._commits(name) and not still_off and self._is_left():
            try:
                self.check()
            except LeaseLost:
                if name == "savepoint_commit":
                    self._connection.savepoint_rollback(*args, **options)
                else:
                    self._connection.rollback()
                raise
        ended = name == "close"
        try:
            method(*args, **options)
            ended = ended or (self._is_left() and not still_off)
        finally:
            if ended:
                self.give_back()

    def _commits(self, name: str) -> bool:
        """Whether this method commits. Some databases commit when autocommit is turned on."""
        if name == "set_autocommit":
            return self._block is None
        return name in {"commit", "savepoint_commit"}

    def _is_left(self) -> bool:
        """Whether the block is left: Django takes it from its list before it ends the block."""
        return not any(block is self._block for block in self._connection.atomic_blocks)

    def give_back(self) -> None:
        self.ended = True
        if self.is_open():
            for name in (*self._hooked, KEEPER):
                vars(self._connection).pop(name, None)  # gone if an earlier call was interrupted
        super().give_back()


class _OrderElsewhere(Transaction):
    """The transaction of an order whose view is a coroutine: it is open in another thread, so it
    cannot keep a lease of a blocking client."""

    def is_open(self) -> bool:
        return True

    def refuse_snapshot(self, name: str) -> None:
        raise in_coroutine(name)

    def keep(self, lease: Lease) -> None:
        """The order began under this lease. Release it, and raise OpenTransaction so that the order
        is rolled back. An error that left the lease's block rolls it back anyway."""
        lease._disown()
        give_back(lease)
        if not getattr(lease, "_fails", False):
            raise in_coroutine(lease.name)


def _level_in_use(connection: Any) -> str:
    """The isolation level if the transaction may have a snapshot already; otherwise empty."""
    if connection.vendor == "sqlite" or connection.connection is None:
        return ""
    if connection.vendor == "postgresql":
        if connection.connection.info.transaction_status == IDLE:  # no statement yet, so no BEGIN
            return ""
        return str(asked(connection, "SHOW transaction_isolation")[0])
    if connection.vendor != "mysql":
        return "serializable"  # not known, so the strictest
    if not connection.mysql_is_mariadb:
        return str(asked(connection, "SELECT @@transaction_isolation")[0])
    level, is_begun = asked(connection, "SELECT @@tx_isolation, @@in_transaction")
    return str(level) if is_begun else ""


def _take_write_lock(connection: Any, name: str) -> None:
    """Take SQLite's write lock. One transaction at a time gets it, and only if nothing has changed
    since its first read. Raises OpenTransaction."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(BEGIN_TO_WRITE)
    except OperationalError as error:
        raise OpenTransaction(
            f"the lock {name!r} was asked for inside a transaction that has read before another "
            f"one committed, or cannot write ({error}): set transaction_mode to IMMEDIATE in "
            f"OPTIONS, or acquire the lock before the transaction",
            name=name,
        ) from error
