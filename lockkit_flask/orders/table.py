"""The records of orders in the app's own database, and the savepoints in an order's transaction."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from lockkit.model.errors import ConfigurationError
from lockkit.orders import Record, rows
from lockkit.orders.failures import NO_SAVEPOINT, typed
from lockkit.orders.psycopg import IN_ERROR, OPEN, Step, is_plain, status_of
from lockkit.orders.rows import TABLE
from lockkit.orders.table import Table
from lockkit.stores.sql.vendors import unavailable
from lockkit_flask.leases import db_session
from lockkit_flask.orders import messages, schema
from lockkit_flask.orders.savepoint import FIRST, MARK, Savepoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flask_sqlalchemy import SQLAlchemy
    from sqlalchemy.orm import Session

_checked: WeakSet[sa.Engine] = WeakSet()

LISTENED = ("begin", "before_cursor_execute", "after_cursor_execute", "commit")
"""Listeners may choose a tenant's schema, or refuse a COMMIT."""


class OrderTable(Table):
    """The records in one database of the current app, by its bind key.

    The engine is asked for at each use, because tests replace engines. Raises BackendUnavailable;
    ConfigurationError for an unknown bind key or driver, no table, or one of an earlier release.
    """

    MISSING = (
        f"the database has no table {TABLE!r} for the records of orders",
        (
            "make it with LockKit.create_tables(); in the database of USING, db.create_all() or a "
            "migration does it too"
        ),
    )

    def __init__(self, db: SQLAlchemy, using: str | None) -> None:
        if using not in db.metadatas:
            raise ConfigurationError(
                f"LOCKKIT_ORDERS['USING'], or that of @idempotent, is not a bind key: {using!r}"
            )
        self.using, self.db = using, db

    @property
    def engine(self) -> sa.Engine:
        found = self.db.engines[self.using]
        if isinstance(found, sa.Engine):
            return found
        raise ConfigurationError(messages.NO_ENGINE)

    def of(self, using: str) -> OrderTable:
        """The records in this database."""
        return self if using == self.using else OrderTable(self.db, using)

    def create(self) -> None:
        """Create the table if it is missing."""
        schema.order_table(self.db.metadatas[self.using]).create(self.engine, checkfirst=True)

    def find(self, key: str, *, fresh: bool) -> Record | None:
        """The record, read outside of any transaction."""
        self.check_engine()
        with typed_errors(), self.engine.connect() as connection:
            if connection.dialect.name == "postgresql":  # saves the round trips of BEGIN, ROLLBACK
                connection.execution_options(isolation_level="AUTOCOMMIT")
            return rows.find(Sql(connection), key)

    def check_engine(self) -> None:
        """Refuse a driver, or an earlier release's table. Once for each engine."""
        if (engine := self.engine) not in _checked:
            with typed_errors():
                schema.refuse(engine)
            _checked.add(engine)

    @contextmanager
    def begin(self) -> Iterator[Sql]:
        with typed_errors(), self.engine.begin() as connection:
            yield Sql(connection)

    def is_missing(self) -> bool:
        self.check_engine()
        with typed_errors():
            return not sa.inspect(self.engine).has_table(TABLE)


class Sql:
    """A connection, as ``lockkit.orders.rows`` uses it."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._dialect = connection.dialect
        self.vendor = self._dialect.name

    @property
    def is_direct(self) -> bool:
        heard: Any = self._connection.engine.dispatch
        driver = self._connection.connection.driver_connection
        return not any(getattr(heard, event) for event in LISTENED) and is_plain(driver)

    def run(self, *steps: Step, commit: bool = False) -> Any:
        """Run statements. Bypass SQLAlchemy if it would only pass them on and nobody listens."""
        if self.is_direct:
            return self._run_on(self._connection.connection.driver_connection, steps, commit=commit)
        result: Any = None
        for sql, parameters in steps:
            said = sql.replace("%s", "?") if self._dialect.paramstyle == "qmark" else sql
            result = self._connection.exec_driver_sql(said, parameters)
        return result.fetchall() if result.returns_rows else result.rowcount

    def _run_on(self, driver: Any, steps: Sequence[Step], *, commit: bool) -> Any:
        kind: Any = self._dialect.loaded_dbapi.Error
        try:
            return rows.send(driver, steps, commit=commit)
        except kind as error:
            if lost := self._dialect.is_disconnect(error, driver, None):
                self._connection.invalidate(error)
            raise DBAPIError.instance(
                steps[0][0], (), error, kind, connection_invalidated=lost, dialect=self._dialect
            ) from error


class Savepoints:
    """The savepoints of an order's connection, and the sessions that work on it.

    Each session has its own savepoint. If the view pushes an app context, the savepoint of that
    context's session lies inside that of the view's session. So the end of one can undo what the
    other has done. These rules keep them apart; ``check`` raises if something was undone anyway.

    - A session that has only read undoes nothing: if others have changed something since, or have
      savepoints inside, its savepoint is released or stays. The session sees no difference.
    - Once a session has committed, the savepoints around it of sessions that have only read are
      made anew, so what these change, and roll back, from then on is their own.
    - While a session's transaction is open, none of another thread, which may have a copy of the
      view's context, works in it: the statements of both could come in any sequence.
    """

    def __init__(self, connection: sa.Connection, ahead: str = "") -> None:
        self._joined: dict[Session, int] = {}  #: with its thread; the one that worked last is last
        self._begun: list[Session] = []  #: those whose statements were executed
        self._lock, self._open = Lock(), list[Savepoint]()
        self._connection, self._root = connection, connection.get_transaction()
        self._driver: Any = connection.connection.driver_connection
        self._changes: list[Session] = []  #: the session of each change
        self._ahead = ahead  #: executed before the first statement
        self._is_undone = False  #: a session has undone what another one has changed
        self.committed = False  #: a session has committed, which released its savepoint
        self._is_over = False
        vars(connection)[db_session.SAVEPOINTS] = self
        db_session.listen_to(connection.dialect)
        if not db_session.is_heard(connection.dialect):
            raise ConfigurationError(messages.UNHEARD)

    @property
    def is_over(self) -> bool:
        """The database or the view has ended the transaction: nothing more is saved."""
        is_of_sqlite_over = getattr(self._driver, "in_transaction", True) is False
        if is_of_sqlite_over or self._connection.get_transaction() is not self._root:
            self._is_over = True
        return self._is_over

    def join(self, session: Session) -> None:
        """Note that the next statement of this thread comes from this session."""
        self._forget_ended()
        with self._lock:
            self._joined.pop(session, None)
            self._joined[session] = get_ident()

    def has_changes(self, session: Session) -> bool:
        """Whether the session has changed something since its savepoint; or in the whole order, if
        its savepoint has ended with one around it."""
        since = next((each.since for each in self._open if each.session is session), 0)
        return session in self._changes[since:]

    def check(self) -> None:
        """Raise if a session has undone what another one has changed, or has not committed, or if
        everything is undone."""
        if self.is_over:
            raise messages.stopped()
        self._forget_ended()
        if any(map(self._has_changes, self._open)):
            raise ConfigurationError(messages.UNCOMMITTED)
        if self._is_undone:
            raise ConfigurationError(messages.UNDONE)

    def _forget_ended(self) -> None:
        """Close ended ones: SQLAlchemy would go back to one that ended before those inside it."""
        while (nested := self._connection.get_nested_transaction()) and not nested.is_active:
            nested.close()

    def execute(self, cursor: Any, sql: str, as_made: str) -> bool:
        """Note a statement before it is executed. ``as_made``: before listeners of the app changed
        it. True: nobody else need execute it."""
        mark = MARK.fullmatch(as_made or "")
        undoes = mark is not None and mark[1] == "ROLLBACK TO "
        if self.is_over and not undoes:  # it would begin a transaction without the record
            raise messages.stopped()
        with self._lock:
            session = self._last()
            if session and not (mark and mark[1]):
                self._refuse_threads(session)
            if mark is None and session and db_session.changes(sql):
                self._changes.append(session)
            said = [] if mark is None else self._follow(as_made, *mark.groups())
        ahead, self._ahead = self._ahead, ""
        is_last = said == [f"RELEASE {FIRST}"] and not self._open
        if said == [ahead] or (is_last and status_of(self._driver) == OPEN):
            return True  # it came with the record; COMMIT releases it
        self._run(cursor, [] if self._is_over else said, undoes=undoes)
        return mark is not None

    def _run(self, cursor: Any, said: list[str], *, undoes: bool) -> None:
        """Execute statements about savepoints. After a deadlock, MySQL has none: a rollback has
        nothing left to do then, and its caller sees the error of the deadlock."""
        try:
            for each in said:
                cursor.execute(each)
        except Exception as error:
            if error.args[:1] != (NO_SAVEPOINT,):
                raise
            self._is_over = True
            if not undoes:
                raise messages.stopped() from error

    def _refuse_threads(self, session: Session) -> None:
        """Raise if a session of another thread works in the transaction. Else note this one."""
        others = [each for each in self._begun if each is not session and each.in_transaction()]
        if any(self._joined[each] != self._joined[session] for each in others):
            raise ConfigurationError(messages.THREADS)
        self._begun = [*others, session]

    def _last(self) -> Session | None:
        """The session of the next statement: the last to join of those that are still open. If none
        has joined on this thread, it works on a connection that another one has handed on."""
        found = [each for each in reversed(self._joined) if each.in_transaction()]
        here = get_ident()
        return next((each for each in found if self._joined[each] == here), next(iter(found), None))

    def _has_changes(self, point: Savepoint) -> bool:
        return point.session in self._changes[point.since :]

    def _follow(self, sql: str, verb: str, name: str) -> list[str]:
        """Note a statement about a savepoint. Returns those to execute."""
        if not verb:
            if session := self._last():
                self._open.append(Savepoint(name, session, len(self._changes)))
            return [sql]
        place = next((n for n, each in enumerate(self._open) if each.name == name), None)
        if place is None:  # the savepoint has ended with one around it
            return [f"SAVEPOINT {name}"]
        point = self._open[place]
        inside = [each for each in self._open[place + 1 :] if each.session is not point.session]
        is_shared = any(each is not point.session for each in self._changes[point.since :])
        failed = status_of(self._driver) == IN_ERROR
        undoes = verb != "RELEASE " and (failed or self._has_changes(point))
        self._open[place:] = [] if undoes else inside
        if undoes:
            self._is_undone = self._is_undone or is_shared
            del self._changes[point.since :]
            return [sql]
        anew = self._note_commit(point) if verb == "RELEASE " else []
        verb = "" if inside else "RELEASE " if is_shared else verb
        return [f"{verb}SAVEPOINT {name}", *(f"SAVEPOINT {each.name}" for each in anew)]

    def _note_commit(self, point: Savepoint) -> list[Savepoint]:
        """The savepoints around it that are made anew: its session has committed. None at the end
        of a ``begin_nested()``, which does not commit the session."""
        if any(each.session is point.session for each in self._open):
            return []
        self.committed = True
        changed = [n for n, each in enumerate(self._open, 1) if self._has_changes(each)]
        anew = self._open[max(changed, default=0) :]
        for each in anew:  # the older one of that name ends with the order
            each.since = len(self._changes)
        return anew


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raise lockkit's errors in place of SQLAlchemy's, such as DuplicateKeyError."""
    try:
        yield
    except SQLAlchemyError as error:
        raise typed(error, unavailable, OrderTable.MISSING[1]) from error
