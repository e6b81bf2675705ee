"""Where a decorator of a view may be found: on its function, its class, or a method of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import current_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Request


def places_of_request(request: Request) -> list[Any]:
    """Those of the view of a request, outermost first."""
    view: Any = current_app.view_functions[request.endpoint or ""]
    view_class = getattr(view, "view_class", None)
    names = ("dispatch_request", request.method.lower())
    return [view_class, view, *(getattr(view_class, name, None) for name in names)]


def places_of(view: Any) -> list[Any]:
    """Those of a view, whatever the method of the request."""
    view_class = getattr(view, "view_class", None)
    names = getattr(view_class, "methods", None) or ()
    methods = [getattr(view_class, name.lower(), None) for name in names]
    return [view, view_class, getattr(view_class, "dispatch_request", None), *methods]


def layers_of(view: Any) -> Iterator[Any]:
    """A function, and what ``functools.wraps`` shows below it."""
    yield view
    while hasattr(view, "__wrapped__"):
        view = view.__wrapped__
        yield view
