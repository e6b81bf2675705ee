"""Where the records of an app's orders are, and how an order runs there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lockkit.model.errors import ConfigurationError
from lockkit_flask import joined
from lockkit_flask.joined import Joined
from lockkit_flask.records import Records, record_table

if TYPE_CHECKING:
    from flask_sqlalchemy import SQLAlchemy

    from lockkit.orders import Orders, Proceed, RecordStore
    from lockkit_flask.opened import Opened

__all__ = ["DatabaseStore", "Store"]


class Store(Protocol):
    """The records of one app, in one place."""

    @property
    def records(self) -> RecordStore: ...

    def of(self, using: str | None) -> Store:
        """Those of another database; None: these."""

    def open(self, orders: Orders, proceed: Proceed) -> Opened: ...

    def create_table(self) -> None: ...


class DatabaseStore:
    """STORE = "database": a record becomes final with what ``db.session`` has committed."""

    def __init__(self, db: SQLAlchemy, using: str | None) -> None:
        if using not in db.metadatas:
            raise ConfigurationError(
                f"LOCKKIT_ORDERS['USING'], or that of @idempotent, is not a bind key: {using!r}"
            )
        self._db = db
        self._using = using
        self.records = Records(record_table(db.metadatas[using]), lambda: db.engines[using])
        joined.install(db)

    def of(self, using: str | None) -> DatabaseStore:
        """Raises ConfigurationError for what is no bind key of the current app."""
        if using is None or using == self._using:
            return self
        return DatabaseStore(self._db, using)

    def open(self, orders: Orders, proceed: Proceed) -> Opened:
        return Joined(orders, proceed, self.records)

    def create_table(self) -> None:
        self.records.table.create(self.records.engine(), checkfirst=True)
