"""``LockErrors``: what locks by hand raise becomes the answer that ``lock_view`` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

from lockkit.web.refusal import log_refusal, refusal_of_uncaught
from lockkit.web.view_lock import request_label
from lockkit_django.conf import view_settings
from lockkit_django.web.refusals import refusal_response


class LockErrors:
    """Answers for views that take a lock by hand and do not get it, as ``lock_view`` does.

    An ``AcquireTimeout`` or ``LockHeld`` that a view does not catch is 423 with Retry-After, a
    ``BackendUnavailable`` 503; without this middleware they are 500. Put it before
    IdempotentOrderMiddleware. ATOMIC_REQUESTS has rolled back by then. A ``process_exception`` of
    a middleware below this one goes first, and so does an EXCEPTION_HANDLER of DRF.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        refusal = refusal_of_uncaught(error, view_settings().busy_status)
        if refusal is None:
            return None
        log_refusal(request_label(request.method or "", request.path), refusal, why=error)
        return refusal_response(request, refusal)
