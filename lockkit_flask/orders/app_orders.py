"""Orders exactly once in Flask: ``LOCKKIT_ORDERS``.

One request takes these steps:

1. all ``before_request`` hooks (authentication, CSRF), of the app and of blueprints; for a view
   with ``@idempotent``, the decorators above it, too;
2. the decision: replay, refuse, or go on with the lock of the order, and those of ``lock_view``;
3. the record is written (in a database: the transaction begins with it), and the view runs;
4. what is to be replayed is taken from the response, before ``after_request`` hooks change it, and
   what earlier hooks gave to ``after_this_request``: they will change the replay again;
5. all ``after_request`` hooks, which may still commit; then the record and the effects become
   final, and the lock is released.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial, wraps
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from flask import current_app, got_request_exception, request, request_started

from lockkit.leases.lease import result_of
from lockkit.model.errors import ConfigurationError, DriverMissing, LeaseLost
from lockkit.orders import Orders, gate
from lockkit.orders.forms import tell_uncovered
from lockkit.orders.idempotent import Idempotent
from lockkit.orders.redis_records import RedisOrderRecords
from lockkit.orders.settings import HOOKS, SAFE_METHODS, UNSAFE_METHODS
from lockkit.orders.visit import ViewOptions, options_in
from lockkit.web.route_checks import module_of, wrappers
from lockkit_flask.leases import db_session, request_leases
from lockkit_flask.orders.forms import form_ids, hand_over
from lockkit_flask.orders.open_order import ClaimedOrder, OpenOrder
from lockkit_flask.orders.visit import Visit, expect_whole_body, options_of
from lockkit_flask.state import app_locks
from lockkit_flask.web.view_functions import note_place, places_of, take_locks, view_of

if TYPE_CHECKING:
    from flask import Flask, Response
    from flask_sqlalchemy import SQLAlchemy

    from lockkit.orders import OrderSettings, Proceed
    from lockkit_flask.orders.table import OrderTable
    from lockkit_flask.state import AppLocks

_GIVEN = "_lockkit_given"
"""Attribute of a request: the answer that replaces what the view returns."""

OF_BODY = ("content-encoding", "content-length", "content-range", "etag", "last-modified")
"""Headers that a hook may set, and which fit only the body that it has seen."""


class AppOrders:
    """The orders of one app: which request is one, whose it is, and whether its view may run."""

    def __init__(self, app: Flask, settings: OrderSettings, locks: AppLocks) -> None:
        """Raises ConfigurationError if records can be kept neither in a database nor in Redis, and
        for an alias or a function of the settings that does not exist."""
        self.orders = Orders(settings, form_ids)
        self.user_pk = locks.config.user_pk
        client = locks[settings.alias]
        self.thread = gate.ThreadRunner(lambda _: client)
        for hook in HOOKS:
            self.orders.hook(hook)
        if settings.claims:
            self.records: Any = RedisOrderRecords(client)
            self.open: Callable[[Visit, Proceed], OpenOrder] = ClaimedOrder
        else:
            self._open_in_database(_database(app), settings.using)
        self._install(app)

    def _open_in_database(self, db: SQLAlchemy, using: str | None) -> None:
        from lockkit_flask.orders.schema import order_table  # imports SQLAlchemy
        from lockkit_flask.orders.table import OrderTable
        from lockkit_flask.orders.transaction import SharedTransaction, teach_to_join

        self.records, self.open = OrderTable(db, using), SharedTransaction
        order_table(db.metadatas[using])  # here: concurrent requests would collide
        teach_to_join(db)

    def _install(self, app: Flask) -> None:
        """Hook into the app. Only ``dispatch_request`` comes after every ``before_request`` hook.

        The first ``after_request`` function of the list runs last.
        """
        self.dispatch = partial(self._dispatch, app.dispatch_request)
        vars(app)["dispatch_request"] = self.dispatch
        app.after_request_funcs.setdefault(None, []).insert(0, _finish)
        request_started.connect(expect_whole_body, app)
        got_request_exception.connect(_note_failure, app)
        request_leases.after(app, "do_teardown_request", _abandon)

    def tables(self) -> list[OrderTable]:
        """The tables of the current app's records: that of the settings, and those that views name
        by ``using``."""
        if self.orders.claims:
            return []
        views = current_app.view_functions.values()
        using = {options_in([place]).using for view in views for place in places_of(view)}
        return [self.records, *map(self.records.of, sorted(filter(None, using)))]

    def run(self, call: Callable[[], Any], options: ViewOptions) -> Any:
        """The answer to the current request. The view is called for a new order only, and for a
        request that is not an order."""
        if of_request() is not None:
            raise ConfigurationError(
                "an order is open already: use @idempotent once per view, and functools.wraps in "
                "the decorators above it"
            )
        _given(None)  # a decorator above may call the view again
        opened = result_of(gate.enter(Visit(self, options), self.thread))
        if opened is None:
            return call()
        return self._proceed(opened, call) if isinstance(opened, OpenOrder) else _given(opened)

    def _dispatch(self, dispatch: Callable[..., Any], *args: Any) -> Any:
        vars(request).setdefault("order")
        if request.url_rule is None or request.routing_exception is not None:
            return dispatch(*args)
        options = options_of(view_of(request), request.method)
        decides = options.exempt or options.inside
        if not decides and self.orders.covers(request.method, request.path):
            return self.run(partial(dispatch, *args), options)
        try:
            return _unless_given(dispatch(*args))
        except LeaseLost as error:  # of a lock_view above ``@idempotent``
            opened = of_request()
            if opened is None:
                raise
            return _given(opened.fail(error))
        finally:
            if not decides and request.method in UNSAFE_METHODS:
                tell_uncovered(form_ids, request, "form", "_cached_data")

    def _proceed(self, opened: OpenOrder, call: Callable[[], Any]) -> Any:
        """Take the locks of the view, have the record written, and run the view."""
        begun = False
        try:
            refuse = take_locks(opened.visit.options.below)
            answer = None if refuse else result_of(gate.begin(opened, self.thread))
            begun = refuse is None and answer is None
        finally:
            if not begun:  # also if interrupted: the view has not run
                _end(opened)
        if not begun:
            return _given(refuse() if refuse else answer)
        functions = request_leases.this_context()._after_request_functions
        earlier = list(functions)  # of hooks before the view, which run again at a replay
        try:
            return call()
        except BaseException as error:  # the view's own, or an interrupt: ``fail`` decides
            answer = opened.fail(error)
            if answer is None:
                raise
            return _given(answer)
        finally:
            functions[:] = [*functions[len(earlier) :], _capture, *earlier]


def of_request() -> OpenOrder | None:
    """The order of this request. None in another request that its view sends to an app, and in a
    copy of its context."""
    found = db_session.ORDER.get()
    return None if found is None or found.context is not request_leases.this_context() else found


def _given(answer: Any) -> Any:
    """Note an answer that replaces what the view returns."""
    vars(request)[_GIVEN] = answer
    return answer


def _unless_given(returned: Any) -> Any:
    """A decorator above ``@idempotent`` may serialise what the view returns. An answer that was
    given instead is complete: return it unchanged, unless the decorator refuses."""
    answer = vars(request).get(_GIVEN)
    if answer is None or returned is answer:
        return returned
    made = current_app.make_response(returned)
    return made if made.status_code >= HTTPStatus.MULTIPLE_CHOICES else answer


def _capture(response: Response) -> Response:
    """Take the response as the view made it: it decides about the order.

    Flask calls this again, with a 500, if a later hook has raised.
    """
    opened = of_request()
    if opened is not None and opened.visit.captured is None:
        opened.visit.sent = list(response.headers)
        opened.capture(response)
    return response


def _finish(response: Response) -> Response:
    """Make the order final: this is the last of all ``after_request`` functions."""
    opened = of_request()
    if opened is None:
        return hand_over(response)
    if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        opened.overrule()
    try:
        answer = current_app.make_response(
            result_of(gate.close(opened, response, opened.visit.thread))
        )
        if answer is not response:
            _replace(response, answer, opened.visit.sent)
        return hand_over(answer)
    finally:
        _end(opened)


def _replace(response: Response, answer: Response, sent: Collection[tuple[str, str]]) -> None:
    """Give the answer what hooks have set since the view, except what its own headers say."""
    own = {*OF_BODY, *(name.lower() for name, _ in answer.headers)}
    for name, value in response.headers:
        if name.lower() not in own and (name, value) not in sent:
            answer.headers.add(name, value)
    answer.call_on_close(response.close)


def _database(app: Flask) -> SQLAlchemy:
    db = db_session.database_of(app)
    if db is not None:
        return db
    kind, remedy = ConfigurationError, "set db = SQLAlchemy(app) up before LockKit(app)"
    if find_spec("flask_sqlalchemy") is None:
        kind, remedy = DriverMissing, "pip install 'lockkit[flask-sqlalchemy]'"
    needs = f"LOCKKIT_ORDERS needs Flask-SQLAlchemy: {remedy}"
    raise kind(f"{needs}. Or, for effects outside a database, STORE 'redis'")


def _note_failure(_: Flask, *, exception: BaseException, **__: object) -> None:
    """Called if what the view returned cannot be made a response, or if a later hook has raised."""
    opened = of_request()
    if opened is not None and opened.visit.captured is None:
        opened.fail(exception)
    elif opened is not None:
        opened.overrule()


def _abandon() -> None:
    """End an order without ``after_request``, if nobody handled an exception. Idempotent."""
    opened = of_request()
    if opened is not None:
        _end(opened)


def _end(opened: OpenOrder) -> None:
    result_of(gate.leave(opened, opened.visit.thread))


def _is_exempt(view: Callable[..., Any]) -> bool:
    """Whether this is a class that makes orders, but the class or this method is exempt."""
    *_, function = wrappers(view)
    if module_of(function) != "flask.views":
        return False
    places = places_of(view_of(request), request.method)
    return any(options_in([place]).exempt for place in places)


ORDER_OPTIONS = ("order_id", "required", "using")


def _inside(view: Callable[..., Any], options: ViewOptions) -> Callable[..., Any]:
    @wraps(view)
    def idempotent_view(*args: Any, **kwargs: Any) -> Any:
        call = partial(current_app.ensure_sync(view), *args, **kwargs)
        if request.method in SAFE_METHODS or _is_exempt(view):
            return call()
        orders = app_locks().orders
        if orders is None:
            raise ConfigurationError(
                "@idempotent needs LOCKKIT_ORDERS in the app's config; {'PATHS': []} is enough"
            )
        return orders.run(call, options)

    note_place("idempotent", view, idempotent_view, depth=4)
    return idempotent_view


idempotent = Idempotent(_inside, ORDER_OPTIONS, in_class="in {} write decorators = [idempotent]")
