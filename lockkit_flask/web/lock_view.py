"""``@lock_view``: a view that runs while it holds a lock."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypeVar, cast

from flask import current_app, request

from lockkit.leases.lease import result_of
from lockkit.model.errors import AcquireTimeout, ConfigurationError, LeaseLost, LockError
from lockkit.web.refusal import Refusal, log_refusal, refusal_of, request_label
from lockkit.web.view_lock import ViewLock, mark, note_lease
from lockkit_flask.leases import db_session, request_leases
from lockkit_flask.leases.db_session import behind
from lockkit_flask.state import app_locks
from lockkit_flask.web.refusals import http_exception
from lockkit_flask.web.request import RequestView
from lockkit_flask.web.view_functions import note_place

if TYPE_CHECKING:
    from lockkit.web.view_lock import AnyLease

V = TypeVar("V", bound=Callable[..., Any])
OnBusy = Callable[[AcquireTimeout], Any]


class lock_view(ViewLock[OnBusy]):  # noqa: N801  as decorators are written
    """Have a view hold the lock of this name, or of all these names. Put it below ``@app.route``.

    - ``names``: each is a template over the request, such as ``"stock:{sku:str}"``, or a callable
      that gets the URL's parameters and returns a name. Several names are taken all or none.
    - ``timeout``: seconds to wait (default: that of LOCKKIT_VIEWS; 0: do not wait; None: for ever).
    - ``ttl``: seconds that the lease lives unrenewed (default: that of the alias).
    - ``alias``: the key in LOCKKIT of the store that keeps the lock.
    - ``kind``: "mutex", "reentrant", "read" or "write" of a reader-writer lock, or "semaphore" with
      its number of ``permits``.
    - ``on_busy(error)``: returns the answer if the lock is busy (default: 423 with Retry-After; 503
      if too many requests wait already).

    The lock is released after the database session of the request has ended, so after its COMMIT.
    If the lock is busy, or the store is down (503), the view does not run. A lease that is lost
    before the view returns raises LeaseLost, and what the view has not committed is rolled back.
    Raises ConfigurationError at import for a wrong template.
    """

    BUSY_TAKES = ("error",)

    def __call__(self, view: V = None, /, *args: Never, **kwargs: Never) -> V:  # type: ignore[assignment]
        self.refuse_as_view(view, args, kwargs)
        if isinstance(view, type):
            raise ConfigurationError(
                f"lock_view is for functions and methods; put it on a method of {view.__name__}, "
                "or into the class: decorators = [lock_view(…)]"
            )

        @functools.wraps(view)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                lease = self.enter(checks=True)
            except AcquireTimeout as error:
                return self.refuse(error)
            answer = current_app.ensure_sync(view)(*args, **kwargs)
            try:
                lease.check()
            except LeaseLost:
                db_session.roll_back()  # what the view has not committed
                raise
            return answer

        mark(wrapper, self)
        note_place("lock_view", view, wrapper)
        return cast(V, wrapper)

    def enter(self, *, checks: bool = False) -> AnyLease:
        """Acquire the lock until the current request, or its order, has ended. Raises
        AcquireTimeout, or the HTTP exception of another refusal. ``checks``: LeaseLost, too, if the
        request has it already, and has lost it."""
        found = request_leases.held_by(self)
        if found is not None:  # taken before an order began, or by an earlier call of the view
            if checks:
                found.check()
            return found
        locks = app_locks()
        try:
            this = behind(request)
            view_of_request = RequestView(this, locks.config.user_pk)
            names = self.names_for(view_of_request, **(this.view_args or {}))
            label = request_label(this)
            acquiring = self.acquire(locks[self.alias], names, locks.config.views, label)
            lease: AnyLease = result_of(acquiring)
        except AcquireTimeout:
            raise
        except LockError as error:
            _abort(error)
        request_leases.add(lease, self)
        note_lease(lease)
        return lease

    def refuse(self, error: AcquireTimeout) -> Any:
        """The answer to a busy lock; without ``on_busy``, raises the HTTP exception."""
        if self._on_busy is None:
            _abort(error)
        log_refusal(request, _refusal_of(error), why=error)
        return current_app.ensure_sync(self._on_busy)(error)


def _abort(error: LockError) -> NoReturn:
    """Raise the HTTP exception for a refusal. An error that is a defect is raised as it is."""
    raise http_exception(_refusal_of(error), error) from error


def _refusal_of(error: LockError) -> Refusal:
    return refusal_of(error, app_locks().config.views.busy_status)
