"""Whether a view's own checks let a stored answer be given: see ``lockkit.orders.view_checks``.

Asked are Django's access mixins, and ``user_passes_test`` and its kin on the view itself; DRF's
permissions are asked before, with the question whose order it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import getclosurevars, isroutine
from typing import TYPE_CHECKING, Any

from django.db.transaction import Atomic
from django.http import HttpRequest
from django.utils.module_loading import import_string

from lockkit.orders.view_checks import module_of, unknown_in_class, unknown_wrapper, wrappers
from lockkit_django.orders.identity import value_of
from lockkit_django.web.view_functions import class_of, functions_of, ninja_operation

if TYPE_CHECKING:
    from lockkit.orders import OrderSettings

LOGIN = "django.contrib.auth.decorators"
MIXINS = "django.contrib.auth.mixins"
ORDERED = "lockkit_django.orders.ordered_view"
BASE = "django.views.generic.base"
CLASSES = ("django.views.generic", MIXINS, "rest_framework")
CALLBACKS = {BASE, "rest_framework.viewsets", "rest_framework.decorators"}
ENTRIES = {"as_view", "dispatch", "initial", "setup"}
DECORATORS = ("cache", "clickjacking", "common", "csrf", "debug", "http", "vary")
HARMLESS = {
    *(f"django.views.decorators.{name}" for name in DECORATORS),
    *("lockkit_django.web.locked_view", ORDERED),
}


def may_replay(
    request: HttpRequest, view: Any, settings: OrderSettings, *, checked: bool
) -> bool | None:
    """Whether the view's own checks would pass now; None: that cannot be told from outside.

    AUTHORIZE_REPLAY, if it is set, decides alone. Exceptions of the checks are raised: they are
    what the view would have raised. ``checked``: ``view`` is what is below ``@idempotent``.
    """
    if settings.authorize_replay is not None:
        return bool(value_of(import_string(settings.authorize_replay)(request)))
    if checked and class_of(view) is None:
        return None if _unknown_below(request, view) else True
    if (checked and hasattr(view, "cls")) or unknown_check(view, request.method):
        return None  # DRF authenticates in there
    return all(_answers(request, view))


def unknown_check(view: Any, method: str | None) -> str | None:
    """The name of what may be a check of this view, and is not asked; None: there is nothing."""
    if ninja_operation(view, method) is not None:
        return "the authentication of Ninja"
    view_class = class_of(view)
    unknown = view_class and unknown_in_class(view_class, CLASSES, ENTRIES)
    return unknown or _unknown(view, login=True) or _unknown(*functions_of(view, method))


def unknown_below(view: Any, method: str | None) -> str | None:
    """The same for what is below the ``@idempotent`` of a view, as far as that is to be seen."""
    for each in wrappers(view):
        if module_of(each) == ORDERED:
            return unknown_check(each.__wrapped__, method)
    layers = (each for handler in functions_of(view, method) for each in wrappers(handler))
    return _unknown(*(each.__wrapped__ for each in layers if module_of(each) == ORDERED))


def _unknown_below(request: HttpRequest, view: Any) -> str | None:
    """``dispatch`` calls the method of its class."""
    *_, function = wrappers(view)
    if getattr(function, "__name__", "") != "dispatch":
        return _unknown(view)
    if module_of(function) != BASE:
        return "dispatch"
    match: Any = request.resolver_match
    handler = getattr(class_of(match.func), (request.method or "").lower(), function)
    return _unknown(view, handler)


def _unknown(*functions: Any, login: bool = False) -> str | None:
    is_known = _is_asked if login else _is_harmless
    found = (unknown_wrapper(each, is_known, _is_plain) for each in functions)
    return next(filter(None, found), None)


def _is_plain(function: Any) -> bool:
    """What has variables of another function may be made by a decorator without ``wraps``."""
    free = set(getattr(getattr(function, "__code__", None), "co_freevars", ()))
    return isroutine(function) and (free <= {"__class__"} or module_of(function) in CALLBACKS)


def _is_harmless(layer: Any) -> bool:
    """Whether this wrapper refuses no request whose method was answered before."""
    if module_of(layer) == "contextlib":
        return isinstance(_variable(layer, "self"), Atomic)
    if isinstance(layer, partial):  # of method_decorator
        return getattr(layer.func, "__func__", None) is vars(layer)["__wrapped__"]
    return module_of(layer) in HARMLESS | CALLBACKS


def _is_asked(layer: Any) -> bool:
    asks = module_of(layer) == LOGIN and callable(_variable(layer, "test_func"))
    return asks or _is_harmless(layer)


def _variable(layer: Any, name: str) -> object:
    """One of those that a function has of the function around it."""
    return getclosurevars(layer).nonlocals.get(name)


def _answers(request: HttpRequest, view: Any) -> Iterator[bool]:
    for each in wrappers(view):
        if module_of(each) == LOGIN:
            test: Any = _variable(each, "test_func")
            yield bool(value_of(test(request.user)))
    view_class, match = class_of(view), request.resolver_match
    if match is None or not any(c.__module__ == MIXINS for c in getattr(view_class, "__mro__", ())):
        return
    from django.contrib.auth import mixins  # has models: only in a project with users

    instance = view_class(**(getattr(view, "view_initkwargs", None) or {}))
    instance.setup(request, *match.args, **match.kwargs)
    if isinstance(instance, mixins.LoginRequiredMixin):
        yield request.user.is_authenticated
    if isinstance(instance, mixins.PermissionRequiredMixin):
        yield bool(instance.has_permission())
    if isinstance(instance, mixins.UserPassesTestMixin):
        yield bool(instance.get_test_func()())
