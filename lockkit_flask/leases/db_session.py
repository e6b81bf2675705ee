"""The session of Flask-SQLAlchemy around a lock, when the app uses it.

A snapshot taken before the grant shows what was there before the last holder's COMMIT: a view that
acts on it oversells. So the transaction that an earlier hook opened (Flask-Login reads the user) is
ended before a lock is asked for. If it has written, lockkit must not end it: that is an error.

lockkit asks PostgreSQL and SQLite whether it has written. Others do not tell: there the texts of
statements are kept, and read only if needed. In an order each is read, as all would say yes.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from flask import appcontext_pushed, current_app, has_app_context

from lockkit.leases.until import WAYS_OUT, WRITES
from lockkit.model.errors import OpenTransaction
from lockkit_flask.leases.notes import locks_rows, note, noted_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flask import Flask
    from flask_sqlalchemy import SQLAlchemy
    from sqlalchemy import Connection, Engine
    from sqlalchemy.orm import Session

    from lockkit_flask.orders.open_order import OpenOrder

T = TypeVar("T")

ORDER: ContextVar[OpenOrder | None] = ContextVar("lockkit_order", default=None)
"""The order that runs in this thread or task.

Not in ``g``: code that pushes an app context of its own while the view runs, such as an eager task
of Celery, has another ``g`` and another session, but belongs to the order as well.
"""

SAVEPOINTS = "_lockkit_savepoints"
"""Attribute of a connection in whose transaction an order runs: the savepoints of its sessions."""

KEEPER = "lockkit.keeper"
"""Key of a session's ``info``: the leases that the end of its transaction gives back."""

_LISTENING = "_lockkit_listening"
"""Attribute of a dialect: a lock."""

_WAYS = ("do_execute", "do_executemany", "do_execute_no_params")
_START = r"(?>[\s(]|--[^\n]*\n|/\*(?!!)(?s:.*?)\*/)*+"  # MySQL executes /*!…*/
_PLAN = r"explain\b(?!(?s:.*)\banaly[sz]e\b)"  # ANALYZE executes it
_HARMLESS = r"(select|with|show|set(?!\s+statement)|pragma|values|savepoint|release|rollback)\b"
_BEGIN = r"begin(\s+(work|tran(saction)?|deferred|immediate|exclusive))*\s*\Z"  # else: a program
_READS = re.compile(rf"(?i){_START}({_HARMLESS}|{_BEGIN}|{_PLAN})")
_VERBS = "insert|update|delete|merge|exec|execute"  # SQL Server: SET NOCOUNT ON EXEC sell
_CHANGES = re.compile(rf"(?i){_START}(with|set)\b(?s:.*)\b({_VERBS})\b")
_TEXTS = re.compile(r"""'[^']*'|"[^"]*"|--[^\n]*|/\*(?!!)(?s:.*?)\*/""")
_INTO = re.compile(r"(?i)\binto\b")
_CHANGED = "has changes or locked rows that are not committed"
_LOCKED = "has locked rows"


def behind(proxy: T) -> T:
    """The object behind a proxy. To read an attribute through the proxy costs three calls more."""
    found: T = proxy._get_current_object()  # type: ignore[attr-defined]
    return found


def database_of(app: Flask) -> SQLAlchemy | None:
    """The app's Flask-SQLAlchemy extension, if it has one; not Flask-SQLAlchemy-Lite."""
    found = app.extensions.get("sqlalchemy")
    return found if hasattr(found, "metadatas") else None


def watch_contexts(app: Flask) -> None:
    """Note statements if a database does not tell. Find that out in app contexts: Flask-SQLAlchemy
    may be set up after lockkit, a ``begin`` listener of SQLite in a context, an engine replaced."""

    def watch(sender: Flask, **_: object) -> None:
        db = database_of(sender)
        if db is None:
            return
        for engine in (engines := db.engines.values()):
            if not _tells(engine):
                listen_to(engine.dialect)
        if all(engine.dialect.name == "postgresql" for engine in engines):
            appcontext_pushed.disconnect(watch, sender)

    appcontext_pushed.connect(watch, app, weak=False)


def listen_to(dialect: Any) -> None:
    """Hear each statement of an engine from now on. The dialect calls: an engine's listener would
    cost twice as much, because SQLAlchemy would look for listeners of every kind."""
    from sqlalchemy import event

    with vars(dialect).setdefault(_LISTENING, Lock()):  # SQLAlchemy loses one of two at once
        for way in _WAYS:
            if _hear not in getattr(dialect.dispatch, way):
                event.listen(dialect, way, _hear)


def is_heard(dialect: Any) -> bool:
    """Whether we hear each statement. False: not yet; or a listener of the app comes first, which
    may execute statements, and SQLAlchemy then calls no other one."""
    return all(next(iter(getattr(dialect.dispatch, way)), None) is _hear for way in _WAYS)


def current_session() -> Session | None:
    """The session of the current app context; None if there is none, or it was not used yet."""
    db = database_of(behind(current_app)) if has_app_context() else None
    if db is None or not db.session.registry.has():
        return None
    found: Session = db.session()
    return found


def order_of_app() -> OpenOrder | None:
    """The order of the current app that runs here."""
    order = ORDER.get()
    if order is None or not has_app_context() or order.context.app != current_app:
        return None
    return order


def end_read(name: str | None = None) -> None:
    """End a transaction that has only read; objects stay attached and are read again when used.

    ``name``: of the lock that is asked for; None: an order begins. Raises OpenTransaction if the
    session has written, or is about to: only the app may commit that.
    """
    what = "an order begins" if name is None else f"the lock {name!r} was asked for"
    if (order := order_of_app()) is not None and order.active:
        raise OpenTransaction(
            f"{what} while the transaction of an order is open: it would be released before the "
            f"order commits. Have @lock_view on the view function itself, or below decorators that "
            f"use functools.wraps: then it is taken before the transaction begins. Or hold it "
            f"until that COMMIT: {WAYS_OUT}",
            name=name,
        )
    if (session := current_session()) is None:
        return
    if has_own_options(session):
        raise OpenTransaction(
            f"{what} while the connection of db.session has execution options of its own, which "
            f"would be lost with its transaction: set them on the engine, or once you have the "
            f"lock or the order",
            name=name,
        )
    if why := is_to_stay(session):
        or_wait = f", or hold the lock until the COMMIT: {WAYS_OUT}"
        raise OpenTransaction(
            f"{what} while db.session {why}: it would be released before others can see what is "
            f"changed. Commit or roll back first{or_wait * (name is not None)}",
            name=name,
        )
    end_if_begun(session)


def end_if_begun(session: Session) -> None:
    """Let the next query see what others have committed meanwhile, even of objects that a COMMIT
    leaves (``expire_on_commit=False``). What a test has flushed around its savepoint stays."""
    is_of_test = any(_is_savepoint(begun) for _, begun, *_ in reached(session))
    if session.in_transaction() and not is_of_test:
        session.rollback()
    else:
        session.expire_all()


def has_writes() -> bool:
    """Whether the session has changes that are not committed."""
    session = current_session()
    return session is not None and _has_changed(session)


def roll_back() -> None:
    """Roll the session back, if there is one."""
    if session := current_session():
        session.rollback()


def is_to_stay(session: Session) -> str:
    """For people: why lockkit must not end the session's transaction; empty if it may."""
    if _has_changed(session):
        return _CHANGED
    if session.in_nested_transaction():
        return "is inside begin_nested()"
    if getattr(session, "_trans_context_manager", None) is not None:  # no other way
        return "is inside begin()"
    if (keeper := session.info.get(KEEPER)) and keeper.is_open() and keeper.has_leases():
        return "keeps a lock until its COMMIT"
    noted = (
        _said(each) or ()
        for each, begun, *_ in reached(session)
        if not (_is_savepoint(begun) or _tells(each.engine))
    )
    return _LOCKED if any(map(locks_rows, chain(*noted))) else ""


def has_own_options(session: Session) -> bool:
    """Whether a connection has options, such as an isolation level, that the next transaction of
    the session would not have."""
    usual = getattr(session, "execution_options", {})  # of SQLAlchemy 2.1
    return any(
        each.get_execution_options() != {**each.engine.get_execution_options(), **usual}
        for each, begun, *_ in reached(session)
        if not _is_savepoint(begun)
    )


def reached(session: Session) -> set[tuple[Connection, Any, bool, bool]]:
    """The connections of the session's transaction, each with the transaction that it has there.
    Only these connections may have changes or a snapshot."""
    root = session.get_transaction()
    return set() if root is None else set(root._connections.values())


def _has_changed(session: Session) -> bool:
    """Whether the session has something new, changed or deleted, or has written since its last
    COMMIT. A transaction that has failed counts, too: the app must roll it back.
    """
    if session.new or session.deleted or not session.is_active:
        return True
    if any(session.is_modified(changed) for changed in session.dirty):
        return True
    return any(
        _has_written(session, connection, begun) for connection, begun, *_ in reached(session)
    )


def _has_written(session: Session, connection: Connection, begun: object) -> bool:
    """Also True if that cannot be told. False inside a savepoint, such as a test's."""
    from sqlalchemy.exc import SQLAlchemyError

    if order := _order_on(connection):
        return bool(order.savepoints.has_changes(session))
    if _is_savepoint(begun) or not connection.in_transaction():
        return False
    if not _tells(connection.engine):
        kept = _said(connection)
        return kept is None or any(map(changes, kept))
    try:
        if connection.dialect.name == "postgresql":
            return bool(connection.exec_driver_sql(WRITES).scalar())
        driver: Any = connection.connection.driver_connection
        return bool(driver.in_transaction)
    except SQLAlchemyError:  # such as: an earlier statement has failed
        return True


def _is_savepoint(begun: object) -> bool:
    from sqlalchemy import NestedTransaction

    return isinstance(begun, NestedTransaction)


def _tells(engine: Engine) -> bool:
    """Whether a database tells. SQLite does, unless a listener begins its transactions early."""
    heard: Any = engine.dispatch
    name = engine.dialect.name
    return name == "postgresql" or (name == "sqlite" and not heard.begin)


def _order_on(connection: Connection) -> Any:
    """The order whose transaction is on this connection, or None."""
    order = ORDER.get()
    return order if getattr(order, "connection", None) is connection else None


def changes(sql: str) -> bool:
    """Whether statements have changed something, or may have."""
    sql = sql.rstrip("; \n")
    if ";" in sql:  # in a text with a backslash, nobody knows where that ends
        return "\\" in sql or any(map(changes, filter(str.strip, _TEXTS.sub(" ", sql).split(";"))))
    if not _READS.match(sql) or _CHANGES.match(sql):
        return True
    return "into" in sql.lower() and _INTO.search(sql) is not None  # a search alone is slow


def _said(connection: Connection) -> Iterable[str] | None:
    """The noted statements of its transaction. None: they are not heard."""
    if not is_heard(connection.dialect):
        return None
    return noted_in(connection.get_transaction())


def _hear(cursor: Any, sql: str, *more: Any) -> bool:
    """Called before a statement is executed. True: it was executed here."""
    connection = more[-1].root_connection
    if savepoints := vars(connection).get(SAVEPOINTS):  # a listener may have added a comment:
        return bool(savepoints.execute(cursor, sql, getattr(more[-1], "statement", sql)))
    if not _tells(connection.engine):
        note(connection.get_transaction(), sql)
    return False
