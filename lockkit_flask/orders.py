"""Orders exactly once in Flask: ``LOCKKIT_ORDERS``.

The order of things within one request:

1. all ``before_request`` hooks (authentication, CSRF), of the app and of blueprints; for a view
   with ``@idempotent`` the decorators above that, too;
2. the decision: replay, refuse, or go on holding the lock of the order, and those of ``lock_view``;
3. the record is written (in a database: the transaction begins with it), and the view runs;
4. what is to be replayed is taken from the response, before ``after_request`` hooks change it:
   they will change the replay again;
5. all ``after_request`` hooks, which may still commit; then the record and the effects become
   final, and the lock is released.
"""

from __future__ import annotations

import functools
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from flask import (
    Flask,
    Response,
    after_this_request,
    current_app,
    got_request_exception,
    request,
)

from lockkit.model.errors import AcquireTimeout, BackendError, ConfigurationError
from lockkit.orders import (
    REPLAYED_HEADER,
    DuplicateKeyError,
    Order,
    Orders,
    Proceed,
    Reject,
    Replay,
    drive,
    replies,
)
from lockkit.orders.forgery import with_token
from lockkit_flask import held, opened, sessions, signals
from lockkit_flask.authorize import Authorization
from lockkit_flask.decorators import views_of
from lockkit_flask.forgery import new_token
from lockkit_flask.forms import form_ids, tell_if_uncovered
from lockkit_flask.opened import Opened
from lockkit_flask.options import binds_of, options_of
from lockkit_flask.order_facts import (
    FactsReader,
    Recovery,
    asks_to_log_in,
    is_of_guest,
    response_facts,
)
from lockkit_flask.refusals import note_order, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockkit.leases.client import LockClient
    from lockkit.orders import Decision, Flow, OrderSettings
    from lockkit_flask.conf import UserHook
    from lockkit_flask.options import ViewOptions
    from lockkit_flask.order_stores import Store

__all__ = ["AppOrders"]

ATTEMPTS = 3
"""To insert a record whose key comes and goes."""


class AppOrders:
    """The orders of one app: hooks around its views, records in its store."""

    def __init__(
        self, settings: OrderSettings, user_pk: UserHook, locks: LockClient, store: Store
    ) -> None:
        self.store = store
        self._orders = Orders(settings, form_ids)
        self._reader = FactsReader(settings, user_pk)
        self._authorization = Authorization(settings)
        self._recover = Recovery(settings)
        self._locks = locks

    def install(self, app: Flask) -> None:
        """``dispatch_request`` is the one place after every hook before the view.

        Of the ``after_request`` functions, the first of the list runs last.
        """
        dispatch = app.dispatch_request
        vars(app)["dispatch_request"] = functools.partial(self._dispatch, dispatch)
        app.after_request_funcs.setdefault(None, []).insert(0, self._finish)
        got_request_exception.connect(_note_failure, app)
        held.after(app, "do_teardown_request", _abandon)

    def stores(self) -> list[Store]:
        """Where the current app's records are: of the settings, and of views that say ``using``."""
        return [self.store, *(self.store.of(using) for using in sorted(binds_of(current_app)))]

    def run(self, call: Callable[[], Any], options: ViewOptions, view: object = None) -> Any:
        """The answer to the current request, whose view is called only as a new order.

        ``view``: the function that is called, where its own checks were made before.
        """
        if opened.of_request() is not None:
            raise ConfigurationError(
                "an order is open already: use @idempotent once per view, and functools.wraps in "
                "the decorators above it"
            )
        order = self._orders.identify(
            self._reader.read(request), sources=options.sources, required=options.required
        )
        if order is None:
            return call()
        if isinstance(order, Reject):
            return refused(order)
        note_order(order.order_id)
        sessions.end_read()
        store = self.store.of(options.using)
        decision = self._drive(self._orders.admit(order), store)
        if isinstance(decision, Proceed):
            return self._proceed(decision, store, call, view)
        return self._answer(order, decision, checked=view is not None)

    def _dispatch(self, dispatch: Callable[..., Any], *args: Any) -> Any:
        opened.prepare()
        if request.url_rule is None or request.routing_exception is not None:
            return dispatch(*args)
        options = options_of(request)
        if options.exempt or options.inside:
            return dispatch(*args)
        if self._orders.settings.covers(request.method, request.path):
            return self.run(functools.partial(dispatch, *args), options)
        try:
            return dispatch(*args)
        finally:
            tell_if_uncovered(request)

    def _drive(self, flow: Flow[Decision], store: Store) -> Decision:
        return drive(flow, store.records, self._locks, self._recover)

    def _answer(self, order: Order, decision: Replay | Reject, *, checked: bool) -> Any:
        """What is not for everybody: a stored response, and where the order's result is."""
        signals.tell(order, decision)
        if isinstance(decision, Reject) and decision.location is None:
            return refused(decision)
        response = refused(decision) if isinstance(decision, Reject) else _replayed(decision)
        answer = self._authorization.answer(response, checked=checked)
        if answer is response and isinstance(decision, Replay):
            signals.send(signals.order_replayed, order)
        return answer

    def _proceed(
        self, decision: Proceed, store: Store, call: Callable[[], Any], view: object
    ) -> Any:
        """Take the locks of the view, have the record written, and run the view."""
        signals.tell(decision.order, decision)
        held.add(self, decision.lease, is_view=False)
        state = store.open(self._orders, decision)
        state.store, state.checked = store, view is not None
        state.of_guest = is_of_guest(request)
        state.attach()
        try:
            busy = _take_locks(view)
            refusal = self._begin(state, store) if busy is None else None
        except BaseException:  # interrupted as well: the view has not run
            state.forgo()
            raise
        if busy is not None:
            state.forgo()
            return busy()
        if refusal is not None:
            return self._answer(decision.order, refusal, checked=state.checked)
        return self._run(state, call)

    def _begin(self, state: Opened, store: Store) -> Replay | Reject | None:
        """None: the record is written. A duplicate key means that others were first."""
        reject = replies.store_down()
        for _ in range(ATTEMPTS):
            try:
                state.begin()
            except DuplicateKeyError:
                decision = self._drive(self._orders.reconsider(state.proceed), store)
            except BackendError as failure:
                reject = replies.not_claimed(failure)
                break
            else:
                return None
            if not isinstance(decision, Proceed):
                state.close()
                return decision
            state.proceed = decision
        state.forgo()
        return reject

    def _run(self, state: Opened, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException as error:  # of the view's, or interrupted: it decides
            state.note_failure(error)
            raise
        finally:
            after_this_request(self._capture)

    def _capture(self, response: Response) -> Response:
        """What decides about the order: the response as the view made it.

        Flask asks again, with a 500, when a later hook has raised. Where nothing can be undone,
        that says nothing about what the view did.
        """
        state = opened.of_request()
        if state is not None and (state.facts is None or state.can_undo):
            state.facts = response_facts(response, self._orders.settings.max_response)
            if asks_to_log_in(response):  # a refusal, whatever its status says
                state.facts = state.facts._replace(status=HTTPStatus.UNAUTHORIZED)
            state.status = response.status_code
        return response

    def _finish(self, response: Response) -> Response:
        """The last of all ``after_request`` functions."""
        state = opened.of_request()
        if state is None:
            return response
        if state.status != response.status_code:  # a hook made another answer of it
            self._capture(response)
        try:
            return state.conclude(response)
        except DuplicateKeyError:
            return self._overtaken(state, response)
        finally:
            _end(state)

    def _overtaken(self, state: Opened, response: Response) -> Response:
        """Another runner's record is there: its answer, unless that is gone again."""
        decision = self._drive(self._orders.reconsider(state.proceed), state.store)
        if isinstance(decision, Proceed):
            return response
        order = state.proceed.order
        return current_app.make_response(self._answer(order, decision, checked=state.checked))


def _replayed(replay: Replay) -> Response:
    status, headers, body = with_token(replay.snapshot, new_token)
    response = current_app.response_class(body, status)
    del response.headers["Content-Type"]  # Flask's default; the stored one, if any, follows
    response.headers.extend([*headers, REPLAYED_HEADER])
    return response


def _take_locks(view: object) -> Callable[[], Any] | None:
    """Those of ``lock_view``, before the transaction begins; if one is busy, how to say so."""
    for locked in views_of(request, view):
        try:
            locked.enter_once()
        except AcquireTimeout as error:
            return functools.partial(locked.refuse, error)
    return None


def _note_failure(_: Flask, *, exception: BaseException, **__: object) -> None:
    """What the view returned could not be made a response: it has failed, after all."""
    state = opened.of_request()
    if state is not None and state.facts is None:
        state.note_failure(exception)


def _abandon() -> None:
    """What ``after_request`` did not get to see: an exception that nobody handled. Idempotent."""
    state = opened.of_request()
    if state is not None:
        _end(state)


def _end(state: Opened) -> None:
    try:
        state.close()
    finally:
        if state.kept is not None:
            state.kept.give_back()
        held.release(state.proceed.lease)
