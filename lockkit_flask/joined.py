"""The transaction of an order: the request's session works inside it, without knowing.

The order's record and everything that ``db.session`` commits while the view runs belong to one
outer transaction on one connection. The session joins it by ``create_savepoint``: its commits end
savepoints, its rollbacks undo what followed the last commit, and the one real COMMIT comes after
the response is known.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from werkzeug.exceptions import HTTPException

from lockkit.model.errors import ConfigurationError, LeaseLost
from lockkit.orders import DuplicateKeyError, Keep, Refused, StillRunningError, replies
from lockkit.orders.record import refuses
from lockkit_flask import held, sessions
from lockkit_flask.opened import Opened
from lockkit_flask.records import unavailable
from lockkit_flask.refusals import refused
from lockkit_flask.visit import SessionBefore

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa
    from flask import Response
    from flask_sqlalchemy import SQLAlchemy
    from sqlalchemy.orm import Session

    from lockkit.orders import Orders, Proceed, Record
    from lockkit_flask.records import Records

__all__ = ["Joined", "install"]

_INSTALLED = "_lockkit_joins"
REDIRECTS = (HTTPStatus.FOUND, HTTPStatus.SEE_OTHER)


class Joined(Opened):
    """One order's transaction, while its request runs. ``connection`` is used by nobody else."""

    connection: sa.Connection | None = None

    def __init__(self, orders: Orders, proceed: Proceed, records: Records) -> None:
        super().__init__(orders, proceed)
        self._records = records
        self._committed = False  #: by the view: a savepoint of this connection was released
        self._failed = False  #: the view raised, and all was rolled back
        self._refused = False  #: the view raised a refusal, which rolls nothing back
        self._wrote = False  #: something besides the record, on this connection

    def begin(self) -> None:
        """BEGIN, with the record: a second runner that holds no lock waits here for the first.

        From now on the sessions of the app work inside the transaction, here.
        """
        self._visit = SessionBefore()
        try:
            self._begin()
        except IntegrityError as error:
            raise DuplicateKeyError from error
        except SQLAlchemyError as error:
            raise unavailable(error) from error
        self.active = True

    def _begin(self) -> None:
        self.engine = self._records.engine()
        self.connection = self.engine.connect()
        try:
            _refuse_autocommit(self.connection)
            self.connection.begin()
            running = self.orders.running(self.proceed.order)
            replaces, wait = self.proceed.replaces, self.proceed.patience
            self._records.insert(self.connection, running, replaces=replaces, wait=wait)
            event.listen(self.connection, "before_cursor_execute", self._note_statement)
            event.listen(self.connection, "release_savepoint", self._note_commit)
        except BaseException:  # interrupted as well: its connection is in a transaction
            self._discard()
            raise

    def forgo(self) -> None:
        self.close()

    def _note_commit(self, *_: object) -> None:
        self._committed = True

    def _note_statement(self, _connection: object, _cursor: object, sql: str, *_: object) -> None:
        self._wrote = self._wrote or not sessions.only_reads(sql)

    def note_failure(self, error: BaseException) -> None:
        """Roll back at once: error handlers write outside of the order's transaction.

        They find its connection in the pool, which may have no other. ``abort(redirect(…))`` is a
        way to answer, and no failure; after a refusal what the view has committed stays.
        """
        status = _status(error) if isinstance(error, HTTPException) else 500
        self._refused = refuses(status)
        if self._refused or status < HTTPStatus.BAD_REQUEST:
            return
        self._failed = True
        self._roll_back()

    def conclude(self, response: Response) -> Response:
        outcome = self.facts and self.orders.conclude(self.proceed.order, self.facts)
        refused = isinstance(outcome, Refused) or self._refused or self._sends_a_guest_away()
        if isinstance(outcome, (Keep, Refused)) and refused and not self._failed:
            return self._commit(None, response)
        if not isinstance(outcome, Keep):
            self._roll_back()
            return response
        if self._failed:
            return self._keep_refusal(outcome.record, response)
        return self._commit(outcome.record, response)

    def _sends_a_guest_away(self) -> bool:
        """Whether the view redirects somebody without a user, and has saved nothing.

        So do checks of one's own that ask for a login. It is no result: the same form may be sent
        again after the login, and there is nothing here that could happen twice. Whoever commits
        has a result: a function of the database may write, however its statement looks.
        """
        facts = self.facts
        if facts is None or facts.status not in REDIRECTS or not self.of_guest:
            return False
        return not (self._committed or self._wrote or sessions.has_writes())

    def close(self) -> None:
        """Give the connection back, rolling back what was not committed. Idempotent."""
        try:
            if self.connection is not None and self.connection.in_transaction():
                self._roll_back()
        except SQLAlchemyError as error:
            unavailable(error)
        finally:
            self.active = False
            self.detach()
            self._discard()

    def _roll_back(self) -> None:
        """Undo all of it. Sessions work on connections of their own again."""
        try:
            sessions.roll_back()
        finally:
            self.active = False
            self._discard()  # which rolls back
            self._visit.restore()

    def _discard(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def _keep_refusal(self, record: Record, response: Response) -> Response:
        """The view raised, so nothing of it is left; a 4xx made of that is the order's answer."""
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            return self._keep(record, response)
        if self._committed:
            raise ConfigurationError(
                "a view raised after it had committed, so its order was rolled back, but an error "
                "handler answers with success. Return a response instead of raising"
            )
        return response

    def _keep(self, record: Record, response: Response) -> Response:
        """A database that does not take it is no harm: the next try is refused anew."""
        try:
            held.check_all()
            sessions.roll_back()  # of error handlers and hooks: the pool may have one connection
            replaces, wait = self.proceed.replaces, self.proceed.patience
            self._records.keep(record, replaces=replaces, wait=wait)
        except LeaseLost:
            return refused(replies.lease_lost())
        except IntegrityError as error:
            raise DuplicateKeyError from error
        except StillRunningError:
            pass
        except SQLAlchemyError as error:
            unavailable(error)
        return response

    def _commit(self, record: Record | None, response: Response) -> Response:
        """One COMMIT for everything that the view has committed, and for the record.

        ``record``: None to delete it, because the view has refused.
        """
        is_success = record is not None and response.status_code < HTTPStatus.BAD_REQUEST
        if is_success and sessions.has_writes():
            raise ConfigurationError(
                "the view of an order answers with success, but has changes in db.session that "
                "are not committed. Commit them before the response leaves; nothing was saved"
            )
        try:
            held.check_all()
            sessions.roll_back()
            self._end(record)
        except LeaseLost:
            return refused(replies.lease_lost())
        except DBAPIError as error:
            self._visit.restore()
            return _not_committed(error)
        return response

    def _end(self, record: Record | None) -> None:
        assert self.connection is not None
        if record is None:
            self._records.forget(self.connection, self.proceed.order.key)
        else:
            self._records.update(self.connection, record)
        self.active = False
        self.connection.commit()


def _not_committed(error: DBAPIError) -> Response:
    """Only a connection that breaks leaves it open whether the COMMIT was made."""
    if not error.connection_invalidated and not isinstance(error, OperationalError):
        raise error
    unavailable(error)
    unknown = error.connection_invalidated
    return refused(replies.outcome_unknown() if unknown else replies.not_saved())


def _refuse_autocommit(connection: sa.Connection) -> None:
    """Such an engine commits the record, and each statement of the view, at once."""
    dialect = connection.dialect
    level = connection.get_execution_options().get("isolation_level")
    if (level or getattr(dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT":
        raise ConfigurationError(
            "orders need a database that rolls back: its engine has isolation_level AUTOCOMMIT. "
            "Remove it from SQLALCHEMY_ENGINE_OPTIONS, or name another bind key in USING"
        )


def _status(error: HTTPException) -> int:
    return error.response.status_code if error.response else error.code or 500


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


def _joining(choose: Callable[..., Any]) -> Callable[..., Any]:
    def get_bind(self: Session, *args: Any, **kwargs: Any) -> sa.Engine | sa.Connection:
        bind: sa.Engine | sa.Connection = choose(self, *args, **kwargs)
        connection = _connection_for(bind)
        if connection is None:
            return bind
        self.join_transaction_mode = "create_savepoint"
        return connection

    return get_bind


def _connection_for(bind: object) -> sa.Connection | None:
    """That of the order which runs, if this is its database."""
    joined = sessions.order_of_app()
    if not isinstance(joined, Joined) or not joined.active or bind is not joined.engine:
        return None
    return joined.connection
