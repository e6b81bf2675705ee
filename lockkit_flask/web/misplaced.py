"""``@lock_view`` and ``@idempotent`` above ``@app.route``, where they do nothing.

``@app.route`` registers what is below it: Flask would call the view without what is above.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import TYPE_CHECKING

from flask import request

from lockkit.leases.decorating import is_written_above
from lockkit.model.errors import ConfigurationError
from lockkit.orders.view_checks import wrappers

if TYPE_CHECKING:
    from flask import Flask

_ABOVE = "_lockkit_above"
"""Where a function has itself, what was made of it, and by which decorator."""


def note(decorator: str, view: object, wrapper: object, *, depth: int = 2) -> None:
    """Remember that a decorator stands above the ``def`` of this view.

    ``depth``: of calls between its line and this function.
    """
    if isinstance(view, FunctionType) and is_written_above(view, sys._getframe(depth)):
        vars(view)[_ABOVE] = (view, wrapper, decorator)


def refuse(app: Flask, **_: object) -> None:
    """Raise ConfigurationError if the view of the current request is to run without them.

    A function may have a route with the decorator, and on purpose one without it.
    """
    view = app.view_functions.get(request.endpoint or "")
    below, wrapper, decorator = getattr(view, _ABOVE, (None, None, ""))
    if view is None or below is not view:
        return
    if any(wrapper is layer for each in app.view_functions.values() for layer in wrappers(each)):
        return
    raise ConfigurationError(
        f"@{decorator} stands above the route of {below.__qualname__}, so Flask knows the view "
        f"without it. Put @app.route, or what registers the view, at the top"
    )
