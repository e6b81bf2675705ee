"""``until="commit"`` in Flask: a lease is held until the transaction of ``db.session`` has ended.

That is the outermost COMMIT or ROLLBACK of the session, however it comes: ``commit()``,
``rollback()``, ``close()``, or the end of the app context. Inside an order, where the view's
``commit()`` only ends a savepoint, it is the order's COMMIT or ROLLBACK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import current_app

from lockkit.leases.until import Transaction, refuse_level
from lockkit.model.errors import ConfigurationError
from lockkit_flask import held, sessions

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lockkit.leases.client import Lease
    from lockkit_flask.opened import Opened

__all__ = ["open_transactions"]


def open_transactions() -> list[Transaction]:
    """That of the order which runs here, else that of the session, which may be still to begin."""
    order = sessions.order_of_app()
    if order is not None and order.active:
        order.kept = order.kept or _OfOrder(order)
        return [order.kept]
    db = sessions.database_of(current_app)
    if db is None:
        raise ConfigurationError("until='commit' needs the db.session of Flask-SQLAlchemy")
    session = db.session()
    return [sessions.keeper_of(session) or _OfSession(session)]


class _OfOrder(Transaction):
    def __init__(self, order: Opened) -> None:
        super().__init__()
        self._order: Any = order

    def is_open(self) -> bool:
        return bool(self._order.active)

    def refuse_snapshot(self, name: str) -> None:
        """SQLite has let it write already, so nobody else could meanwhile."""
        _refuse_level(self._order.connection, name)


class _OfSession(Transaction):
    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def is_open(self) -> bool:
        return sessions.keeper_of(self._session) is self and self._session.in_transaction()

    def refuse_snapshot(self, name: str) -> None:
        """What has only read is ended; what is to stay keeps its snapshot, if it has one."""
        if not sessions.is_to_stay(self._session):
            sessions.end_if_begun(self._session)
        elif sessions.has_begun(self._session):
            _refuse_level(self._session.connection(), name)

    def keep(self, lease: Lease) -> None:
        super().keep(lease)
        sessions.keep(self._session, self)
        held.add(self, lease, is_view=False)  # if no transaction comes, until the context's end


def _refuse_level(connection: Any, name: str) -> None:
    if connection.dialect.name != "sqlite":
        refuse_level(str(connection.get_isolation_level()), name)
