"""The leases of the requests that run: taken by views, given back when the request has ended.

Flask tears down in this order: ``teardown_request``, then ``teardown_appcontext``. Flask-SQLAlchemy
ends its session in the second, and so may code of the user that commits late. So the leases are
given back after both, in whatever order things were registered, even if one of them raises.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from flask import g, has_request_context, request
from flask import globals as flask_globals

from lockkit.leases.lease import give_back
from lockkit.model.errors import ConfigurationError
from lockkit_flask.leases import db_session
from lockkit_flask.leases.db_session import behind

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

    from lockkit.web.view_lock import AnyLease

_KEY = "_lockkit_held"


class Held(NamedTuple):
    """One lease, and the request and the decorator it belongs to.

    The request is needed: a view may send the app another one, within the same app context.
    """

    request: object
    owner: object
    lease: AnyLease
    is_view: bool  #: taken by lock_view, and not for an order


def install(app: Flask) -> None:
    """Have the leases of every request given back at its very end."""
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


def add(owner: object, lease: AnyLease, *, is_view: bool = True) -> None:
    """Keep a lease until the end of the current request."""
    found = _all()
    found[:] = [held for held in found if not held.lease.released]
    found.append(Held(_this_request(), owner, lease, is_view))
    setattr(g, _KEY, found)


def held_by(owner: object) -> AnyLease | None:
    """The lease that this decorator took for the current request, if it did."""
    for held in of_this_request():
        if held.owner is owner:
            return held.lease
    return None


def check_all() -> None:
    """Raise LeaseLost if a lease of the current request was lost. That of its order is looked at
    wherever it was taken: a decorator may push an app context around the view."""
    order = db_session.order_of_app()
    leases = [] if order is None else order.leases
    for lease in [*leases, *(held.lease for held in of_this_request())]:
        lease.check()
    if order is not None and order.kept is not None:
        order.kept.check()


def current_lease() -> AnyLease:
    """The lease of the current request; of several ``lock_view``, the innermost one's.

    For ``check()`` within a long view, and for its ``fencing_token``; of several names,
    ``current_lease()["stock:42"].fencing_token``. Raises ConfigurationError where no view of the
    current request holds a lock.
    """
    mine = [held.lease for held in of_this_request() if held.is_view]
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
    """May run twice, and for contexts without a request: it gives back what there is, but for the
    lease of an order whose request goes on: a decorator may push a context around the view.

    The session is still there only if a teardown function raised before the session's own ran.
    """
    order = db_session.ORDER.get()
    kept = [] if order is None else order.leases
    held = [each for each in _all() if each.lease not in kept]
    try:
        if held:
            db_session.roll_back()
    finally:
        while held:
            give_back(held.pop().lease)


def _at_end_of_request() -> None:
    """An app context that was pushed around the request outlives it, as it does in many tests.

    Then the end of the request is the end of the lock, and of what was not committed under it.
    """
    mine = of_this_request() if _all() and _context_outlives_request() else []
    if mine and db_session.has_writes():
        db_session.roll_back()
    for held in reversed(mine):
        _all().remove(held)
        give_back(held.lease)


def _all() -> list[Held]:
    """The leases of the app context; an empty list if it has none."""
    found: list[Held] | None = getattr(behind(g), _KEY, None)
    return [] if found is None else found


def _this_request() -> object:
    return behind(request).environ if has_request_context() else None


def this_context() -> Any:
    """The context of the request. Flask up to 3.1 has another one for the app."""
    variable: Any = getattr(flask_globals, "_cv_request", None) or vars(flask_globals)["_cv_app"]
    return variable.get(None)


def _context_outlives_request() -> bool:
    """Flask up to 3.1 reuses an app context that is there; later ones push one per request. The
    end of a copy of a request's context, within that, is not the end of the request."""
    context = this_context()
    tokens: Any = getattr(context, "_cv_tokens", None)
    if not tokens or not isinstance(tokens[-1], tuple) or tokens[-1][1] is not None:
        return False
    around = tokens[-1][0].old_value
    return getattr(around, "request", None) is not context.request
