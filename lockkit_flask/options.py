"""What ``@idempotent`` says about one view, and which views it was said about."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flask import current_app
from flask.views import MethodView

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Flask, Request

    from lockkit.orders import IdSource

__all__ = [
    "ATTRIBUTE",
    "DEFAULTS",
    "ViewOptions",
    "binds_of",
    "holders_of",
    "layers_of",
    "options_of",
    "places_of",
]

ATTRIBUTE = "_lockkit_idempotent"


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Overrides of LOCKKIT_ORDERS for one view; None: as the settings say."""

    sources: tuple[IdSource, ...] | None = None
    required: bool | None = None
    using: str | None = None
    exempt: bool = False
    inside: bool = False  #: the view opens its order itself, below its own checks


DEFAULTS = ViewOptions()


def options_of(request: Request) -> ViewOptions:
    """Of the view of a request: on its method, on the function, or on the class."""
    for holder in reversed(holders_of(request)):
        options = getattr(holder, ATTRIBUTE, None)
        if isinstance(options, ViewOptions):
            return options
    return DEFAULTS


def layers_of(request: Request) -> Iterator[Any]:
    """What can be seen around the view and its method: decorators made by ``functools.wraps``.

    And a ``dispatch_request`` of one's own, where the methods are the view: it may check, too.
    """
    for holder in holders_of(request):
        layer = holder
        while hasattr(layer, "__wrapped__"):
            yield layer
            layer = layer.__wrapped__
        if layer is not None and layer is _dispatcher(request):
            yield layer


def binds_of(app: Flask) -> set[str]:
    """The databases that views of this app name with ``@idempotent(using=…)``."""
    marked = [place for view in app.view_functions.values() for place in places_of(view)]
    found = [getattr(place, ATTRIBUTE, DEFAULTS).using for place in marked]
    return {using for using in found if using is not None}


def holders_of(request: Request) -> list[Any]:
    """What a decorator of this view may be on, outermost first."""
    view: Any = current_app.view_functions[request.endpoint or ""]
    view_class = getattr(view, "view_class", None)
    names = ("dispatch_request", request.method.lower())
    return [view_class, view, *(getattr(view_class, name, None) for name in names)]


def _dispatcher(request: Request) -> Any:
    """What a MethodView has instead of Flask's own way to its methods, if it has."""
    view: Any = current_app.view_functions[request.endpoint or ""]
    view_class = getattr(view, "view_class", None)
    if not (isinstance(view_class, type) and issubclass(view_class, MethodView)):
        return None
    found = inspect.unwrap(view_class.dispatch_request)
    return None if found is MethodView.dispatch_request else found


def places_of(view: Any) -> list[Any]:
    """What a decorator of a view may be on, whatever the method of the request."""
    view_class = getattr(view, "view_class", None)
    names = getattr(view_class, "methods", None) or ()
    methods = [getattr(view_class, name.lower(), None) for name in names]
    return [view, view_class, getattr(view_class, "dispatch_request", None), *methods]
