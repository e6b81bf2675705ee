"""The order's own transaction around the view: its effects and its record commit together."""

from __future__ import annotations

import sys
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from django.db import InterfaceError, OperationalError, connections, transaction

from lockkit.model.errors import BackendUnavailable, LeaseLost
from lockkit.model.log import log
from lockkit.orders import Forget, Keep, gate, refusals
from lockkit.orders.failures import unsaved
from lockkit.orders.record import refuses
from lockkit_django.leases.transactions import OrderBlock, is_broken, is_of_hook, is_rolled_back
from lockkit_django.orders.errors import DRF, is_made_by_drf, status_of, told_broken, told_undone
from lockkit_django.orders.open_order import OpenOrder
from lockkit_django.orders.request import in_signed_cookies, tell_of_new_session
from lockkit_django.orders.table import Sql, typed_errors

if TYPE_CHECKING:
    from collections.abc import Collection

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.http import HttpRequest, HttpResponseBase

    from lockkit.orders import Record

FIRST_ERROR = 400
SESSION_DATA = "_session_cache"  # the attribute of a session that was loaded


class OrderInDatabase(gate.OrderInDatabase, OpenOrder):
    """An order whose record is in a database of the project."""

    undone = False  #: after ``close``: what the view did was rolled back
    _before: SessionBefore | None = None

    @property
    def _using(self) -> str:
        """The record's database. Do not ask in the event loop: see ``OrderTable.using``."""
        using: str = self.visit.records.using
        return using

    def begin(self) -> None:
        self.database = self._using
        self._before = SessionBefore(self.visit.request)

    def close(self, response: HttpResponseBase) -> Any:
        try:
            return super().close(response)
        finally:
            if self._before is not None and self.undone:
                self._before.restore()
            elif self._before is not None and self.order.guest:
                tell_of_new_session(self.visit.request, self._before.key)

    def _has_raised(self, response: HttpResponseBase) -> bool:
        """Whether the view has raised. Django does not know this if DRF, Ninja or a decorator has
        made a response of the exception."""
        made_by_drf = getattr(response, "exception", False)  # inlined: each order needs it
        return self.failed or self.error is not None or made_by_drf

    def _raised_refusal(self) -> bool:
        """Whether the view has raised a refusal, even if the response does not look like one."""
        error = self.error
        return error is not None and refuses(status_of(error) or 0)

    def _keep_unbegun(self, response: HttpResponseBase) -> HttpResponseBase:
        """No transaction was begun around the view, or an exception has left it. Record what code
        further out makes of that: it may have saved something of its own."""
        verdict = self._verdict(response)
        if not isinstance(verdict, Keep):
            return response
        if self.left and self.failed and self._is_undone_success(response):
            return self.visit.refuse(refusals.NOT_SAVED)
        fails = self.left and response.status_code >= FIRST_ERROR
        raised = is_made_by_drf(response) or (self._has_raised(response) and not self.left)
        if fails or (not raised and self.has_passed_by(response)):
            return self._keep_refusal(verdict.record, response)
        return response

    def _is_undone_success(self, response: HttpResponseBase) -> bool:
        return self._has_raised(response) and told_undone(response)


class SharedTransaction(OrderInDatabase):
    """BEGIN and the record before the view, COMMIT after its response is rendered."""

    _block: transaction.Atomic | None = None
    _connection: BaseDatabaseWrapper  #: of the thread that called ``begin``

    @property
    def is_open(self) -> bool:
        return self._block is not None

    def begin(self) -> None:
        super().begin()
        self.error, self.left, self.refused = None, False, False  # of an earlier try
        try:
            self._enter_block()
            with typed_errors(self._using):
                self._insert(Sql(self._connection), self.orders.running(self.order))
            if self.visit.next_is_view:
                self._be_request_block()
        except BaseException:  # also if interrupted: nobody else would end the transaction
            self.abandon()
            raise

    def _be_request_block(self) -> None:
        """The next ``atomic`` block is that of ATOMIC_REQUESTS. Make no savepoint for it."""
        connection = self._connection
        exempt = getattr(self.visit.view, "_non_atomic_requests", ())
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.alias not in exempt:
            self.in_request_block = True
            vars(connection)["savepoint"] = lambda: vars(connection).pop("savepoint") and None

    def fail(self, error: BaseException) -> Any:
        """End the transaction at once. Under ASGI Django makes error pages in another thread, which
        would wait for rows that the order has changed. What a refusal has saved stays."""
        answer = super().fail(error)
        if self._block is None:
            return answer
        try:
            if answer is None and self._raised_refusal():
                answer = self._refuse(None)
        except LeaseLost:
            answer = self.visit.refuse(refusals.LEASE_LOST)
        finally:
            self._end_early()
        return answer

    def before_render(self, response: HttpResponseBase) -> None:
        """Roll back now what ATOMIC_REQUESTS rolls back, because rendering may query."""
        if self._is_marked(response):
            self.failed = True
            if self.in_request_block:
                self._end_early()

    def left_by(self, error: BaseException, blocks: Collection[str]) -> None:
        """Roll back at once: code further out sees nothing of this try, and what it saves stays. A
        ``lock_view`` may begin the order anew."""
        super().left_by(error, blocks)
        if self.in_request_block:
            self.error, self.left, self.in_request_block = error, True, False
            self.abandon()
            if self._before is not None and not self._raised_refusal():
                self._before.restore()

    def _end_early(self) -> None:
        self.abandon()
        self.begun = True  # do not begin it again; only end it

    def _end(self, response: HttpResponseBase) -> Any:
        if not self.begun:
            return self._keep_unbegun(response)
        self.undone = True  # until it is committed
        try:
            return self._conclude(response)
        except LeaseLost:
            if not self.undone:  # raised by a hook, after the COMMIT
                raise
            return self.visit.refuse(refusals.LEASE_LOST)
        finally:
            self.abandon()  # does nothing if it is committed

    def abandon(self) -> None:
        if self._block is not None:
            self._connection.needs_rollback = True
            self._leave_block()

    def _conclude(self, response: HttpResponseBase) -> Any:
        verdict = self._verdict(response)
        if isinstance(verdict, Forget) or (isinstance(verdict, Keep) and self._raised_refusal()):
            return self._refuse(response)
        if not isinstance(verdict, Keep):
            return response
        record = verdict.record
        raised = self._has_raised(response)
        if not (raised or is_rolled_back(self._connection)):
            return self._commit(response, record)
        broken = not raised and is_broken(self._connection)
        self.abandon()
        if response.status_code >= FIRST_ERROR:
            return self._keep_refusal(record, response)
        if told_broken(broken) or self._is_undone_success(response):
            return self.visit.refuse(refusals.NOT_SAVED)
        return response

    def _refuse(self, response: Any) -> Any:
        """Save what would be saved without orders: a counted guess of a password stays counted."""
        error = self.error
        if error is not None and status_of(error) is None:
            return response  # an accident, whatever is made of it
        self.undone = False  # a session may count guesses, too
        if self._block is None:
            return response  # it was saved when the view raised it
        is_marked = self._is_marked(response)
        if self.in_request_block and (self.failed or is_marked):
            return response  # ATOMIC_REQUESTS rolls back; its own block may be a savepoint
        if self._marked_by and is_marked:
            self._connection.set_rollback(False)
        if not is_rolled_back(self._connection):
            return self._commit(response, None)
        if is_broken(self._connection) or not self.in_request_block:
            log.warning(
                "%r refuses after an error of the database outside of atomic(), or in an "
                "atomic(savepoint=False): what its view saved before is rolled back",
                self.order.request,
            )
        return response

    def _mark(self, rollback: bool) -> None:
        """Replaces ``set_rollback``: called by what ``watch_marks`` sets. DRF calls that if a view
        raises, even an exempt one: it takes the order's transaction for that of ATOMIC_REQUESTS.
        If a project's exception handler calls DRF's ``set_rollback``, DRF's handler does so again.
        """
        caller = str(sys._getframe(2).f_globals.get("__name__"))
        if not self._connection.needs_rollback:
            self._marked_by = caller
        elif not self._marked_by == caller == DRF:
            self._marked_by = ""
        type(self._connection).set_rollback(self._connection, rollback)

    def _commit(self, response: Any, record: Record | None) -> Any:
        """COMMIT, with the record. ``record``: None to delete what ``begin`` has written."""
        self.undone = True
        self.check_leases()
        try:
            self._write(Sql(self._connection), record)
            self._leave_block()
        except Exception as error:
            self.undone = not is_of_hook(error)
            refusal = unsaved(error) if self.undone else None
            if refusal is None:
                raise
            return self.visit.refuse(refusal)
        self.undone = False
        return response

    def _enter_block(self) -> None:
        using = self._using
        self._connection = connection = connections[using]
        block = OrderBlock(using, savepoint=True, durable=True)
        block.mark = self._mark if connection.settings_dict["ATOMIC_REQUESTS"] else None
        try:
            block.__enter__()
        except (OperationalError, InterfaceError) as error:
            raise BackendUnavailable("the database of the order is not available") from error
        self._block, self.begun = block, True

    def _leave_block(self) -> None:
        """COMMIT, or ROLLBACK if it is due. Raises what a hook of ``on_commit`` raises."""
        block, self._block = self._block, None
        self.begun = False
        if block is not None:
            for hook in ("savepoint", "set_rollback"):  # the first is there if no view has run
                vars(self._connection).pop(hook, None)
            block.__exit__(None, None, None)


class SessionBefore:
    """The session of a request before its view: if an order is undone, the cart that was emptied
    for it comes back.

    Guarantee: after ``restore`` the session is as before. Limit: what the view itself has saved in
    a store that is not the order's database stays there.
    """

    def __init__(self, request: HttpRequest) -> None:
        self._session: Any = getattr(request, "session", None)
        self.key: str | None = getattr(self._session, "session_key", None)
        if self._session is not None:
            self._modified = self._session.modified
            self._data = deepcopy(vars(self._session).get(SESSION_DATA))

    def restore(self) -> None:
        """Queries the store only if the view has given the session another key."""
        session = self._session
        if session is None or not self._is_undone():
            return
        vars(session).pop(SESSION_DATA, None)
        if self._data is not None:
            setattr(session, SESSION_DATA, self._data)
        session._session_key = self.key
        session.modified = self._modified

    def _is_undone(self) -> bool:
        """Whether a login or a logout by the view was rolled back with its order."""
        session = self._session
        if session.session_key == self.key or in_signed_cookies(type(session)):
            return True
        if self.key is None:
            return not session.exists(session.session_key)
        return bool(session.exists(self.key))
