"""Clients that know of the transaction of ``db.session``: locks enclose it.

A lock that is acquired inside a transaction is released before that commits, so somebody else can
take it and read what was there before. A transaction that has only read is ended instead; inside
an order, or with changes in the session, such an acquire raises OpenTransaction.
"""

from __future__ import annotations

from flask import has_app_context

from lockkit.leases.enclosing import AsyncEnclosingClient, EnclosingClient
from lockkit_flask import sessions
from lockkit_flask.until import open_transactions

__all__ = ["AsyncFlaskLockClient", "FlaskLockClient"]


class FlaskLockClient(EnclosingClient):
    """``LockClient``, whose locks refuse to be acquired inside a transaction with changes."""

    _transactions = staticmethod(open_transactions)

    @staticmethod
    def _refuse(name: str) -> None:
        if has_app_context():
            sessions.end_read(name)


class AsyncFlaskLockClient(AsyncEnclosingClient):
    """The async twin of ``FlaskLockClient``."""

    @staticmethod
    async def _refuse(name: str) -> None:
        FlaskLockClient._refuse(name)
