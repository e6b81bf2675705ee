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

from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from flask import after_this_request, current_app, got_request_exception, request

from lockkit.model.errors import BackendError, ConfigurationError, DriverMissing
from lockkit.orders import DuplicateKeyError, Orders, Proceed, Refusal, Replay, drive, refusals
from lockkit.orders.redis_records import RedisRecords
from lockkit_flask import signals
from lockkit_flask.leases import db_session, request_leases
from lockkit_flask.orders.authorize import Authorization
from lockkit_flask.orders.forms import form_ids, tell_if_uncovered
from lockkit_flask.orders.idempotent import binds_of, options_of
from lockkit_flask.orders.open_order import ClaimedOrder, of_request
from lockkit_flask.orders.request import RequestReader, asks_to_log_in, order_response, replayed
from lockkit_flask.web.lock_view import take_locks, view_of
from lockkit_flask.web.refusals import ORDER_ID, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask, Response
    from flask_sqlalchemy import SQLAlchemy

    from lockkit.leases.client import LockClient
    from lockkit.orders import Order, OrderSettings
    from lockkit.orders.decisions import Decision
    from lockkit.orders.means import Flow
    from lockkit.orders.settings import ViewOptions
    from lockkit_flask.conf import UserHook
    from lockkit_flask.orders.open_order import OpenOrder
    from lockkit_flask.orders.table import OrderTable

MOST_DUPLICATES = 3
"""Times in a row that a duplicate key may turn out to be no order (rolled back, expired)."""


class Gate:
    """The orders of one app: which request is one, whose, and whether its view may run."""

    def __init__(
        self, app: Flask, settings: OrderSettings, user_pk: UserHook, locks: LockClient
    ) -> None:
        """Raises ConfigurationError if records can be kept neither in a database nor in Redis."""
        self.settings = settings
        self._orders = Orders(settings, form_ids)
        self._reader = RequestReader(settings, user_pk)
        self._authorization = Authorization(settings)
        self._locks = locks
        if settings.claims:
            self.records: Any = RedisRecords.of(locks)
            self._open: Callable[..., OpenOrder] = ClaimedOrder
        else:
            self._open_in_database(_database(app))

    def _open_in_database(self, db: SQLAlchemy) -> None:
        from lockkit_flask.orders.table import OrderTable  # imports SQLAlchemy
        from lockkit_flask.orders.transaction import SharedTransaction, teach_to_join

        self.records, self._open = OrderTable(db, self.settings.using), SharedTransaction
        teach_to_join(db)

    def install(self, app: Flask) -> None:
        """``dispatch_request`` is the one place after every hook before the view.

        Of the ``after_request`` functions, the first of the list runs last.
        """
        vars(app)["dispatch_request"] = partial(self._dispatch, app.dispatch_request)
        app.after_request_funcs.setdefault(None, []).insert(0, self._finish)
        got_request_exception.connect(_note_failure, app)
        request_leases.after(app, "do_teardown_request", _abandon)

    def tables(self) -> list[OrderTable]:
        """Where the current app has records: by the settings, and by views that say ``using``."""
        if self.settings.claims:
            return []
        return [self.records, *map(self.records.of, sorted(binds_of(current_app)))]

    def run(self, call: Callable[[], Any], options: ViewOptions, view: object = None) -> Any:
        """The answer to the current request, whose view is called only as a new order.

        ``view``: what is below ``@idempotent``, where the checks above it have passed.
        """
        if of_request() is not None:
            raise ConfigurationError(
                "an order is open already: use @idempotent once per view, and functools.wraps in "
                "the decorators above it"
            )
        order = self._orders.identify(
            self._reader.read(request), sources=options.sources, required=options.required
        )
        if order is None:
            return call()
        if isinstance(order, Refusal):
            return refused(order)
        vars(request)[ORDER_ID] = order.order_id
        db_session.end_read()
        records = self._records(options.using)
        decision = self._drive(self._orders.admit(order), records)
        if isinstance(decision, Proceed):
            return self._proceed(decision, records, call, view)
        return self._answer(order, decision, below=view)

    def _dispatch(self, dispatch: Callable[..., Any], *args: Any) -> Any:
        vars(request._get_current_object()).setdefault("order")  # type: ignore[attr-defined]
        if request.url_rule is None or request.routing_exception is not None:
            return dispatch(*args)
        options = options_of(view_of(request), request.method)
        if options.exempt or options.inside:
            return dispatch(*args)
        if self.settings.covers(request.method, request.path):
            return self.run(partial(dispatch, *args), options)
        try:
            return dispatch(*args)
        finally:
            tell_if_uncovered(request)

    def _records(self, using: str | None) -> Any:
        if using is None:
            return self.records
        if self.settings.claims:
            raise ConfigurationError(
                f"@idempotent(using={using!r}) names a database, but LOCKKIT_ORDERS['STORE'] is "
                f"'redis': the effects of such an order are in none"
            )
        return self.records.of(using)

    def _drive(self, flow: Flow[Decision], records: Any) -> Decision:
        return drive(flow, records, self._locks, self._reader.recover)

    def _answer(self, order: Order, decision: Replay | Refusal, *, below: Any) -> Any:
        """What is not for everybody: a stored response, and where the order's result is."""
        signals.tell(order, decision)
        if isinstance(decision, Refusal) and decision.location is None:
            return refused(decision)
        response = refused(decision) if isinstance(decision, Refusal) else replayed(decision)
        answer = self._authorization.answer(response, below=below)
        if answer is response and isinstance(decision, Replay):
            signals.send(signals.order_replayed, order)
        return answer

    def _proceed(
        self, decision: Proceed, records: Any, call: Callable[[], Any], view: object
    ) -> Any:
        """Take the locks of the view, have the record written, and run the view."""
        if decision.orphan:
            signals.send(signals.order_orphaned, decision.order)
        request_leases.add(self, decision.lease, is_view=False)
        opened = self._open(self._orders, decision, records, below=view)
        try:
            answer = take_locks(view) or self._begin(opened)
        except BaseException:  # interrupted as well: the view has not run
            opened.forgo()
            raise
        if answer is not None:
            opened.forgo()
            return answer()
        try:
            return call()
        except BaseException as error:  # of the view's, or interrupted: it decides
            opened.note_failure(error)
            raise
        finally:
            after_this_request(self._capture)

    def _begin(self, opened: OpenOrder) -> Callable[[], Any] | None:
        """None: the record is written. A duplicate key means that others were first."""
        order = opened.proceed.order
        for _ in range(MOST_DUPLICATES):
            try:
                opened.begin()
            except DuplicateKeyError:
                decision = self._drive(self._orders.reconsider(opened.proceed), opened.records)
            except BackendError as failure:
                decision = refusals.not_claimed(failure)
            else:
                return None
            if not isinstance(decision, Proceed):
                return partial(self._answer, order, decision, below=opened.below)
            opened.proceed = decision
        return partial(refused, refusals.running(1))

    def _capture(self, response: Response) -> Response:
        """What decides about the order: the response as the view made it.

        Flask asks again, with a 500, when a later hook has raised. Where nothing can be undone,
        that says nothing about what the view did.
        """
        opened = of_request()
        if opened is not None and (opened.answered is None or opened.can_undo):
            opened.answered = order_response(response, self.settings.max_response)
            if asks_to_log_in(response):  # a refusal, whatever its status says
                opened.answered = opened.answered._replace(status=HTTPStatus.UNAUTHORIZED)
            opened.status = response.status_code
        return response

    def _finish(self, response: Response) -> Response:
        """The last of all ``after_request`` functions."""
        opened = of_request()
        if opened is None:
            return response
        if opened.status != response.status_code:  # a hook made another answer of it
            self._capture(response)
        try:
            return opened.conclude(response)
        except DuplicateKeyError:
            return self._overtaken(opened, response)
        finally:
            _end(opened)

    def _overtaken(self, opened: OpenOrder, response: Response) -> Response:
        """Another runner's record is there: its answer, unless that is gone again."""
        decision = self._drive(self._orders.reconsider(opened.proceed), opened.records)
        if isinstance(decision, Proceed):
            return response
        order = opened.proceed.order
        return current_app.make_response(self._answer(order, decision, below=opened.below))


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
    """What the view returned could not be made a response: it has failed, after all."""
    opened = of_request()
    if opened is not None and opened.answered is None:
        opened.note_failure(exception)


def _abandon() -> None:
    """What ``after_request`` did not get to see: an exception that nobody handled. Idempotent."""
    opened = of_request()
    if opened is not None:
        _end(opened)


def _end(opened: OpenOrder) -> None:
    try:
        opened.close()
    finally:
        if opened.kept is not None:
            opened.kept.give_back()
        request_leases.release(opened.proceed.lease)
