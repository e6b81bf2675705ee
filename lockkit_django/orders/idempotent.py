"""``@idempotent``: what one view wants, and orders that are opened below a view's own checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from lockkit.model.errors import ConfigurationError
from lockkit.orders.visit import OPTIONS, ViewOptions, exempt, ordered_by
from lockkit_django.leases.transactions import Exempt
from lockkit_django.orders.ordered_view import ordered
from lockkit_django.web.request import http_request
from lockkit_django.web.view_functions import is_operation, show_types

V = TypeVar("V", bound=Callable[..., Any])


class _Idempotent:
    """The decorator ``idempotent``, and ``idempotent.exempt``."""

    @overload
    def __call__(self, view: V, /) -> V: ...

    @overload
    def __call__(
        self,
        *,
        order_id: str | None = None,
        required: bool | None = None,
        using: str | None = None,
        atomic: bool = True,
    ) -> Callable[[V], V]: ...

    def __call__(  # type: ignore[misc]
        self,
        view: Any = None,
        /,
        *,
        order_id: str | None = None,
        required: bool | None = None,
        using: str | None = None,
        atomic: bool = True,
    ) -> Any:
        """Make the function or method below an order, whatever PATHS and METHODS say.

        Put it below the view's own checks (``@permission_required``): they are then made before
        anything is replayed. ``order_id``: where it is, such as "json:order_id", instead of
        ORDER_ID. ``required``: 400 without one. ``using``: the database of the order.
        ``atomic=False``: the view commits itself, in ``request.order.commit_in(…)``.
        IdempotentOrderMiddleware must be there: it commits. Raises ConfigurationError.
        """
        options = ordered_by(order_id, required=required, using=using, atomic=atomic)
        return _inside(view, options) if view is not None else lambda v: _inside(v, options)

    exempt = staticmethod(exempt)


idempotent = _Idempotent()


class IdempotentMixin:
    """For DRF views and viewsets: the order is opened after ``initial()``, so authentication,
    permissions and throttles are those of the view itself, made once.

    ``class Orders(IdempotentMixin, APIView)``. What ``@idempotent`` takes, as ``order_options``.
    """

    order_options: dict[str, Any] = {}  # noqa: RUF012  a default, replaced and never changed

    @classmethod
    def as_view(cls, *args: Any, **kwargs: Any) -> Any:
        view = super().as_view(*args, **kwargs)  # type: ignore[misc]
        view._non_atomic_requests = Exempt(getattr(view, "_non_atomic_requests", ()))
        setattr(view, OPTIONS, _class_options(cls))
        return view

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        name = str(request.method).lower()
        handler = getattr(self, name, None)
        if handler is not None:
            setattr(self, name, ordered(handler, _class_options(type(self)), _exempt(request)))


def _class_options(cls: type[IdempotentMixin]) -> ViewOptions:
    return ordered_by(where=cls.__name__, **cls.order_options)


def _exempt(request: Any) -> Exempt | None:
    """What ``as_view`` has marked, and what was exempted since."""
    match = http_request(request).resolver_match
    marks = getattr(getattr(match, "func", None), "_non_atomic_requests", None)
    return marks if isinstance(marks, Exempt) else None


def _inside(view: V, options: ViewOptions) -> V:
    if not callable(view):
        raise ConfigurationError(f"write @idempotent(order_id={view!r})")
    if isinstance(view, type):
        raise ConfigurationError(
            f"@idempotent is for functions and methods; let {view.__name__} inherit "
            f"IdempotentMixin (in DRF), or use method_decorator(idempotent, name='dispatch')"
        )
    if is_operation(view):
        raise ConfigurationError(
            "decorate_view(idempotent) would answer before Ninja has authenticated: put "
            "@idempotent directly on the function, below @api.post"
        )
    if hasattr(view, "login_url"):  # the mark of Django's decorators
        raise ConfigurationError(
            "@idempotent above @login_required, @permission_required or @user_passes_test would "
            "repeat answers to whoever they refuse: put it below them"
        )
    wrapper = ordered(view, options)
    show_types(wrapper, view)
    setattr(wrapper, OPTIONS, options)  # for the middleware; ``wraps`` hands it on
    return cast(V, wrapper)
