"""The leases of running requests: taken by views, given back when the request has ended.

Flask tears down in this order: ``teardown_request``, then ``teardown_appcontext``. Flask-SQLAlchemy
ends its session in the second, and so may code of the user that commits late. So the leases are
given back after both, in whatever order things were registered, even if one of them raises.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from flask import g, has_request_context, request
from flask import globals as flask_globals

from lockkit.leases.lease import give_back
from lockkit.model.errors import ConfigurationError
from lockkit_flask.leases import db_session
from lockkit_flask.leases.db_session import behind

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

    from lockkit.leases.client import Lease
    from lockkit.web.view_lock import AnyLease

_KEY = "_lockkit_held"

_REQUEST_CONTEXT: Any = vars(flask_globals).get("request_ctx", flask_globals.app_ctx)
"""After Flask 3.1 they are one."""


class Held(NamedTuple):
    """One lease, and the request and the decorator it belongs to.

    The request is needed: a view may send the app another one, within the same app context.
    """

    request: object
    lock_view: object  #: None: it was taken by hand, until="commit"
    lease: AnyLease


def install(app: Flask) -> None:
    """Have the leases of every request released at its very end."""
    after(app, "do_teardown_request", _at_end_of_request)
    after(app, "do_teardown_appcontext", _at_end_of_context)


def after(app: Flask, method: str, step: Callable[[], None]) -> None:
    """Have a step follow a method of the app, even if the method raises."""
    original = getattr(app, method)

    @functools.wraps(original)
    def followed(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            step()

    vars(app)[method] = followed


def add(lease: AnyLease, lock_view: object = None) -> None:
    """Keep a lease until the end of the current request, or of the app context without one."""
    found = [held for held in _all() if not held.lease.released]
    setattr(g, _KEY, [*found, Held(_this_request(), lock_view, lease)])


def held_by(lock_view: object) -> AnyLease | None:
    """The lease that this decorator took for the current request; None if it took none."""
    for held in of_this_request():
        if held.lock_view is lock_view:
            return held.lease
    return None


def current_lease() -> AnyLease:
    """The lease of the current request; of several ``lock_view``, the innermost one's.

    For ``check()`` within a long view, and for its ``fencing_token``; of several names,
    ``current_lease()["stock:42"].fencing_token``. Raises ConfigurationError where no view of the
    current request holds a lock.
    """
    mine = [held.lease for held in of_this_request() if held.lock_view]
    if not mine:
        raise ConfigurationError(
            "current_lease() is for views below @lock_view, while they run: none holds a lock here"
        )
    return mine[-1]


def of_this_request() -> list[Held]:
    """The leases still held for it, the innermost last."""
    found = _all()
    this = _this_request() if found else None
    return [held for held in found if held.request is this and not held.lease.released]


def _at_end_of_context() -> None:
    """Release all leases of the app context. May run twice, and for contexts without a request.

    The session is still there only if a teardown function raised before the session's own ran.
    """
    if found := _all():
        _give_back(found)


def _at_end_of_request() -> None:
    """An app context that was pushed around the request outlives it, as it does in many tests.

    Then the end of the request is the end of the lock, and of what was not committed under it.
    """
    if _all() and _context_outlives_request() and (mine := of_this_request()):
        _give_back(mine)


def _give_back(held: list[Held]) -> None:
    try:
        if db_session.has_writes():
            db_session.roll_back()
    finally:
        for _, lock_view, lease in reversed(held):
            if lock_view is None:  # a transaction that has only read goes on, and keeps it
                cast("Lease", lease)._disown()
            give_back(lease)


def _all() -> list[Held]:
    """The leases of the app context; an empty list if it has none."""
    found: list[Held] = getattr(behind(g), _KEY, [])
    return found


def _this_request() -> object:
    return behind(request).environ if has_request_context() else None


def this_context() -> Any:
    """The context of the request; None if there is none."""
    return behind(_REQUEST_CONTEXT) if has_request_context() else None


def _context_outlives_request() -> bool:
    """Flask up to 3.1 reuses an app context that is there; later ones push one per request. The
    end of a copy of a request's context, within that, is not the end of the request."""
    context = this_context()
    tokens = getattr(context, "_cv_tokens", None)
    if not tokens or tokens[-1][1] is not None:
        return False
    around = tokens[-1][0].old_value
    return getattr(around, "request", None) is not context.request
