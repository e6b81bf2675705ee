"""The transaction of an order: the request's session works inside it, without knowing.

The order's record and everything that ``db.session`` commits while the view runs belong to one
outer transaction on one connection. The session joins it by ``create_savepoint``: its commits end
savepoints, its rollbacks undo what followed the last commit, and the one real COMMIT comes after
the response is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import g, has_app_context, has_request_context, request
from sqlalchemy import event

from lockkit_flask import sessions

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa
    from flask_sqlalchemy import SQLAlchemy
    from sqlalchemy.orm import Session

    from lockkit.idempotency import Discard, Keep, Proceed

__all__ = ["Joined", "install", "of_context", "of_request"]

_INSTALLED = "_lockkit_joins"


class Joined:
    """One order's transaction, while its request runs. ``connection`` is used by nobody else."""

    def __init__(self, engine: sa.Engine, proceed: Proceed) -> None:
        self.engine = engine
        self.proceed = proceed
        self.connection = engine.connect()
        self.connection.begin()
        self.active = False  #: sessions join it
        self.committed = False  #: by the view: a savepoint of it was released
        self.failed = False  #: the view raised, and all was rolled back
        self.outcome: Keep | Discard | None = None
        self.status = 0  #: of the response that the outcome was decided by

    def join(self) -> None:
        """From now on the sessions of this app context work inside the transaction."""
        self.environ = request.environ
        self.active = True
        setattr(g, sessions.ORDER, self)

    def commit(self) -> None:
        """COMMIT. What the session did not commit must be gone before."""
        self.active = False
        self.connection.commit()

    def roll_back(self) -> None:
        """Undo all of it. Sessions work on connections of their own again."""
        try:
            sessions.roll_back()
        finally:
            self.active = False
            self.connection.rollback()

    def close(self) -> None:
        """Give the connection back, rolling back what was not committed. Idempotent."""
        try:
            if not self.connection.closed and self.connection.in_transaction():
                self.roll_back()
        finally:
            self.active = False
            self.connection.close()
            if of_context() is self:
                g.pop(sessions.ORDER)


def of_context() -> Joined | None:
    """The order of this app context, if there is one."""
    return g.get(sessions.ORDER) if has_app_context() else None


def of_request() -> Joined | None:
    """The order of this request. A view may send the app another one, within its app context."""
    found = of_context()
    if found is None or not has_request_context() or found.environ is not request.environ:
        return None
    return found


def install(db: SQLAlchemy) -> None:
    """Teach the sessions of this extension to join. Once, however many apps it serves.

    The class that is changed is the one which this ``db``'s session factory made for itself, so
    no other session learns it; and whatever session the view gets from ``db`` has learnt it.
    """
    session_class: Any = db.session.session_factory.class_
    if hasattr(session_class, _INSTALLED):
        return
    session_class.get_bind = _joining(session_class.get_bind)
    setattr(session_class, _INSTALLED, True)
    event.listen(db.session, "after_commit", _note_commit)


def _joining(choose: Callable[..., Any]) -> Callable[..., Any]:
    def get_bind(self: Session, *args: Any, **kwargs: Any) -> sa.Engine | sa.Connection:
        bind: sa.Engine | sa.Connection = choose(self, *args, **kwargs)
        joined = of_context()
        if joined is None or not joined.active or bind is not joined.engine:
            return bind
        self.join_transaction_mode = "create_savepoint"
        return joined.connection

    return get_bind


def _note_commit(session: Session) -> None:  # noqa: ARG001
    joined = of_context()
    if joined is not None and joined.active:
        joined.committed = True
