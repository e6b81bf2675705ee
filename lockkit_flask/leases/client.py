"""Clients that know of the transaction of ``db.session``: locks enclose it, or last until its end.

A lock that is acquired inside a transaction is released before the transaction commits, so somebody
else can take it and read what was there before. Inside an order, or with changes in the session,
such an acquire raises OpenTransaction. A transaction that has only read is ended instead.

With ``until="commit"`` a lease is held until the transaction has ended: by the outermost COMMIT or
ROLLBACK of the session, whoever calls it; inside an order, by that of the order, because there the
view's ``commit()`` only ends a savepoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import current_app

from lockkit.leases.enclosing import EnclosingClient
from lockkit.leases.until import BEGIN_TO_WRITE, Transaction, refuse_level
from lockkit.model.errors import ConfigurationError, OpenTransaction
from lockkit_flask.leases import db_session, request_leases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session, SessionTransaction

    from lockkit.leases.client import Lease
    from lockkit_flask.orders.open_order import OpenOrder


class FlaskLockClient(EnclosingClient):
    """``LockClient``, whose locks refuse to be acquired inside a transaction with changes."""

    _refuse = staticmethod(db_session.end_read)

    @staticmethod
    def _transactions() -> Sequence[Transaction]:
        """The transaction of the order that runs here; without one, the session's, which need not
        have begun yet."""
        if of_order := FlaskLockClient._orders():
            return of_order
        db = db_session.database_of(current_app)
        if db is None:
            raise ConfigurationError("until='commit' needs the db.session of Flask-SQLAlchemy")
        session = db.session()
        return [session.info.get(db_session.KEEPER) or _OfSession(session)]

    @staticmethod
    def _orders() -> Sequence[Transaction]:
        order = db_session.ORDER.get() and db_session.order_of_app()
        if order is None or not order.active:
            return ()
        order.kept = order.kept or _OfOrder(order)
        return (order.kept,)


class _OfOrder(Transaction):
    def __init__(self, order: OpenOrder) -> None:
        super().__init__()
        self._order: Any = order

    def is_open(self) -> bool:
        return bool(self._order.active)

    def refuse_snapshot(self, name: str) -> None:
        """On SQLite nothing is refused: the order has written, so nobody else could do so since."""
        _refuse_level(self._order.connection, name)


class _OfSession(Transaction):
    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def is_open(self) -> bool:
        keeper = self._session.info.get(db_session.KEEPER)
        return keeper is self and self._session.in_transaction()

    def refuse_snapshot(self, name: str) -> None:
        """End the transaction if it has only read. If it must stay, raise OpenTransaction if its
        isolation level keeps a snapshot."""
        if not (db_session.is_to_stay(self._session) or db_session.has_own_options(self._session)):
            db_session.end_if_begun(self._session)
            return
        for connection, *_ in db_session.reached(self._session):
            _refuse_level(connection, name)

    def keep(self, lease: Lease) -> None:
        for connection, *_ in db_session.reached(self._session):
            if connection.dialect.name == "sqlite" and connection.in_transaction():
                _take_write_lock(connection, lease.name)
        _keep(self._session, self)
        super().keep(lease)
        request_leases.add(lease)  # the end of the context releases it at the latest


def _refuse_level(connection: Any, name: str) -> None:
    if connection.dialect.name == "sqlite":
        return
    from sqlalchemy.exc import SQLAlchemyError

    try:
        level = str(connection.get_isolation_level())
    except SQLAlchemyError as error:
        raise OpenTransaction(
            f"the lock {name!r} was asked for inside a transaction in which a statement has "
            f"failed, or whose connection is lost. Roll back first",
            name=name,
        ) from error
    refuse_level(level, name)


def _take_write_lock(connection: Any, name: str) -> None:
    """Take SQLite's write lock, if a transaction has begun there: only one that has read nothing
    old gets it. Raises OpenTransaction."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if connection.connection.driver_connection.in_transaction:  # reads may not begin one
            connection.exec_driver_sql(BEGIN_TO_WRITE).close()
    except SQLAlchemyError as error:
        raise OpenTransaction(
            f"the lock {name!r} was asked for inside a transaction that has read before another "
            f"one committed, or cannot write ({error}): begin it with BEGIN IMMEDIATE, or "
            f"acquire the lock before it",
            name=name,
        ) from error


def _keep(session: Session, keeper: Transaction) -> None:
    """Let the session's transaction keep leases. Listen to this session only from now on."""
    from sqlalchemy import event

    session.info[db_session.KEEPER] = keeper
    event.listen(session, "before_commit", _before_commit)
    event.listen(session, "after_transaction_end", _after_transaction)


def _before_commit(session: Session) -> None:
    """Refuse the COMMIT if a lease is lost. SQLAlchemy would flush only after this, and a statement
    may wait for a row until the lease is lost: so flush first."""
    if keeper := session.info.get(db_session.KEEPER):
        if not session._flushing:  # else it is the end of a savepoint that a listener has made
            session.flush()
        keeper.check()


def _after_transaction(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None and (keeper := session.info.pop(db_session.KEEPER, None)):
        keeper.give_back()
