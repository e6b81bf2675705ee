"""``IdempotentOrderMiddleware``: each order takes effect once, and every duplicate sees the same.

It acts in phases around the view, so that Django's own machinery stays in between:

- ``process_view``, after authentication and CSRF: look up, lock, BEGIN, insert the record;
- ``process_exception``: what the view did is rolled back, whatever response is made of it;
- after ``get_response``: the rendered response into the record and COMMIT, or ROLLBACK;
- at last, whatever happened: ROLLBACK if it is still open, then release the lock.

The transaction of ATOMIC_REQUESTS becomes a savepoint of this one. A view with a ``lock_view``
of its own begins under that lock, which is then released after COMMIT, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase

from lockkit.leases.aio_client import AsyncLease
from lockkit.leases.giving_back import give_back, give_back_async
from lockkit.leases.multi import AsyncMultiLease
from lockkit_django.leases.settle import to_its_end
from lockkit_django.orders.answers import log_if_refused, make_page, refusal_for_browser
from lockkit_django.orders.endings import OrderStopped
from lockkit_django.orders.gate import Gate, in_thread
from lockkit_django.orders.open_order import OpenOrder, open_order
from lockkit_django.orders.options import ViewOptions, options_of
from lockkit_django.orders.ordered_view import MIDDLEWARE_MODE, SAFE_METHODS
from lockkit_django.orders.request import keep_body
from lockkit_django.orders.rules import order_rules
from lockkit_django.orders.uncovered import note_uncovered, tell_if_uncovered
from lockkit_django.web.pending import has_lock

__all__ = ["IdempotentOrderMiddleware"]


class IdempotentOrderMiddleware:
    """Put it last in MIDDLEWARE: it replays only what all the others have let through.

    Guarantee: within TTL each order takes effect exactly once in the database of its record.
    Limit: what a view does elsewhere (mail, payments) is repeated if it fails after that.
    Raises ConfigurationError for wrong settings, when the server starts.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.process_view: Callable[..., Any] = self._process_view
        self._mode = "sync"
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self.process_view = self._aprocess_view
            self._mode = "async"
        order_rules()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        setattr(request, MIDDLEWARE_MODE, self._mode)
        if not hasattr(request, "order"):
            vars(request)["order"] = None  # of a request that is none
        if self._mode == "async":
            return self._acall(request)
        try:
            response: HttpResponseBase = self.get_response(request)
            opened = open_order(request)
            if opened is not None:
                response = _closed(opened, response)
            log_if_refused(request, response)
            refused = refusal_for_browser(request, response)
            if refused is not None:
                make_page(request, refused)
            tell_if_uncovered(request)
            return response
        finally:
            opened = open_order(request)
            if opened is not None:
                _leave(opened)

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        try:
            response: HttpResponseBase = await self.get_response(request)
            opened = open_order(request)
            if opened is not None:
                response = await _aclosed(opened, response)
            log_if_refused(request, response)
            refused = refusal_for_browser(request, response)
            if refused is not None:
                await in_thread(make_page, request, refused)
            tell_if_uncovered(request)
            return response
        finally:
            opened = open_order(request)
            if opened is not None:
                await to_its_end(_aleave(opened))

    def _process_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        options = options_of(view, request.method)
        if not _is_ours(request, options):
            _stand_by(request, options)
            return None
        return Gate(request, view, options, checked=False).enter(
            begin=not has_lock(view, request.method)
        )

    async def _aprocess_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        options = options_of(view, request.method)
        if not _is_ours(request, options):
            _stand_by(request, options)
            return None
        return await Gate(request, view, options, checked=False).aenter(
            begin=not has_lock(view, request.method)
        )

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        opened = open_order(request)
        return None if opened is None else opened.fail(exception)


def _is_ours(request: HttpRequest, options: ViewOptions) -> bool:
    """Whether the order is to be opened here, and not inside the view or not at all."""
    if options.exempt or options.inside:
        return False
    return order_rules().settings.covers(request.method or "", request.path_info)


def _stand_by(request: HttpRequest, options: ViewOptions) -> None:
    """An order that is opened inside the view will be compared by its body."""
    if request.method in SAFE_METHODS or options.exempt:
        return
    if options.inside:
        keep_body(request, order_rules().settings.max_request)
    else:
        note_uncovered(request)


def _closed(opened: OpenOrder, response: HttpResponseBase) -> HttpResponseBase:
    try:
        return opened.close(response)
    except OrderStopped as stop:
        return opened.gate.stopped(opened, stop)


async def _aclosed(opened: OpenOrder, response: HttpResponseBase) -> HttpResponseBase:
    try:
        return await in_thread(opened.close, response)
    except OrderStopped as stop:
        return await opened.gate.astopped(opened, stop)


def _leave(opened: OpenOrder) -> None:
    try:
        opened.abandon()
    finally:
        opened.detach()
        for lease in opened.leases:
            give_back(lease)


async def _aleave(opened: OpenOrder) -> None:
    try:
        if not opened.ended:
            await in_thread(opened.abandon)
    finally:
        opened.detach()
        for lease in opened.leases:
            if isinstance(lease, (AsyncLease, AsyncMultiLease)):
                await give_back_async(lease)
            else:
                await asyncio.to_thread(give_back, lease)
