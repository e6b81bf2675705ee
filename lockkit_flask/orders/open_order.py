"""The order of the current request: what the app may see of it, how it ends, and the savepoints of
the sessions that work in its transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flask import has_request_context, request
from werkzeug.exceptions import HTTPException
from werkzeug.local import LocalProxy

from lockkit.model.errors import ConfigurationError
from lockkit.orders import gate, redis_records
from lockkit_flask.leases import db_session, request_leases

if TYPE_CHECKING:
    import sqlalchemy as sa
    from flask import Flask, Response
    from sqlalchemy.orm import Session

    from lockkit.leases.until import Transaction
    from lockkit_flask.orders.visit import Visit


_MARK = re.compile(r"(RELEASE |ROLLBACK TO |)SAVEPOINT (\S+)")


class OpenOrder(gate.OpenOrder):
    """``request.order``: has ``order_id``, ``fencing_token`` and ``orphan``."""

    visit: Visit
    app: Flask
    active = False  #: the app's sessions work inside its transaction
    kept: Transaction | None = None  #: the leases that its end gives back: until="commit"

    environ: Any  #: of its request
    outer: OpenOrder | None = None  #: whose view has sent the app this order
    check_leases = staticmethod(request_leases.check_all)

    def capture(self, response: Response) -> None:
        """The view's answer, before hooks change it or save something."""
        self.visit.capture(response)

    def overrule(self) -> None:
        """An ``after_request`` hook has failed, or has made a failure of the view's answer. No
        other status that it makes of it says how the view has ended."""
        if self.visit.captured is not None:
            self.visit.captured = self.visit.captured._replace(status=500)


class ClaimedOrder(redis_records.ClaimedOrder, OpenOrder):
    """An HTTP exception is the view's answer; any other says nothing about what was done.

    Nor does what an error handler makes of that, unless it ends the order.
    """

    def overrule(self) -> None:
        """What the view did cannot be undone."""

    def abandon(self) -> None:
        """A hook that fails for the page of its error, too, has Flask end the request without us:
        what the view has answered stands."""
        captured = self.visit.captured
        if captured is None:
            super().abandon()
        else:
            self._settle(captured, failed=self._is_accident(None))

    def _is_accident(self, response: Any) -> bool:
        return self.failed and not isinstance(self.error, HTTPException)


@dataclass
class Savepoint:
    """One that is open in the transaction of an order."""

    name: str
    session: Session
    said: list[str]  #: the statements of the session since its transaction began
    since: int  #: so many changes were made before it

    def has_changes(self) -> bool:
        return db_session.are_changes(self.said)


class Savepoints:
    """Those of an order's connection, and the sessions that work on it.

    Each session has a savepoint of its own, and that of an app context which the view pushes lies
    inside that of the view's session. So the end of one can undo what the other has done. These
    rules keep them apart; ``check`` tells of what is undone all the same.

    - A session that has only read undoes nothing: if others have changed something since, or have
      savepoints inside, its savepoint is released, or stays. For the session that is the same.
    - Once a session has committed, the savepoints around it of sessions that have only read are
      made anew, so what these change, and roll back, from then on is their own.
    """

    def __init__(self, connection: sa.Connection) -> None:
        from sqlalchemy import event

        self.joined: tuple[Session, ...] = ()  #: the last one, last
        self._connection = connection
        self._open: list[Savepoint] = []
        self._changes: list[Session] = []  #: whose, if there are several
        self._anew: list[Savepoint] = []
        self._fails = False  #: the last statement; PostgreSQL then knows only ROLLBACK
        self._is_undone = False
        event.listen(connection, "before_cursor_execute", self._before, retval=True)
        event.listen(connection, "after_cursor_execute", self._after)

    def join(self, session: Session) -> None:
        """The next statement is one of this session."""
        self._forget_ended()
        if self.joined[-1:] != (session,):
            self.joined = (*(each for each in self.joined if each is not session), session)

    def check(self) -> None:
        """Raise if a session has undone what another one has changed."""
        self._forget_ended()
        if self._is_undone:
            raise ConfigurationError(
                "in the view of an order, a rollback of one session has undone what another one, "
                "as of an app context, had changed since: both are in one transaction. Commit the "
                "changes of the view before it enters the app context; nothing was saved"
            )

    def _forget_ended(self) -> None:
        """SQLAlchemy goes back to one that ended before those inside it, and then refuses all."""
        while (nested := self._connection.get_nested_transaction()) and not nested.is_active:
            nested.close()

    def _before(
        self, conn: object, cursor: object, sql: str, parameters: object, *_: object
    ) -> tuple[str, Any]:
        db_session.note_statement(self._last, conn, cursor, sql)
        mark = _MARK.fullmatch(sql)
        if mark is not None:
            sql = self._follow(sql, *mark.groups())
        elif len(self.joined) > 1 and db_session.are_changes([sql]):
            self._changes += filter(None, [self._last()])
        self._fails = True  # until it has ended
        return sql, parameters

    def _after(self, _: object, cursor: Any, *__: object) -> None:
        self._fails = False
        for point in self._anew:
            cursor.execute(
                f"SAVEPOINT {point.name}"
            )  # the older one of this name ends with the order
            point.since = len(self._changes)
        self._anew = []

    def _last(self) -> Session | None:
        """One that is closed says no more: a connection that was kept is that of another one."""
        return next((each for each in reversed(self.joined) if each.in_transaction()), None)

    def _follow(self, sql: str, verb: str, name: str) -> str:
        """Note it. Returns the statement to execute."""
        session = self._last()
        if not verb and session is not None:
            said = db_session.said_in(session)
            self._open.append(Savepoint(name, session, said, len(self._changes)))
        place = next((n for n, each in enumerate(self._open) if each.name == name), None)
        if not verb or place is None:  # it may have ended with one around it
            return sql if not verb else f"SAVEPOINT {name}"
        point, inside = self._open[place], self._open[place + 1 :]
        inside = [each for each in inside if each.session is not point.session]
        is_shared = any(each is not point.session for each in self._changes[point.since :])
        undoes = verb != "RELEASE " and (self._fails or point.has_changes())
        self._open[place:] = [] if undoes else inside
        if undoes:
            self._is_undone = self._is_undone or is_shared
            del self._changes[point.since :]
            return sql
        if verb == "RELEASE ":
            self._make_anew(point)
        if inside:
            return f"SAVEPOINT {name}"
        return f"RELEASE SAVEPOINT {name}" if is_shared else sql

    def _make_anew(self, point: Savepoint) -> None:
        """Not at the end of ``begin_nested()``, which is not yet a COMMIT of the session."""
        if any(each.session is point.session for each in self._open):
            return
        for each in reversed(self._open):
            if each.has_changes():
                return
            self._anew.insert(0, each)


CurrentOrder = OpenOrder
"""The type of ``current_order``."""


def _current() -> OpenOrder:
    if not has_request_context() or getattr(request, "order", None) is None:
        raise RuntimeError("no order runs in this request")
    return cast(OpenOrder, request.order)  # type: ignore[attr-defined]


current_order: OpenOrder = LocalProxy(_current)  # type: ignore[assignment]
"""The order that the running view makes; false when the request is none."""
