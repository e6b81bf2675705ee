"""Which functions answer a request, below the callback that the URL leads to; and whether one of
them has ``lock_view``, which then begins the order's transaction.

The callback of a class view, of DRF's ``@api_view`` and of Django Ninja hides these functions and
the marks of their decorators. To look inside, neither these two nor a model is imported: Django's
applications may not be ready yet.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

from lockkit.web.route_checks import module_behind, wrappers
from lockkit.web.view_lock import view_locks_of

if TYPE_CHECKING:
    from django.http import HttpRequest

    from lockkit_django.orders.open_order import OpenOrder

OPEN_ORDER = "_lockkit_open_order"
"""Attribute of a request: the order it has opened."""

API_VIEW = "rest_framework.decorators"
NINJA = "ninja.operation"
DISPATCHERS = (
    "django.views.generic.base",
    "rest_framework.views",
    "lockkit_django.orders.idempotent",
)


def places_of(view: Any, method: str | None) -> list[Any]:
    """Where a decorator of a view may be, for this HTTP method. The outermost place is first."""
    return [view, class_of(view), *functions_of(view, method)]


def functions_of(view: Any, method: str | None) -> Iterator[Any]:
    """The functions that answer this HTTP method, the outermost first, without the callback."""
    operation = ninja_operation(view, method)
    if operation is not None:
        yield operation.run  # decorate_view wraps it
        yield operation.view_func
    cls = class_of(view)
    if cls is None or method is None:
        return
    name = (getattr(view, "actions", None) or {}).get(method.lower(), method.lower())
    for handler in (getattr(cls, "dispatch", None), getattr(cls, name, None)):
        if handler is not None:
            yield handler
            if module_behind(handler) == API_VIEW:
                yield from _captured(handler, "func")


def may_take(view: Any, method: str) -> bool:
    """Whether the view may answer this HTTP method. Always True, unless it is a class with the
    framework's own ``dispatch``: there it must have a handler for the method."""
    cls = class_of(view)
    if module_behind(getattr(cls, "dispatch", None)) not in DISPATCHERS:
        return True
    return method.lower() in cls.http_method_names and len([*functions_of(view, method)]) > 1


def class_of(view: Any) -> Any:
    """The class of a callback that ``as_view`` has made, of DRF's or Django's."""
    return getattr(view, "cls", None) or getattr(view, "view_class", None)


def ninja_operation(view: Any, method: str | None) -> Any | None:
    """Django Ninja's operation for this HTTP method; None: it is not Ninja's view."""
    if method is None or module_behind(view) != NINJA:
        return None
    owner = getattr(view, "__self__", None)  # before Ninja 1.5, a bound method
    for path_view in (owner,) if owner is not None else _captured(view, "self"):
        for operation in path_view.operations:
            if method in operation.methods:
                return operation
    return None


def is_operation(view: Any) -> bool:
    """Whether this is what Ninja's ``decorate_view`` gives to decorators. Ninja authenticates
    inside of it."""
    owner = getattr(view, "__self__", None)
    return any(base.__module__ == NINJA for base in type(owner).__mro__)


def show_types(wrapper: Any, view: Any) -> None:
    """Let Ninja read the parameters' types through a decorator.

    Ninja looks the names of types up in the module of the function that it is given. It is never
    given what ``method_decorator`` makes for each request: a partial of the view's method.
    """
    if type(view) is partial and type(view.func) is MethodType:
        return
    with suppress(Exception):  # annotations may name types that only type checkers import
        wrapper.__signature__ = inspect.signature(view, eval_str=True)


def pending_order(request: HttpRequest) -> OpenOrder | None:
    """The order of this request, if its transaction is still to be begun."""
    found: OpenOrder | None = getattr(request, OPEN_ORDER, None)
    return None if found is None or found.begun else found


def has_lock_below(view: Any, request: HttpRequest) -> bool:
    """Whether ``lock_view`` is on this view or, if it is a ``dispatch``, on what it calls."""
    own = view_locks_of((view, class_of(view)))
    return bool(own or view_locks_of(called_by(view, request)))


def called_by(view: Any, request: HttpRequest) -> list[Any]:
    """The functions that answer this request, if the view is a framework's own ``dispatch``."""
    *_, function = wrappers(view)
    match = request.resolver_match
    if (
        match is None
        or module_behind(function) not in DISPATCHERS
        or function.__name__ != "dispatch"
    ):
        return []
    return [*functions_of(match.func, request.method)][1:]


def _captured(function: Any, name: str) -> Iterator[Any]:
    """The value of a variable in a function's closure: neither library shows it otherwise."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    if name in cells:
        yield cells[name].cell_contents
