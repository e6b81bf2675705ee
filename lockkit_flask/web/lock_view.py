"""``@lock_view``: one request at a time may run a view, per name."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypeVar, cast

from flask import current_app, request

from lockkit.leases.decorating import is_written_above
from lockkit.leases.lease import result_of
from lockkit.model.errors import AcquireTimeout, ConfigurationError, LeaseLost, LockError
from lockkit.web.refusal import Refusal, log_refusal, refusal_of, request_label
from lockkit.web.route_checks import wrappers
from lockkit.web.view_lock import MARK, ViewLock, mark
from lockkit_flask.leases import db_session, request_leases
from lockkit_flask.leases.db_session import behind
from lockkit_flask.state import app_locks
from lockkit_flask.web.refusals import http_exception
from lockkit_flask.web.request import RequestView

if TYPE_CHECKING:
    from flask import Flask, Request

    from lockkit.web.view_lock import AnyLease

V = TypeVar("V", bound=Callable[..., Any])
OnBusy = Callable[[AcquireTimeout], Any]

_ABOVE = "_lockkit_above"
"""Attribute of a function: itself, what was made of it, and by which decorator."""


class lock_view(ViewLock[OnBusy]):  # noqa: N801  as decorators are written
    """Run the view only while holding the lock of this name, or of all these. Below ``@app.route``.

    names: each a template over the request (``"stock:{sku:str}"``), or a callable that gets the
    URL's parameters and returns a name; several are taken all or none. timeout: seconds to wait
    (default: LOCKKIT_VIEWS["TIMEOUT"]).
    ttl: seconds. kind: "mutex", "reentrant", "read" or "write" of a reader-writer lock, or
    "semaphore" with its number of permits.
    on_busy: called with the error, returns the answer to a busy lock.

    The lock is given back after the database session of the request has ended, so after COMMIT.
    A busy lock is 423 with Retry-After, too many waiting requests or a store that is down are
    503, and the view does not run. A lease that is lost before the view returns raises LeaseLost.
    Raises ConfigurationError at import for a wrong template.
    """

    def __call__(self, view: V = None, /, *args: Never, **kwargs: Never) -> V:  # type: ignore[assignment]
        self.refuse_as_view(view, args, kwargs)
        if isinstance(view, type):
            raise ConfigurationError(
                f"lock_view is for functions and methods; put it on a method of {view.__name__}, "
                "or into the class: decorators = [lock_view(…)]"
            )
        is_async = inspect.iscoroutinefunction(view)

        @functools.wraps(view)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                lease = self.enter()
            except AcquireTimeout as error:
                return self.refuse(error)
            called = current_app.ensure_sync(view) if is_async else view
            answer = called(*args, **kwargs)
            try:
                lease.check()
            except LeaseLost:
                db_session.roll_back()  # what the view has not committed
                raise
            return answer

        mark(wrapper, self)
        note_place("lock_view", view, wrapper)
        return cast(V, wrapper)

    def enter(self) -> AnyLease:
        """Have the lock until the current request, or its order, has ended. Raises AcquireTimeout,
        or the HTTP exception."""
        found = request_leases.held_by(self)
        if found is not None:  # taken before the transaction of an order
            return found
        locks = app_locks()
        try:
            this = behind(request)
            view_of_request = RequestView(this, locks.config.user_pk)
            names = self.names_for(view_of_request, **(this.view_args or {}))
            label = request_label(this.method, this.path)
            acquiring = self.acquire(locks[self.alias], names, locks.config.views, label)
            lease: AnyLease = result_of(acquiring)
        except AcquireTimeout:
            raise
        except LockError as error:
            _abort(error)
        request_leases.add(lease, self)
        return lease

    def refuse(self, error: AcquireTimeout) -> Any:
        """The answer to a busy lock; without ``on_busy``, raises the HTTP exception."""
        if self._on_busy is None:
            _abort(error)
        log_refusal(request, _refusal_of(error), why=error)
        return current_app.ensure_sync(self._on_busy)(error)


def take_locks(view: object) -> Callable[[], Any] | None:
    """Take the locks of the request's view for its order; if one is busy, what makes the answer.

    ``view``: a function below it, for decorators that cannot be seen from outside.
    """
    places = [*places_of(view_of(request), request.method), view]
    for locked in dict.fromkeys(each for place in places for each in getattr(place, MARK, ())):
        try:
            locked.enter()
        except AcquireTimeout as error:
            return functools.partial(locked.refuse, error)
    return None


def view_of(request: Request) -> Any:
    """The function that Flask calls for the request."""
    return current_app.view_functions[request.endpoint or ""]


def places_of(view: Any, *methods: str) -> list[Any]:
    """Where a decorator of a view may be, outermost first; for some methods, else for all."""
    cls = getattr(view, "view_class", None)
    names = ("dispatch_request", *map(str.lower, methods or getattr(cls, "methods", None) or ()))
    return [cls, view, *(getattr(cls, name, None) for name in names)]


def note_place(decorator: str, view: object, wrapper: object, *, depth: int = 2) -> None:
    """Remember that a decorator stands above the ``def`` of this view.

    ``depth``: how many calls this function is below the decorator's line.
    """
    if isinstance(view, FunctionType) and is_written_above(view, sys._getframe(depth)):
        vars(view)[_ABOVE] = (view, wrapper, decorator)


def refuse_misplaced(app: Flask, **_: object) -> None:
    """Raise ConfigurationError if the view of the current request would run without its decorator.

    A function with another route that has the decorator may have this one without it on purpose.
    """
    view = app.view_functions.get(behind(request).endpoint or "")
    below, wrapper, decorator = getattr(view, _ABOVE, (None, None, ""))
    if view is None or below is not view:
        return
    if any(wrapper is layer for each in app.view_functions.values() for layer in wrappers(each)):
        return
    raise ConfigurationError(
        f"@{decorator} stands above the route of {below.__qualname__}, so Flask knows the view "
        f"without it. Put @app.route, or what registers the view, at the top"
    )


def _abort(error: LockError) -> NoReturn:
    """Raise the exception that Flask answers; a defect is raised as it is."""
    raise http_exception(_refusal_of(error), error) from error


def _refusal_of(error: LockError) -> Refusal:
    refusal = refusal_of(error, app_locks().config.views.busy_status)
    if refusal is None:
        raise error
    return refusal
