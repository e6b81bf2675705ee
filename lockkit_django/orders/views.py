"""``@idempotent``: what one view wants, and orders that are opened below a view's own checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponseBase

from lockkit.errors import ConfigurationError
from lockkit.idempotency import IdSource
from lockkit_django.facts import http_request
from lockkit_django.orders.gate import Gate, in_thread
from lockkit_django.orders.opened import open_order
from lockkit_django.orders.options import ATTRIBUTE, RecordAliases, ViewOptions
from lockkit_django.pending import has_lock

__all__ = ["MIDDLEWARE_MODE", "IdempotentMixin", "idempotent"]

MIDDLEWARE_MODE = "_lockkit_order_mode"
"""Attribute of a request that came through the middleware: "sync" or "async"."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")

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
    ) -> Callable[[V], V]: ...

    def __call__(  # type: ignore[misc]
        self,
        view: Any = None,
        /,
        *,
        order_id: str | None = None,
        required: bool | None = None,
        using: str | None = None,
    ) -> Any:
        """Make the function below an order, whatever PATHS and METHODS say.

        Put it below the view's own checks (``@permission_required``): they are then made before
        anything is replayed. ``order_id``: where it is, such as "json:order_id", instead of
        ORDER_ID. ``required``: 400 without one. ``using``: the database of the order.
        IdempotentOrderMiddleware must be there: it commits. Raises ConfigurationError.
        """
        sources = None if order_id is None else (IdSource.parse(order_id, where="@idempotent"),)
        options = ViewOptions(sources=sources, required=required, using=using, inside=True)
        return _inside(view, options) if view is not None else lambda v: _inside(v, options)

    def exempt(self, view: V, /) -> V:
        """This view's requests are no orders, whatever the settings say."""
        setattr(view, ATTRIBUTE, ViewOptions(exempt=True))
        return view


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
        return _marked(view, _class_options(cls), view)

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        django_request = http_request(request)
        if django_request.method in SAFE_METHODS:
            return
        _mode(django_request)
        name = getattr(self, "action", None) or str(request.method).lower()
        view = getattr(self, name, None)
        answer = _gate(django_request, view, _class_options(type(self))).enter(
            begin=not has_lock(view)
        )
        if answer is not None:
            setattr(self, str(request.method).lower(), lambda *_a, **_k: answer)


def _class_options(cls: type[IdempotentMixin]) -> ViewOptions:
    options = dict(cls.order_options)
    order_id = options.pop("order_id", None)
    if order_id is not None:
        options["sources"] = (IdSource.parse(order_id, where=cls.__name__),)
    return ViewOptions(inside=True, **options)


def _inside(view: V, options: ViewOptions) -> V:
    if isinstance(view, type):
        raise ConfigurationError(
            f"@idempotent is for functions and methods; let {view.__name__} inherit "
            f"IdempotentMixin, or use method_decorator(idempotent, name='dispatch')"
        )
    wrap = _async_wrapper if iscoroutinefunction(view) else _wrapper
    return cast(V, _marked(wrap(view, options), options, view))


def _wrapper(view: Callable[..., Any], options: ViewOptions) -> Callable[..., Any]:
    @wraps(view)
    def idempotent_view(request: Any, *args: Any, **kwargs: Any) -> Any:
        django_request = http_request(request)
        if django_request.method in SAFE_METHODS:
            return view(request, *args, **kwargs)
        _mode(django_request)
        answer = _gate(django_request, view, options).enter(begin=not has_lock(view))
        return answer if answer is not None else view(request, *args, **kwargs)

    return idempotent_view


def _async_wrapper(view: Callable[..., Any], options: ViewOptions) -> Callable[..., Any]:
    @wraps(view)
    async def idempotent_view(request: Any, *args: Any, **kwargs: Any) -> Any:
        django_request = http_request(request)
        if django_request.method in SAFE_METHODS:
            return await view(request, *args, **kwargs)
        enter = _gate(django_request, view, options)
        answer = await _aenter(django_request, enter, begin=not has_lock(view))
        return answer if answer is not None else await view(request, *args, **kwargs)

    return idempotent_view


async def _aenter(request: HttpRequest, gate: Gate, *, begin: bool) -> HttpResponseBase | None:
    """Under WSGI the loop of an async view ends with it, and the order does not: use the thread."""
    if _mode(request) == "async":
        return await gate.aenter(begin=begin)
    return await in_thread(partial(gate.enter, begin=begin))


def _gate(request: HttpRequest, view: Any, options: ViewOptions) -> Gate:
    if getattr(request, "lease", None) is not None:
        raise ConfigurationError(
            "an order inside lock_view would commit after that lock is released: "
            "put @idempotent, or the method's @lock_view, the other way round"
        )
    if open_order(request) is not None:
        raise ConfigurationError("an order is open already: use @idempotent once per request")
    return Gate(request, view, options, checked=True)


def _mode(request: HttpRequest) -> str:
    mode = getattr(request, MIDDLEWARE_MODE, None)
    if mode is None:
        raise ConfigurationError(
            "@idempotent needs 'lockkit_django.middleware.IdempotentOrderMiddleware' in MIDDLEWARE"
        )
    return str(mode)


def _marked(wrapper: Any, options: ViewOptions, view: Any) -> Any:
    """For the middleware and for Django: ``wraps`` hands the marks on to decorators further up."""
    setattr(wrapper, ATTRIBUTE, options)
    wrapper._non_atomic_requests = RecordAliases(
        options.using, getattr(view, "_non_atomic_requests", set())
    )
    return wrapper
