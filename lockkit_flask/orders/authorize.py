"""Whether a client may still see what was answered before: see ``lockkit.orders.view_checks``.

Hooks of ``before_request`` have passed already. Asked are ``login_required`` and
``fresh_login_required`` of Flask-Login.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable, isroutine
from typing import TYPE_CHECKING, Any

from flask import current_app, request
from flask.views import MethodView

from lockkit.orders import refusals
from lockkit.orders.view_checks import module_of, unknown_in_class, unknown_wrapper, wrappers
from lockkit_flask.conf import dotted
from lockkit_flask.web.lock_view import view_of
from lockkit_flask.web.refusals import refused

if TYPE_CHECKING:
    from flask import Request, Response

    from lockkit.orders import OrderSettings

OURS = ("lockkit_flask.web.lock_view", "lockkit_flask.orders.idempotent")
LOGIN = "flask_login.utils"
VIEWS = "flask.views"


class Authorization:
    """AUTHORIZE_REPLAY, which decides alone; without it, the checks of the view."""

    def __init__(self, settings: OrderSettings) -> None:
        self._may_replay = dotted("LOCKKIT_ORDERS['AUTHORIZE_REPLAY']", settings.authorize_replay)

    def answer(self, response: Response, *, below: Any) -> Any:
        """``response``, made of an earlier one, or a refusal of the current request.

        ``below``: what is below ``@idempotent``; None: the order was opened above the view.
        """
        if self._may_replay is not None:
            return response if _allows(self._may_replay) else refused(refusals.NOT_ALLOWED)
        view = view_of(request)
        if unknown_check(view, request.method, below=below) is not None:
            return refused(refusals.not_replayable())
        asked: Callable[[], Any] = lambda: response  # noqa: E731  in the place of the view
        places = _places(view, request.method, below)
        for layer in reversed([layer for place in places for layer in wrappers(place)]):
            if module_of(layer) == LOGIN:
                asked = layer.__globals__[_maker(layer)](asked)
        return asked()


def unknown_check(view: Any, method: str, *, below: Any = None) -> str | None:
    """The name of what may be a check of this view, and is not asked; None: there is nothing."""
    places = _places(view, method, below)
    found: str | None = None
    if len(places) > 1:
        found = unknown_in_class(view.view_class, ("flask",), _entries(view.view_class, places))
    is_plain = _is_plain if below is None else isroutine
    unknown = (unknown_wrapper(each, _is_known, is_plain) for each in places)
    return found or next(filter(None, unknown), None)


def _places(view: Any, method: str, below: Any) -> list[Any]:
    """Where checks may stand: on the function, and where that calls one of a class, there too."""
    start = view if below is None else below
    *_, function = wrappers(start)
    cls = getattr(view, "view_class", None)
    is_dispatch = getattr(function, "__name__", "") == "dispatch_request"
    if cls is None or not (is_dispatch or module_of(function) == VIEWS):
        return [start]
    found = [None if is_dispatch else cls.dispatch_request, getattr(cls, method.lower(), None)]
    return [start, *(place for place in found if place is not None)]


def _entries(cls: Any, places: list[Any]) -> set[str]:
    """What of a class runs before the method of a request, and is not Flask's."""
    if cls.dispatch_request not in places:
        return set()  # it is below @idempotent itself
    *_, function = wrappers(cls.dispatch_request)
    entries = {"__init__", "__new__"} if cls.init_every_request else set()
    is_own = issubclass(cls, MethodView) and module_of(function) != VIEWS
    return entries | {"dispatch_request"} if is_own else entries


def _is_plain(function: Any) -> bool:
    """What holds another function may be made by a decorator that does not tell of it."""
    cells = getattr(function, "__closure__", None) or ()
    held = any(isroutine(cell.cell_contents) for cell in cells)
    return isroutine(function) and (module_of(function) == VIEWS or not held)


def _is_ours(layer: Any) -> bool:
    return module_of(layer) in OURS


def _is_known(layer: Any) -> bool:
    login = ("login_required", "fresh_login_required")
    return _is_ours(layer) or (module_of(layer) == LOGIN and _maker(layer) in login)


def _maker(layer: Any) -> str:
    """The decorator that made this layer."""
    return str(layer.__code__.co_qualname.partition(".")[0])


def _allows(may_replay: Callable[[Request], object]) -> bool:
    """What AUTHORIZE_REPLAY says, a function or anything whose answer is to be awaited."""
    answer = may_replay(request)

    async def awaited() -> object:
        return await answer if isawaitable(answer) else answer

    return bool(current_app.async_to_sync(awaited)() if isawaitable(answer) else answer)
