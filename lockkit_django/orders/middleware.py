"""``IdempotentOrderMiddleware``: each order takes effect once; duplicates get the same answer.

It acts in phases around the view, so that Django's own machinery stays in between:

- ``process_view``, after authentication and CSRF: look up, lock, BEGIN, insert the record;
- ``process_exception``: roll back what the view did, or save it after a refusal, whatever response
  is made of the exception;
- ``process_template_response``: the same if DRF has made a response from an exception;
- after ``get_response``: write the rendered response into the record and COMMIT, or ROLLBACK;
- at the end, in every case: ROLLBACK if the transaction is still open, then release the lock.

On the order's database, ATOMIC_REQUESTS has no transaction of its own: the order's takes its place.
If another middleware comes after this one, ATOMIC_REQUESTS is a savepoint inside the order's. An
order whose view has a ``lock_view`` of its own begins under that lock, which is released after the
COMMIT, too.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from types import MethodType
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.handlers.base import BaseHandler
from django.core.signals import got_request_exception
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from lockkit.leases.lease import result_of
from lockkit.orders import gate
from lockkit.orders.forms import tell_uncovered
from lockkit.orders.gate import Runner
from lockkit.orders.settings import SAFE_METHODS
from lockkit.orders.visit import ViewOptions, options_in
from lockkit.runtime.aio_run import to_its_end
from lockkit.web.refusal import log_refusal, prefers_html
from lockkit.web.view_lock import view_locks_of
from lockkit_django.leases.client import until_thread_is_idle
from lockkit_django.leases.transactions import note_each_request
from lockkit_django.orders.open_order import MIDDLEWARE_RUNNER
from lockkit_django.orders.request import keep_body
from lockkit_django.orders.visit import (
    LOOP,
    REFUSAL,
    THREAD,
    Visit,
    entered,
    form_ids,
    open_order,
    order_rules,
)
from lockkit_django.web.refusals import response_of
from lockkit_django.web.view_functions import places_of

UNCOVERED = "_lockkit_uncovered"
"""Attribute of a request whose view is not an order."""

OF_CONTENT = ("Content-Encoding", "Content-Length", "ETag", "Content-Language")
"""Headers that a decorator of the view may have set, and which fit the JSON but not the page."""


class IdempotentOrderMiddleware:
    """Put it last in MIDDLEWARE: it replays only what all the others have let through.

    Guarantee: within TTL each order takes effect exactly once in the database of its record.
    Limit: what a view does elsewhere (mail, payments) is repeated if the view fails afterwards.
    Raises ConfigurationError for wrong settings, when the server starts.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        handler: Any = BaseHandler
        wrapped = getattr(getattr(get_response, "__wrapped__", None), "__func__", None)
        self._is_last = wrapped in (handler._get_response, handler._get_response_async)
        is_async = iscoroutinefunction(get_response)
        self._runner: Runner = LOOP if is_async else THREAD
        if is_async:
            markcoroutinefunction(self)
        render = self._before_render
        self.process_view: Any = self._enter if is_async else _blocking(self._enter)
        # not on the class: ``rendered`` would take this for a middleware that changes responses
        self.process_template_response: Any = render if is_async else _blocking(render)
        order_rules()
        note_each_request()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        setattr(request, MIDDLEWARE_RUNNER, self._runner)
        vars(request).setdefault("order")  # None unless it becomes an order
        if self._runner is LOOP:
            return self._acall(request)
        try:
            return result_of(_finish(request, self.get_response(request), THREAD))
        finally:
            result_of(_leave(request, THREAD))

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        try:
            return await _finish(request, await self.get_response(request), LOOP)
        except CancelledError:  # a sync view goes on in its thread, and may still open its order
            await to_its_end(until_thread_is_idle())
            raise
        finally:
            if open_order(request) is not None:
                await to_its_end(_leave(request, LOOP))

    async def _enter(self, request: HttpRequest, view: Callable[..., Any], *_: Any) -> Any:
        """``process_view``."""
        try:
            options, is_locked = _kept_marks(view, request.method)
        except TypeError:  # a view may have no hash, such as a callable dataclass
            options, is_locked = _marks(view, request.method)
        covered = order_rules().covers(request.method or "", request.path_info)
        if options.exempt or options.inside or not covered:
            _stand_by(request, options)
            return None
        is_next = self._is_last and not is_locked  # a method's lock is inside the handler's block
        visit = Visit(request, view, options, next_is_view=is_next)
        return await entered(visit, self._runner, begin=not is_locked)

    async def _before_render(self, request: HttpRequest, response: Any) -> Any:
        """``process_template_response``."""
        opened = open_order(request)
        if opened is not None:
            await self._runner.do(opened.before_render, response)
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> Any:
        opened = open_order(request)
        return None if opened is None else opened.fail(exception)


def _note_failure(*, request: Any = None, **_: object) -> None:
    """Note a failure for which Django does not call ``process_exception``, such as a view that
    returned no response. May be called on any thread. Only claims need the note: an order in a
    database is rolled back anyway."""
    opened = open_order(request)
    if opened is not None and opened.orders.claims:
        opened.failed = True


got_request_exception.connect(_note_failure, dispatch_uid="lockkit_django.orders.middleware")


def _marks(view: Callable[..., Any], method: str | None) -> tuple[ViewOptions, bool]:
    """What decorators have said of a view: its options, and whether it takes a lock of its own."""
    places = places_of(view, method)
    return options_in(places), bool(view_locks_of(places))


_kept_marks = lru_cache(maxsize=1024)(_marks)  # each request asks


def _stand_by(request: HttpRequest, options: ViewOptions) -> None:
    """Keep the body for an order that is opened inside the view, because its fingerprint needs the
    body. Mark other requests that are not orders."""
    if request.method in SAFE_METHODS or options.exempt:
        return
    if options.inside:
        keep_body(request, order_rules().settings.max_request)
    else:
        setattr(request, UNCOVERED, True)


def _blocking(step: Any) -> Any:
    """A blocking twin of a coroutine method. It is a method, too, as Django expects."""
    return MethodType(lambda _, *args: result_of(step(*args)), step.__self__)


async def _finish(
    request: HttpRequest, response: HttpResponseBase, runner: Runner
) -> HttpResponseBase:
    opened = open_order(request)
    if opened is not None:
        response = await gate.close(opened, response, runner)
    if hasattr(response, REFUSAL):
        log_refusal(request, getattr(response, REFUSAL))
        if prefers_html(request.headers.get("Accept", "")) and isinstance(response, HttpResponse):
            await runner.do(_make_page, request, response)
    if hasattr(request, UNCOVERED):
        tell_uncovered(form_ids, request, "_post", "_body", lambda: _parsed_by_drf(response))
    return response


def _parsed_by_drf(response: HttpResponseBase) -> bytes:
    """What a parser of DRF has made of the body, as text; empty if it cannot be shown."""
    with suppress(Exception):  # a parser may return anything, nested as deeply as it likes
        request = getattr(response, "renderer_context", {})["request"]
        return repr(vars(request)["_full_data"]).encode(errors="replace")
    return b""


def _make_page(request: HttpRequest, response: HttpResponse) -> None:
    """The refusal as a page: ``lockkit/<code>.html``, ``lockkit/<status>.html``, or ours."""
    page = response_of(getattr(response, REFUSAL), "text/html", request)
    response.content = page.content
    for header in OF_CONTENT:
        response.headers.pop(header, None)
    for header in ("Content-Type", "Content-Language"):
        if header in page.headers:
            response.headers[header] = page.headers[header]


async def _leave(request: HttpRequest, runner: Runner) -> None:
    opened = open_order(request)
    if opened is not None:
        await gate.leave(opened, runner)
