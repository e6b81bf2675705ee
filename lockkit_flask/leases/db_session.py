"""The session of Flask-SQLAlchemy around a lock, when the app uses it.

A snapshot taken before the grant shows what was there before the last holder's COMMIT: who acts
on it oversells. So the transaction that an earlier hook opened (Flask-Login reads the user) is
ended before a lock is asked for. One that has written is not ours to end: that is an error.
"""

from __future__ import annotations

import re
import weakref
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from flask import appcontext_pushed, current_app, has_app_context

from lockkit.model.errors import OpenTransaction

if TYPE_CHECKING:
    from flask import Flask
    from flask_sqlalchemy import SQLAlchemy
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, SessionTransaction

    from lockkit.leases.until import Transaction
    from lockkit_flask.orders.open_order import OpenOrder

T = TypeVar("T")

ORDER: ContextVar[OpenOrder | None] = ContextVar("lockkit_order", default=None)
"""The order that runs in this thread or task.

Not in ``g``: what pushes an app context of its own while the view runs, as an eager task of Celery
does, has another ``g`` and another session, and belongs to the order all the same.
"""

_SEEN = "lockkit.seen"
_NOTE = "lockkit.note"
_START = r"(?>[\s(]|--[^\n]*\n|/\*(?!!)(?s:.*?)\*/)*+"  # MySQL executes /*!…*/
_PLAN = r"explain\b(?!(?s:.*)\banaly[sz]e\b)"  # ANALYZE executes it
_HARMLESS = rf"((select|show|set|pragma|values|begin|savepoint|release|rollback)\b|{_PLAN})"
_READS = re.compile(_START + _HARMLESS, re.IGNORECASE)
_WITH = re.compile(_START + r"with\b", re.IGNORECASE)
_CHANGES = re.compile(r"\b(insert|update|delete|merge|into)\b", re.IGNORECASE)
_INTO = re.compile(r"\binto\b")
_LOCKS = re.compile(r"\bfor\s+(no\s+key\s+)?(update|(key\s+)?share)\b|\bshare\s+mode\b")


class Seen:
    """What the transaction of a session has done so far, and what its end gives back."""

    begun = False  #: it has reached a database, and may have a snapshot there
    wrote = False
    locked = False
    keeper: Transaction | None = None


def seen_in(session: Session) -> Seen:
    found: Seen = session.info.setdefault(_SEEN, Seen())
    return found


def behind(proxy: T) -> T:
    """What it stands for now: each look at an attribute of the proxy itself is three calls more."""
    found: T = proxy._get_current_object()  # type: ignore[attr-defined]
    return found


def database_of(app: Flask) -> SQLAlchemy | None:
    """The app's Flask-SQLAlchemy extension, if it has one."""
    return app.extensions.get("sqlalchemy")


def watch_at_first_context(app: Flask) -> None:
    """Notice which sessions have written. Flask-SQLAlchemy may be set up after lockkit."""

    def watch(sender: Flask, **_: object) -> None:
        db = database_of(sender)
        if db is not None:
            appcontext_pushed.disconnect(watch, sender)
            _listen(db)

    appcontext_pushed.connect(watch, app, weak=False)


def _listen(db: SQLAlchemy) -> None:
    """Once per extension, however many apps it serves."""
    from sqlalchemy import event

    if event.contains(db.session, "after_begin", _after_begin):
        return
    event.listen(db.session, "after_begin", _after_begin)
    event.listen(db.session, "before_commit", _before_commit)
    event.listen(db.session, "after_transaction_end", _after_transaction)


def current_session() -> Session | None:
    """The session of the current app context, if there is one and it was used; none is made."""
    db = database_of(behind(current_app)) if has_app_context() else None
    if db is None or not db.session.registry.has():
        return None
    return db.session()


def order_of_app() -> OpenOrder | None:
    """The order of the current app that runs here."""
    order = ORDER.get()
    if order is None or not has_app_context() or order.app != current_app:
        return None
    return order


def only_reads(sql: str) -> bool:
    """Whether a statement is known to change nothing, or only where its transaction stands."""
    if _WITH.match(sql):
        return not _CHANGES.search(sql)
    return bool(_READS.match(sql)) and not _says(_INTO, "into", sql)


def locks_rows(sql: str) -> bool:
    return _says(_LOCKS, "for", sql) or _says(_LOCKS, "share", sql)


def _says(what: re.Pattern[str], word: str, sql: str) -> bool:
    """Anywhere: names and comments may follow. A word is found much faster than a pattern."""
    lower = sql.lower()
    return word in lower and bool(what.search(lower))


def end_read(name: str | None = None) -> None:
    """End a transaction that has only read; objects stay attached and are read again when used.

    ``name``: of the lock that is asked for; None: an order begins. Raises OpenTransaction when it
    has written, or is about to: that is for the app to commit.
    """
    what = "an order begins" if name is None else f"the lock {name!r} was asked for"
    order = order_of_app()
    if order is not None and order.active:
        raise OpenTransaction(
            f"{what} while the transaction of an order is open: it would be released before the "
            f"order commits. Have @lock_view on the view function itself, or below decorators that "
            f"use functools.wraps: then it is taken before the transaction begins. Or hold it "
            f"until that COMMIT: until='commit'; in_atomic='allow' is for a lock that protects "
            f"nothing in a database",
            name=name,
        )
    session = current_session()
    if session is None:
        return
    why = is_to_stay(session)
    if why:
        raise OpenTransaction(
            f"{what} while db.session {why}: it would be released before others can see what is "
            f"changed. Commit or roll back first, or hold the lock until the COMMIT: "
            f"until='commit'; in_atomic='allow' is for a lock that protects nothing in a database",
            name=name,
        )
    end_if_begun(session)


def end_if_begun(session: Session) -> None:
    """The next query sees what others have committed meanwhile."""
    if session.in_transaction():
        session.rollback()


def has_writes() -> bool:
    """Whether the session has changes that are not committed."""
    session = current_session()
    return session is not None and _has_changed(session)


def roll_back() -> None:
    """Roll the session back, if there is one."""
    session = current_session()
    if session is not None:
        session.rollback()


def is_to_stay(session: Session) -> str:
    """Why its transaction is not ours to end, for people; else nothing."""
    if _has_changed(session):
        return "has changes that are not committed"
    if session.in_nested_transaction():
        return "is inside begin_nested()"
    if getattr(session, "_trans_context_manager", None) is not None:  # no other way
        return "is inside begin()"
    seen = seen_in(session)
    if seen.keeper is not None and seen.keeper.is_open() and seen.keeper.has_leases():
        return "keeps a lock until its COMMIT"
    return "has locked rows" if seen.locked else ""


def _has_changed(session: Session) -> bool:
    """Whether something is new, changed or deleted in it, or was written since its last COMMIT."""
    if seen_in(session).wrote or session.new or session.deleted:
        return True
    return any(session.is_modified(changed) for changed in session.dirty)


def _after_begin(session: Session, _: SessionTransaction, connection: Connection) -> None:
    """Have each statement noted: not all come by ``flush`` and ``execute`` of the session, such as
    those of ``bulk_insert_mappings`` and of its ``connection()``."""
    from sqlalchemy import event

    seen_in(session).begun = True
    note = session.info.setdefault(_NOTE, partial(_note_statement, weakref.ref(session)))
    event.listen(connection, "before_cursor_execute", note)  # once for each, also if repeated


def _note_statement(
    ref: weakref.ref[Session], _connection: object, _cursor: object, sql: str, *_: object
) -> None:
    """Whatever is not known to read counts as a write."""
    session = ref()
    if session is None or not session.in_transaction():
        return
    if not only_reads(sql):
        if order_of_app() is None or current_session() is session:  # in an order several share it
            seen_in(session).wrote = True
    elif locks_rows(sql):
        seen_in(session).locked = True


def _before_commit(session: Session) -> None:
    """A lost lease is no COMMIT."""
    keeper = seen_in(session).keeper
    if keeper is not None:
        keeper.check()


def _after_transaction(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        seen: Seen | None = session.info.pop(_SEEN, None)
        if seen is not None and seen.keeper is not None:
            seen.keeper.give_back()
