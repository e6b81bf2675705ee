"""Whether a client may still see what was answered before.

A stored response is given without calling the view, so the checks that the view makes itself must
be made first. What cannot be asked from outside is never assumed to have passed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from flask import current_app, request
from flask.views import MethodView

from lockkit.model.log import log
from lockkit.orders import replies
from lockkit_flask.conf import dotted
from lockkit_flask.web.places import layers_of as wrapped_in
from lockkit_flask.web.places import places_of_request
from lockkit_flask.web.refusals import refused

if TYPE_CHECKING:
    from flask import Request, Response

    from lockkit.orders import OrderSettings

Check = Callable[[Callable[[], Any]], Callable[[], Any]]

OURS = ("lockkit_flask.web.lock_view", "lockkit_flask.orders.idempotent")
FLASK_LOGIN = "flask_login.utils"
KNOWN = ("login_required", "fresh_login_required")

_warned: set[str] = set()


class Authorization:
    """AUTHORIZE_REPLAY, which decides alone; without it, the decorators of the view."""

    def __init__(self, settings: OrderSettings) -> None:
        self._may_replay = dotted("LOCKKIT_ORDERS['AUTHORIZE_REPLAY']", settings.authorize_replay)

    def answer(self, response: Response, *, checked: bool) -> Any:
        """``response``, made of an earlier one, or a refusal of the current request.

        ``checked``: the order was opened below the view's own checks, so they have passed.
        """
        if self._may_replay is not None:
            return response if _allows(self._may_replay) else refused(replies.not_allowed())
        if checked:
            return response
        return _below_checks(response)


def _allows(may_replay: Callable[[Request], object]) -> bool:
    """What AUTHORIZE_REPLAY says, a function or anything whose answer is to be awaited."""
    answer = may_replay(request)
    return bool(current_app.async_to_sync(_awaited)(answer) if isawaitable(answer) else answer)


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def _below_checks(response: Response) -> Any:
    """The response, with the view's decorators around it.

    Those of Flask-Login are known. Any other that can be seen may be a check, and what it would
    say is not known: the order is completed, and its response is not given.
    """
    asked: Callable[[], Any] = lambda: response  # noqa: E731  in the place of the view
    for layer in reversed(list(layers_of(request))):
        module = getattr(layer, "__globals__", {}).get("__name__")
        if module in OURS:
            continue
        check = _known_check(module, layer)
        if check is None:
            _tell(request.endpoint or "", layer)
            return refused(replies.not_replayable())
        asked = check(asked)
    return asked()


def layers_of(request: Request) -> Iterator[Any]:
    """What can be seen around the view and its method: decorators made by ``functools.wraps``.

    And a ``dispatch_request`` of one's own, where the methods are the view: it may check, too.
    """
    for holder in places_of_request(request):
        *layers, last = wrapped_in(holder)
        yield from layers
        if last is not None and last is _dispatcher(request):
            yield last


def _dispatcher(request: Request) -> Any:
    """What a MethodView has instead of Flask's own way to its methods, if it has."""
    view: Any = current_app.view_functions[request.endpoint or ""]
    view_class = getattr(view, "view_class", None)
    if not (isinstance(view_class, type) and issubclass(view_class, MethodView)):
        return None
    found = inspect.unwrap(view_class.dispatch_request)
    return None if found is MethodView.dispatch_request else found


def _known_check(module: str | None, layer: Any) -> Check | None:
    """The decorator that made this layer, to be put around something else."""
    maker = layer.__code__.co_qualname.partition(".")[0] if module == FLASK_LOGIN else ""
    if maker not in KNOWN:
        return None
    found: Check = layer.__globals__[maker]
    return found


def _tell(endpoint: str, layer: Any) -> None:
    """Once per view: who wrote it should know why duplicates are not answered."""
    if endpoint in _warned:
        return
    _warned.add(endpoint)
    log.warning(
        "orders of the view %r are not repeated: a decorator on it (%s) may be a check that a "
        "repeated answer would pass by. Put @idempotent below it, or set AUTHORIZE_REPLAY",
        endpoint,
        getattr(getattr(layer, "__code__", layer), "co_qualname", type(layer).__name__),
    )
