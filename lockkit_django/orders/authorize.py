"""Whether a view's own checks let a stored answer be given: see ``lockkit.orders.view_checks``.

It asks Django's access mixins, and ``user_passes_test`` and its kin on the view itself. DRF's
permissions are asked before, when the owner of the order is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from inspect import getclosurevars, isclass
from types import FunctionType, MethodType
from typing import Any

from django.db.transaction import Atomic
from django.http import HttpRequest
from django.views.generic.base import View

from lockkit.orders.view_checks import unknown_in_class, unknown_wrapper
from lockkit.orders.visit import AnsweredError, Visit
from lockkit.web.route_checks import module_of, wrappers
from lockkit_django.leases.transactions import sparing_tests
from lockkit_django.web.view_functions import class_of, functions_of, ninja_operation

LOGIN = "django.contrib.auth.decorators"
MIXINS = "django.contrib.auth.mixins"
BASE = "django.views.generic.base"
CLASSES = ("django.views.generic", MIXINS, "rest_framework")
CALLBACKS = {BASE, "rest_framework.viewsets", "rest_framework.decorators"}
ENTRIES = {"as_view", "dispatch", "initial", "setup"}
DECORATORS = ("cache", "clickjacking", "common", "csp", "csrf", "debug", "http", "vary")
HARMLESS = CALLBACKS | {f"django.views.decorators.{name}" for name in DECORATORS}
HARMLESS |= {"lockkit_django.web.request_blocks"}  # lock_view and @idempotent


def unknown_check(view: Any, method: str, below: Any = None) -> str | None:
    """The name of a possible check of this view that is not asked; None if there is none.

    ``below``: what is below ``@idempotent``, if the checks above it have passed.
    """
    start = view if below is None else below
    cls = class_of(start)
    if below is not None and cls is None:
        return _unknown_below(view, method, below)
    if ninja_operation(start, method) is not None or (below is not None and hasattr(start, "cls")):
        return "the authentication of its framework"
    around = unknown_wrapper([start], lambda each: _test_of(each) or _is_harmless(each), _is_plain)
    if cls is None:
        return around
    inside = unknown_wrapper(functions_of(start, method), _is_harmless, _is_plain)
    return unknown_in_class(cls, CLASSES, ENTRIES) or around or inside


def _unknown_below(view: Any, method: str, below: Any) -> str | None:
    if type(below) is MethodType and hasattr(below.__self__, "as_view"):  # of IdempotentMixin
        below = below.__func__
    *_, function = wrappers(below)
    places = [below]
    if getattr(function, "__name__", "") == "dispatch":
        if module_of(function) != BASE:
            return "dispatch"
        places.append(getattr(class_of(view), method.lower(), function))  # dispatch calls it
    return unknown_wrapper(places, _is_harmless, _is_plain)


def passes(visit: Visit, view: Any) -> bool:
    """Whether the checks that are asked pass now. Their exceptions are raised, because the view
    would have raised them."""
    request, tests = visit.request, map(_test_of, wrappers(view))
    if not all(visit.value_of(test(request.user)) for test in tests if test):
        return False
    instance, match = _with_mixins(view), request.resolver_match
    if instance is None:
        return True
    from django.contrib.auth import mixins  # has models: only in a project with users

    instance.setup(request, *match.args, **match.kwargs)
    if isinstance(instance, mixins.LoginRequiredMixin) and not request.user.is_authenticated:
        return False
    if isinstance(instance, mixins.PermissionRequiredMixin) and not instance.has_permission():
        return False
    return not isinstance(instance, mixins.UserPassesTestMixin) or bool(instance.get_test_func()())


def told_to_tests(name: str, layers: Iterable[Any]) -> Iterator[Any]:
    """The values of an option of ``user_passes_test`` and its kin. Each sets an attribute of this
    name, too, but ``wraps`` gives an outer one that of the inner one."""
    for layer in layers:
        if _test_of(layer) is not None:
            redirect = getclosurevars(layer).nonlocals["_redirect_to_login"]
            yield getclosurevars(redirect).nonlocals[name]


def told_to_mixins(name: str, request: HttpRequest, view: Any) -> set[Any]:
    """What a class with Django's access mixins says of an option of theirs. The view has run, so
    its own ``setup`` is not called again."""
    with suppress(Exception):  # it names no page, or tells that only within its ``dispatch``
        if (instance := _with_mixins(view)) is not None:
            match: Any = request.resolver_match
            View.setup(instance, request, *match.args, **match.kwargs)
            return {str(getattr(instance, f"get_{name}")() or "")}
    return set()


def _with_mixins(view: Any) -> Any:
    """An object of a class view that has one of Django's access mixins; None for any other view."""
    cls = class_of(view)
    if not any(base.__module__ == MIXINS for base in getattr(cls, "__mro__", ())):
        return None
    return cls(**(getattr(view, "view_initkwargs", None) or {}))


def check_as_drf(request: HttpRequest, view: Any) -> None:
    """Do what DRF does before a view, except for throttling, which counts requests, and for what
    a view of the project does in an ``initial`` of its own."""
    from rest_framework.views import APIView

    match = request.resolver_match
    assert match is not None
    instance = view.cls(**getattr(view, "initkwargs", {}))
    for method, action in (getattr(view, "actions", None) or {}).items():
        setattr(instance, method, getattr(instance, action))
    instance.action_map = getattr(view, "actions", None) or {}
    if hasattr(view, "actions"):  # a view set, whose ``setup`` may be an action
        instance.request, instance.args, instance.kwargs = request, match.args, match.kwargs
    else:
        instance.setup(request, *match.args, **match.kwargs)
    drf = instance.request = instance.initialize_request(request, *match.args, **match.kwargs)
    instance.headers = instance.default_response_headers
    instance.check_throttles = lambda _: None
    try:
        APIView.initial(instance, drf, *match.args, **match.kwargs)
    except Exception as error:  # noqa: BLE001  handle_exception raises those that it does not know
        with sparing_tests():
            response = instance.handle_exception(error)
        raise AnsweredError(instance.finalize_response(drf, response)) from None


def _is_plain(function: Any) -> bool:
    """Whether it is a plain function. One with variables of another may be made by a decorator, and
    so may one with a function as a default; a method of an object, too."""
    if type(function) is not FunctionType:
        return False
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if any(callable(each) and not isclass(each) for each in defaults):
        return False
    return set(function.__code__.co_freevars) <= {"__class__"} or module_of(function) in CALLBACKS


def _is_harmless(layer: Any) -> bool:
    """Whether this wrapper never refuses a request if it let one with this method through."""
    if module_of(layer) == "contextlib":
        return isinstance(getclosurevars(layer).nonlocals.get("self"), Atomic)
    if type(layer) is partial:  # of method_decorator; a proxy only shows its class
        return getattr(layer.func, "__func__", None) is vars(layer)["__wrapped__"]
    return module_of(layer) in HARMLESS


def _test_of(layer: Any) -> Any:
    """The test of ``user_passes_test``; None if it is something else."""
    return getclosurevars(layer).nonlocals.get("test_func") if module_of(layer) == LOGIN else None
