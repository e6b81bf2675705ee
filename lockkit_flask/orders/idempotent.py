"""``@idempotent``: one view is an order, whatever LOCKKIT_ORDERS says about paths."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from flask import current_app, request

from lockkit.model.errors import ConfigurationError
from lockkit.orders.settings import SAFE_METHODS
from lockkit.orders.visit import OPTIONS, ViewOptions, exempt, options_in, ordered_by
from lockkit_flask.state import app_locks
from lockkit_flask.web.lock_view import note_place, places_of

if TYPE_CHECKING:
    from flask import Flask

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V", bound=Callable[..., Any])


def binds_of(app: Flask) -> set[str]:
    """The databases that views of this app name with ``@idempotent(using=…)``."""
    places = [place for view in app.view_functions.values() for place in places_of(view)]
    found = {options_in([place]).using for place in places}
    return {using for using in found if using is not None}


class _Idempotent:
    """The decorator ``idempotent``, and ``idempotent.exempt``."""

    @overload
    def __call__(self, view: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def __call__(
        self,
        *,
        order_id: str | None = None,
        required: bool | None = None,
        using: str | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def __call__(  # type: ignore[misc]
        self,
        view: Any = None,
        /,
        *,
        order_id: str | None = None,
        required: bool | None = None,
        using: str | None = None,
    ) -> Any:
        """Make the view below an order, whatever PATHS and METHODS say.

        Put it below the decorators that check who may do this: they are then asked before
        anything is replayed. order_id: where it is, such as "json.order_id", instead of ORDER_ID.
        required: 400 without one. using: the bind key of the order's database.
        Raises ConfigurationError at import for a wrong ``order_id``.
        """
        options = ordered_by(order_id, required=required, using=using)
        return _inside(view, options) if view is not None else lambda v: _inside(v, options)

    exempt = staticmethod(exempt)


idempotent = _Idempotent()


def _inside(view: Callable[P, R], options: ViewOptions) -> Callable[P, R]:
    if not callable(view):
        raise ConfigurationError(f"write @idempotent(order_id={view!r})")
    if isinstance(view, type):
        raise ConfigurationError(
            f"@idempotent is for functions and methods; in {view.__name__} write "
            f"decorators = [idempotent]"
        )

    @functools.wraps(view)
    def idempotent_view(*args: P.args, **kwargs: P.kwargs) -> R:
        call = functools.partial(current_app.ensure_sync(view), *args, **kwargs)
        if request.method in SAFE_METHODS:
            return cast(R, call())
        orders = app_locks().orders
        if orders is None:
            raise ConfigurationError(
                "@idempotent needs LOCKKIT_ORDERS in the app's config; {'PATHS': []} is enough"
            )
        return cast(R, orders.run(call, options, view))

    setattr(idempotent_view, OPTIONS, options)
    note_place("idempotent", view, idempotent_view, depth=3)
    return idempotent_view
