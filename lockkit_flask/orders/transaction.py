"""The transaction of an order. The request's session works inside it, and does not know that.

The order's record and everything that ``db.session`` commits while the view runs belong to one
outer transaction on one connection. The session joins it by ``create_savepoint``: its commits end
savepoints, its rollbacks undo what followed. The one COMMIT comes after the response is known.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from flask import session
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from werkzeug.exceptions import HTTPException

from lockkit.model.errors import ConfigurationError, LeaseLost
from lockkit.model.log import log
from lockkit.orders import Forget, Keep, gate, refusals
from lockkit.orders.failures import note, unsaved
from lockkit.orders.record import RecordChangedError, refuses
from lockkit_flask.leases import db_session, request_leases
from lockkit_flask.orders import messages
from lockkit_flask.orders.open_order import OpenOrder, asking_for_bind, may_write, status_of
from lockkit_flask.orders.savepoint import FIRST
from lockkit_flask.orders.table import Savepoints, Sql, typed_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa
    from flask import Response
    from flask_sqlalchemy import SQLAlchemy
    from sqlalchemy.orm import Session

    from lockkit.orders import Record, Refusal
    from lockkit.orders.psycopg import Step
    from lockkit_flask.orders.table import OrderTable

_INSTALLED = "_lockkit_joins"
REDIRECTS = (HTTPStatus.FOUND, HTTPStatus.SEE_OTHER)


class SharedTransaction(gate.OrderInDatabase, OpenOrder):
    """One order's transaction, while its request runs. ``connection`` is used by nobody else."""

    engine: sa.Engine
    connection: sa.Connection | None = None
    savepoints: Savepoints
    saved = False  #: the transaction is committed, with something in it
    committed = False  #: a session of the app has committed, in this database or in another one
    _raised_refusal = False  #: the view raised a refusal, which rolls nothing back
    _sends_away = False  #: the view has sent a guest elsewhere, as to log in, and saved nothing
    _session_before: tuple[dict[str, Any], bool] | None = None
    _after_commit: list[Callable[[], object]]

    def begin(self) -> None:
        """BEGIN, and write the record: a second try at the same time waits here for the first.

        From now on the sessions of the app work inside the transaction.
        """
        table: OrderTable = self.visit.records
        table.check_engine()
        teach_to_join(table.db)  # again, because its session may have been replaced
        with typed_errors():
            self.engine = table.engine
            self.connection = self.engine.connect()
            try:
                self.connection.begin()
                _refuse_autocommit(self.connection)
                database = _Begins(self.connection)
                self._insert(database, self.orders.running(self.order))
                self.savepoints = Savepoints(self.connection, database.ahead)
            except BaseException:  # also if interrupted: its connection is in a transaction
                self._discard()
                raise
        self._session_before = deepcopy(dict(session)), session.modified
        self._after_commit = []
        self.active = self.begun = True

    def serves(self, bind: Any, session: Session, clause: Any) -> bool:
        """Whether a session of this bind joins. Raises ConfigurationError if it may write with
        the order's engine, but other options."""
        is_apart = bind is not self.engine and getattr(bind, "pool", None) is self.engine.pool
        if is_apart and may_write(session, clause):
            raise ConfigurationError(messages.OTHER_OPTIONS)
        return bind is self.engine

    def on_commit(self, function: Callable[[], object]) -> None:
        if self.saved:
            function()
        elif self.connection is not None:
            self._after_commit.append(function)

    def fail(self, error: BaseException) -> Any:
        """Roll back at once: error handlers write outside of the order's transaction.

        They get its connection from the pool, which may have no other. ``abort(redirect(…))`` is an
        answer and not a failure. After a refusal, what the view has committed stays.
        """
        status = status_of(error) if isinstance(error, HTTPException) else 500
        self._raised_refusal = refuses(status)
        if self._raised_refusal or status < HTTPStatus.BAD_REQUEST:
            return None
        self.failed = True
        self._roll_back()
        answer = super().fail(error)
        if isinstance(error, gate.OrderStopped) and error.refusal is not None:
            return self.visit.refuse(error.refusal)
        return answer

    def capture(self, response: Response) -> None:
        """Note now whether the view sends an anonymous visitor elsewhere and has saved nothing.

        An app's own check that asks for a login does so. This does not end the order: the form may
        be sent again after the login. A view that commits does end it, whatever it has committed.
        """
        self.visit.has_saved = self.committed
        self.visit.capture(response)
        if response.status_code in REDIRECTS and self.visit.of_guest:
            self._sends_away = not (self.committed or db_session.has_writes())

    def overrule(self) -> None:
        super().overrule()
        self._roll_back()  # at once, as in ``fail``

    def check_leases(self) -> None:
        super().check_leases()
        for held in request_leases.of_this_request():
            held.lease.check()
        if self.kept is not None:
            self.kept.check()

    def _end(self, response: Response) -> Response:
        try:
            outcome = self._verdict(response)
            forgets = isinstance(outcome, Forget) or self._raised_refusal or self._sends_away
            if isinstance(outcome, (Keep, Forget)) and forgets and not self.failed:
                return self._commit(None, response)
            if not isinstance(outcome, Keep):
                self._roll_back()
                return response
            return (self._keep if self.failed else self._commit)(outcome.record, response)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give the connection back, rolling back what was not committed. Idempotent."""
        try:
            if self.connection is not None and self.connection.in_transaction():
                self._roll_back()
        except SQLAlchemyError as error:
            note(error)
        finally:
            self._discard()
            self._restore_session()

    def _roll_back(self) -> None:
        """Undo everything. From now on, sessions work on connections of their own."""
        try:
            with suppress(SQLAlchemyError):  # such as: the connection is lost
                db_session.roll_back()
        finally:
            self._discard()  # which rolls back
            self._restore_session()

    def _restore_session(self) -> None:
        """The order is undone, so a cart that the view has emptied comes back.

        This is done only once: what an error handler puts into the session afterwards stays. Limit:
        what the view itself has saved, by a method of a server-side session, stays there, too.
        """
        before, self._session_before = self._session_before, None
        self.undone = self.undone or before is not None
        if before is not None and dict(session) != before[0]:
            session.clear()
            session.update(before[0])
            session.modified = before[1]

    def _discard(self) -> None:
        self.active, connection, self.connection = False, self.connection, None
        if connection is not None:
            vars(connection).pop(db_session.SAVEPOINTS, None)
            if not connection.in_transaction():  # else a COMMIT that failed stays open in the pool
                connection.rollback()
            connection.close()

    def _keep(self, record: Record, response: Response) -> Response:
        """The view raised, so its changes are undone. A 4xx made of that is the order's answer.

        If the database cannot store it, that does no harm: the next try is refused anew.
        """
        if record.snapshot.status < HTTPStatus.BAD_REQUEST:
            if not self.savepoints.committed:
                return response
            raise ConfigurationError(messages.SUCCESS_OF_A_FAILURE)
        db_session.roll_back()  # what handlers and hooks began: the pool may have one connection
        return self._keep_refusal(record, response)

    def _commit(self, record: Record | None, response: Response) -> Response:
        """One COMMIT for everything that the view has committed, and for the record.

        ``record``: None to delete the record, because the view has refused.
        """
        is_success = record is not None and record.snapshot.status < HTTPStatus.BAD_REQUEST
        if is_success and db_session.has_writes():
            raise ConfigurationError(messages.CHANGES)
        assert self.connection is not None
        try:
            self.check_leases()
            db_session.roll_back()
            if record is None and self.savepoints.is_over and not self.savepoints.committed:
                log.warning(messages.STOPPED)
                return response
            self.savepoints.check()
            self._write(Sql(self.connection), record)
            self.active = False
            self.connection.commit()
            self._session_before = None
        except LeaseLost:
            return self._refuse(refusals.LEASE_LOST)
        except (DBAPIError, RecordChangedError) as error:
            refusal = unsaved(error)
            if refusal is None:
                raise
            if isinstance(error, DBAPIError):
                note(error)
            return self._refuse(refusal)
        self.saved = bool(record or self.committed)
        self._discard()  # the pool may have one connection
        for function in self._after_commit if self.saved else ():
            function()
        return response

    def _refuse(self, refusal: Refusal) -> Response:
        self.abandon()  # first: the page may ask the database, and the connection may be dead
        return self.visit.refuse(refusal)


class _Begins(Sql):
    """Has the record bring the first SAVEPOINT along, if both can be one message."""

    def __init__(self, connection: sa.Connection) -> None:
        super().__init__(connection)
        self.ahead = FIRST if self.is_direct else ""

    def run(self, *steps: Step, commit: bool = False) -> Any:
        ahead = [(self.ahead, ())] if self.ahead else ()
        return super().run(*steps, *ahead, commit=commit)


def _refuse_autocommit(connection: sa.Connection) -> None:
    """With autocommit, the record and each statement of the view would be committed at once."""
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "get_autocommit"):  # PyMySQL and mysqlclient
        at_once = driver.get_autocommit()
    elif connection.dialect.name == "sqlite" and driver.isolation_level is None:
        at_once = not driver.in_transaction  # a listener may have begun one
    else:
        at_once = getattr(driver, "autocommit", False) is True  # sqlite3 has -1, too
    if at_once:
        raise ConfigurationError(messages.AUTOCOMMIT)


def teach_to_join(db: SQLAlchemy) -> None:
    """Have the sessions of this extension, in all its apps, join an order's transaction. This
    changes the class that its session factory has made for itself, so no other session joins."""
    session_class: Any = getattr(db.session.session_factory, "class_", None)
    if session_class is None:
        raise ConfigurationError(messages.CANNOT_JOIN)
    if hasattr(session_class, _INSTALLED):
        return
    choose = session_class.get_bind

    def get_bind(self: Session, *args: Any, **kwargs: Any) -> sa.Engine | sa.Connection:
        bind: sa.Engine | sa.Connection = choose(self, *args, **kwargs)
        order: Any = db_session.order_of_app()
        if order is None or not order.active or not order.serves(bind, self, kwargs.get("clause")):
            return bind
        self.join_transaction_mode = "create_savepoint"
        order.savepoints.join(self)
        joined: sa.Connection = order.connection
        return joined

    def note_commit(session: Session) -> None:
        """Called after each COMMIT, also of nothing, and after the end of each savepoint."""
        order: Any = db_session.order_of_app()
        if order is not None and order.active and not session.in_nested_transaction():
            order.committed = order.committed or bool(db_session.reached(session))

    session_class.get_bind = get_bind
    session_class.connection = asking_for_bind(session_class.connection)
    event.listen(session_class, "after_commit", note_commit)
    setattr(session_class, _INSTALLED, True)
