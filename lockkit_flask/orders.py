"""Orders exactly once, with Flask-SQLAlchemy: ``LOCKKIT_ORDERS``.

The order of things within one request:

1. all ``before_request`` hooks (authentication, CSRF), of the app and of blueprints;
2. the decision: replay, refuse, or go on holding the lock of the order, and those of ``lock_view``;
3. the transaction begins, with the record in it; the view runs, its commits being savepoints;
4. what is to be replayed is taken from the view's response, before ``after_request`` hooks
   change it: they will change the replay again;
5. all ``after_request`` hooks, which may still commit; then the one COMMIT, then the release.
"""

from __future__ import annotations

import functools
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from flask import Flask, Response, after_this_request, current_app, has_request_context, request
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from werkzeug.exceptions import HTTPException

from lockkit.errors import AcquireTimeout, ConfigurationError, LeaseLost
from lockkit.idempotency import (
    REPLAYED_HEADER,
    Keep,
    Orders,
    Proceed,
    Reject,
    Replay,
    drive,
    replies,
)
from lockkit_flask import held, joined, sessions
from lockkit_flask.conf import dotted
from lockkit_flask.decorators import views_of
from lockkit_flask.joined import Joined
from lockkit_flask.order_facts import FactsReader, response_facts
from lockkit_flask.records import Records, record_table, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask_sqlalchemy import SQLAlchemy

    from lockkit.client import LockClient
    from lockkit.idempotency import OrderSettings, Record
    from lockkit_flask.conf import UserHook

__all__ = ["AppOrders"]

ATTEMPTS = 3
"""To insert a record whose key comes and goes."""


class AppOrders:
    """The orders of one app: hooks around its views, records in its database."""

    def __init__(
        self, settings: OrderSettings, user_pk: UserHook, locks: LockClient, db: SQLAlchemy
    ) -> None:
        if settings.using not in db.metadatas:
            raise ConfigurationError(f"LOCKKIT_ORDERS['USING'] is no bind key: {settings.using!r}")
        table = record_table(db.metadatas[settings.using])
        self.records = Records(table, lambda: db.engines[settings.using])
        self._orders = Orders(settings)
        self._reader = FactsReader(settings, user_pk)
        self._may_replay = dotted("LOCKKIT_ORDERS['AUTHORIZE_REPLAY']", settings.authorize_replay)
        self._locks = locks
        joined.install(db)

    def install(self, app: Flask) -> None:
        """``dispatch_request`` is the one place after every hook before the view.

        Of the ``after_request`` functions, the first of the list runs last.
        """
        dispatch = app.dispatch_request
        vars(app)["dispatch_request"] = functools.partial(self._dispatch, dispatch)
        app.after_request_funcs.setdefault(None, []).insert(0, self._finish)
        held.after(app, "do_teardown_request", _abandon)
        held.after(app, "do_teardown_appcontext", _abandon)

    def create_table(self) -> None:
        """Create the table of the records, if it is not there."""
        self.records.table.create(self.records.engine(), checkfirst=True)

    def _dispatch(self, dispatch: Callable[..., Any], *args: Any) -> Any:
        if request.url_rule is None or request.routing_exception is not None:
            return dispatch(*args)
        if not self._orders.settings.covers(request.method, request.path):
            return dispatch(*args)
        order = self._orders.identify(self._reader.read(request))
        if order is None:
            return dispatch(*args)
        if isinstance(order, Reject):
            return _refused(order)
        sessions.end_read()
        decision = drive(self._orders.admit(order), self.records, self._locks)
        if isinstance(decision, Proceed):
            return self._proceed(decision, functools.partial(dispatch, *args))
        return self._answer(decision)

    def _answer(self, decision: Replay | Reject) -> Response:
        if isinstance(decision, Reject):
            return _refused(decision)
        if self._may_replay is not None and not self._may_replay(request):
            return _refused(replies.not_allowed())
        status, headers, body = decision.snapshot
        response = current_app.response_class(body, status, list(headers))
        response.headers.add(*REPLAYED_HEADER)
        return response

    def _proceed(self, decision: Proceed, dispatch: Callable[[], Any]) -> Any:
        """Run the view under its locks, in the order's transaction."""
        held.add(self, decision.lease, is_view=False)
        for locked in views_of(request):
            try:
                locked.enter()
            except AcquireTimeout as error:
                return locked.refuse(error)
        begun = self._begin(decision)
        if not isinstance(begun, Joined):
            return self._answer(begun)
        begun.join()
        try:
            return dispatch()
        except BaseException as error:
            _note_failure(begun, error)
            raise
        finally:
            after_this_request(self._capture)

    def _begin(self, decision: Proceed | Replay | Reject) -> Joined | Replay | Reject:
        """The transaction with the record in it; a duplicate key means that others were first."""
        for _ in range(ATTEMPTS):
            if not isinstance(decision, Proceed):
                return decision
            try:
                return self._open(decision)
            except IntegrityError:
                decision = drive(self._orders.reconsider(decision), self.records, self._locks)
            except SQLAlchemyError as error:
                unavailable(error)
                break
        return replies.store_down()

    def _open(self, decision: Proceed) -> Joined:
        begun = Joined(self.records.engine(), decision)
        try:
            running = self._orders.running(decision.order)
            self.records.insert(begun.connection, running, replaces=decision.replaces)
        except BaseException:
            begun.close()
            raise
        return begun

    def _capture(self, response: Response) -> Response:
        """Decide what becomes of the order, by the response as the view made it."""
        state = joined.of_request()
        if state is not None:
            facts = response_facts(response, self._orders.settings.max_response)
            state.outcome = self._orders.conclude(state.proceed.order, facts)
            state.status = response.status_code
        return response

    def _finish(self, response: Response) -> Response:
        """The last of all ``after_request`` functions."""
        state = joined.of_request()
        if state is None:
            return response
        if state.status != response.status_code:  # a hook made another answer of it
            self._capture(response)
        try:
            return self._conclude(state, response)
        finally:
            state.close()
            held.release(state.proceed.lease)

    def _conclude(self, state: Joined, response: Response) -> Response:
        if not isinstance(state.outcome, Keep):
            state.roll_back()
            return response
        if state.failed:
            return self._keep_refusal(state, state.outcome.record, response)
        return self._commit(state, state.outcome.record, response)

    def _keep_refusal(self, state: Joined, record: Record, response: Response) -> Response:
        """The view raised, so nothing of it is left; a 4xx made of that is the order's answer."""
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            _quietly(lambda: self.records.keep(record, replaces=state.proceed.replaces))
        elif state.committed:
            raise ConfigurationError(
                "a view raised after it had committed, so its order was rolled back, but an error "
                "handler answers with success. Return a response instead of raising"
            )
        return response

    def _commit(self, state: Joined, record: Record, response: Response) -> Response:
        """One COMMIT for the record and everything that the view has committed."""
        if response.status_code < HTTPStatus.BAD_REQUEST and sessions.has_writes():
            raise ConfigurationError(
                "the view of an order answers with success, but has changes in db.session that "
                "are not committed. Commit them before the response leaves; nothing was saved"
            )
        try:
            held.check_all()
            sessions.roll_back()
            self.records.update(state.connection, record)
            state.commit()
        except LeaseLost:
            return _refused(replies.lease_lost())
        except DBAPIError as error:
            if error.connection_invalidated:
                unavailable(error)
                return _refused(replies.outcome_unknown())
            raise
        return response


def _refused(reject: Reject) -> Response:
    return current_app.response_class(reject.problem(), reject.status, list(reject.headers()))


def _note_failure(state: Joined, error: BaseException) -> None:
    """Roll back at once: error handlers write outside of the order's transaction.

    ``abort(redirect(…))`` is a way to answer, and no failure.
    """
    if isinstance(error, HTTPException) and _status(error) < HTTPStatus.BAD_REQUEST:
        return
    state.failed = True
    state.roll_back()


def _status(error: HTTPException) -> int:
    return error.response.status_code if error.response else error.code or 500


def _abandon() -> None:
    """What ``after_request`` did not get to see: an exception that nobody handled. Idempotent."""
    state = joined.of_request() if has_request_context() else joined.of_context()
    if state is not None:
        _quietly(state.close)
        held.release(state.proceed.lease)


def _quietly(step: Callable[[], None]) -> None:
    """A record that is there already stands; a database that is down is logged."""
    try:
        step()
    except IntegrityError:
        return
    except SQLAlchemyError as error:
        unavailable(error)
