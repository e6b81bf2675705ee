"""The functions that Flask calls for a request, and the decorators on them: ``lock_view``, which an
order takes along, and those that stand above what registers a function. Flask would call that
without them."""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from flask import current_app, request

from lockkit.leases.decorating import made_below
from lockkit.model.errors import AcquireTimeout, ConfigurationError
from lockkit.web.route_checks import wrappers
from lockkit.web.view_lock import MARK
from lockkit_flask.leases.db_session import behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flask import Flask, Request

_ABOVE = "_lockkit_above"
"""Attribute of a function: the function itself, the wrapper around it, and the decorator's name."""

TO_THE_TOP = "Put @app.route, or what registers the function, at the top"

_WELL_PLACED = "_lockkit_well_placed"
"""Attribute of an app: by endpoint, the view and hooks of which none is without its decorator."""


def take_locks(view: object) -> Callable[[], Any] | None:
    """Take the locks of the request's view for its order. Returns None; if one is busy, the
    function that makes the answer.

    ``view``: the function below ``@idempotent``, because its decorators may be hidden from outside.
    """
    places = [*places_of(view_of(request), request.method), view]
    for locked in dict.fromkeys(each for place in places for each in getattr(place, MARK, ())):
        try:
            locked.enter()
        except AcquireTimeout as error:
            return functools.partial(locked.refuse, error)
    return None


def view_of(request: Request) -> Any:
    """The function that Flask calls for the request."""
    return current_app.view_functions[request.endpoint or ""]


def places_of(view: Any, *methods: str) -> list[Any]:
    """Where a decorator of a view may be, for these HTTP methods or for all. The outermost place is
    first."""
    cls = getattr(view, "view_class", None)
    names = ("dispatch_request", *map(str.lower, methods or getattr(cls, "methods", None) or ()))
    return [cls, view, *(getattr(cls, name, None) for name in names)]


def note_place(decorator: str, view: object, wrapper: object, *, depth: int = 2) -> None:
    """Remember that a decorator stands above a ``def``, if it does, and gets this function of it.

    ``depth``: how many calls this function is below the decorator's line.
    """
    made = made_below(sys._getframe(depth))
    for layer in wrappers(view) if made else ():  # each of them may be registered
        if isinstance(layer, FunctionType):
            vars(layer)[_ABOVE] = (layer, wrapper, decorator)
            if layer.__code__ in made:  # what that wraps was made elsewhere
                break


def refuse_misplaced(app: Flask, **_: object) -> None:
    """Raise ConfigurationError if the view of the current request, or a hook of the app, would run
    without its decorator.

    A function with another route that has the decorator may have this one without it on purpose.
    """
    endpoint = behind(request).endpoint or ""
    asked = (app.view_functions.get(endpoint), *_hooks(app))
    well_placed: dict[str, tuple[Any, ...]] = vars(app).setdefault(_WELL_PLACED, {})
    if well_placed.get(endpoint) == asked:
        return
    for text in _misplaced(app, asked):
        raise ConfigurationError(f"{text}. {TO_THE_TOP}")
    well_placed[endpoint] = asked


def misplaced(app: Flask) -> Iterator[str]:
    """A text for each view and hook of the app that would run without its decorator."""
    yield from dict.fromkeys(_misplaced(app, [*app.view_functions.values(), *_hooks(app)]))


def _misplaced(app: Flask, functions: Iterable[Any]) -> Iterator[str]:
    for each in functions:
        layers = [*wrappers(each)]
        for layer in layers:
            below, wrapper, decorator = getattr(layer, _ABOVE, (None, None, ""))
            if layer is below and wrapper not in layers and not _is_registered(app, wrapper):
                yield (
                    f"@{decorator} stands above the route or the hook of {below.__qualname__}, so "
                    f"Flask knows that without it"
                )


def _hooks(app: Flask) -> Iterator[Any]:
    """The functions that run before a request, and the error handlers."""
    for hooks in app.before_request_funcs.values():
        yield from hooks
    for by_status in app.error_handler_spec.values():
        for handlers in by_status.values():
            yield from handlers.values()


def _is_registered(app: Flask, wrapper: object) -> bool:
    return any(wrapper in wrappers(each) for each in (*app.view_functions.values(), *_hooks(app)))
