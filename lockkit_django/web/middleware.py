"""``LockErrors``: what locks by hand raise becomes the answer that ``lock_view`` gives."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from lockkit.web.refusal import refusal_of_uncaught
from lockkit_django.conf import view_settings
from lockkit_django.leases.transactions import is_of_hook
from lockkit_django.web.refusals import refused


class LockErrors(MiddlewareMixin):
    """Answers for views that take a lock by hand and do not get it, as ``lock_view`` does.

    An ``AcquireTimeout`` or ``LockHeld`` that a view does not catch is 423 with Retry-After, a
    ``BackendUnavailable`` 503; without this middleware they are 500. Put it before
    IdempotentOrderMiddleware. ATOMIC_REQUESTS has rolled back by then. An error of a hook of
    ``on_commit`` stays 500: what the view has saved is committed. A ``process_exception`` of
    a middleware below this one goes first, and so does an EXCEPTION_HANDLER of DRF.
    """

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if is_of_hook(error):
            return None  # a client that tries again would do it twice
        refusal = refusal_of_uncaught(error, view_settings().busy_status)
        return None if refusal is None else refused(request, refusal, error)
