"""Whether a client may still see what was answered before: see ``lockkit.orders.view_checks``.

Hooks of ``before_request`` have passed already. It asks ``login_required`` and
``fresh_login_required`` of Flask-Login.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import FunctionType, MethodType, ModuleType
from typing import Any

from flask import Flask, current_app, request, session
from flask.views import MethodView
from werkzeug.local import LocalProxy
from werkzeug.routing import BuildError

from lockkit.orders.view_checks import unknown_in_class, unknown_wrapper
from lockkit.web.route_checks import module_of, wrappers
from lockkit_flask.web.view_functions import places_of

OURS = ("lockkit_flask.web.lock_view", "lockkit_flask.orders.app_orders")
FLASK_LOGIN = "flask_login"
LOGIN = f"{FLASK_LOGIN}.utils"
ASKED = ("login_required", "fresh_login_required")
VIEWS = "flask.views"


def checked_by(view: Any, method: str, below: Any, give: Callable[[], Any]) -> Any:
    """Run the view's known checks around ``give``, in place of the view. Returns what ``give``
    returns, or the answer of a check that refuses."""
    layers = [layer for place in _places(view, method, below) for layer in wrappers(place)]
    for layer in reversed(layers):
        if _maker(layer) in ASKED:
            give = layer.__globals__[_maker(layer)](give)
    return give()


def login_pages(view: str | None) -> list[str]:
    """Where Flask-Login redirects to, with and without ``next``; none if there is no such view."""
    login_url = import_module(FLASK_LOGIN).login_url
    try:
        return [login_url(view), login_url(view, "/")] if view else []
    except BuildError:
        return []


def is_way_back_kept() -> bool:
    """Whether Flask-Login keeps in the session that the visitor comes back here after the login."""
    if not current_app.config.get("USE_SESSION_FOR_NEXT"):
        return False
    here = import_module(LOGIN).make_next_param("", request.url)
    return session.get("next") in {here, request.url}


def unknown_check(app: Flask, view: Any, method: str, below: Any = None) -> str | None:
    """The name of a possible check of this view that is not asked; None if there is none.

    ``below``: what is below ``@idempotent``, if the checks above it have passed.
    """
    dispatches = next(cls for cls in type(app).__mro__ if "dispatch_request" in vars(cls))
    if below is None and dispatches is not Flask:
        return f"{dispatches.__module__}.{dispatches.__qualname__}.dispatch_request"
    places = _places(view, method, below)
    found = None if len(places) == 1 else _unknown_in(view.view_class, places)
    return found or unknown_wrapper(places, _is_known, _is_plain)


def _places(view: Any, method: str, below: Any) -> list[Any]:
    """Where checks may be: on the function, and on the functions of a class that it calls."""
    start = view if below is None else below
    *_, function = wrappers(start)
    is_dispatch = getattr(function, "__name__", "") == "dispatch_request"
    calls = places_of(view, method)[3 if is_dispatch else 2 :]
    is_of_class = is_dispatch or module_of(function) == VIEWS
    return [start, *filter(None, calls if is_of_class else ())]


def _unknown_in(cls: Any, places: list[Any]) -> str | None:
    """The name of a base that is not Flask's, or of a method that runs before the handler."""
    entries = {"__init__", "__new__"} if cls.init_every_request else set()
    entries |= {"dispatch_request"} if issubclass(cls, MethodView) else set()
    runs = cls.dispatch_request in places  # otherwise it is below @idempotent itself
    return unknown_in_class(cls, ("flask",), entries if runs else ())


def _is_plain(function: Any) -> bool:
    """Whether it is a plain function. One that holds what may be a view may be made by a decorator;
    so may a method of an object."""
    if type(function) is not FunctionType:
        return False
    return module_of(function) == VIEWS or not any(map(_may_be_view, _held_by(function)))


def _held_by(function: FunctionType) -> Iterator[Any]:
    """What the variables of its outer function, and its defaults, hold."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it was never assigned
            yield cell.cell_contents


def _may_be_view(held: Any) -> bool:
    """Whether this is something to call, except what factories of views hold, too; or whether it
    has a function in it, as an object, a list or a dict."""
    if callable(held) or isinstance(held, ModuleType):
        return not isinstance(held, (Flask, LocalProxy, ModuleType, type))
    if not isinstance(held, (dict, list, tuple, set)):
        held = getattr(held, "__dict__", ())
    parts = list(held.values() if isinstance(held, Mapping) else held)  # a thread may change it
    return any(isinstance(each, (FunctionType, MethodType, partial)) for each in parts)


def _is_known(layer: Any) -> bool:
    return module_of(layer) in OURS or _maker(layer) in ASKED


def _maker(layer: Any) -> str:
    """The name of the Flask-Login decorator that made this wrapper; empty if none did."""
    return layer.__code__.co_qualname.partition(".")[0] if module_of(layer) == LOGIN else ""
