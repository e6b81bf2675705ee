"""Refusals as responses of Django and DRF, and the rendering of responses under the lock."""

from __future__ import annotations

import inspect
from functools import partial
from http import HTTPStatus
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.template import TemplateDoesNotExist, loader
from django.utils.deprecation import MiddlewareMixin
from django.utils.module_loading import import_string
from django.utils.translation import get_language

from lockkit.web.refusal import Refusal, log_refusal, refusal_of_uncaught
from lockkit_django.conf import kept, view_settings
from lockkit_django.leases.transactions import is_of_hook, is_rolled_back
from lockkit_django.web.request import STAYS, http_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rest_framework.exceptions import APIException

HANDLERS = {
    BaseHandler._get_response.__code__,  # type: ignore[attr-defined]  # Django's stubs omit it
    BaseHandler._get_response_async.__code__,  # type: ignore[attr-defined]
}

SAFE = ("GET", "HEAD")
"""Methods of requests that change nothing: they may be sent again after any error."""


def refused(request: HttpRequest, refusal: Refusal, why: Exception) -> HttpResponse:
    """Log the refusal, and make its response: ``lockkit/<code>.html`` for a browser,
    ``application/problem+json`` for a program."""
    log_refusal(request, refusal, why=why)
    return response_of(in_language(refusal), request.headers.get("Accept", ""), request)


def response_of(
    refusal: Refusal, accept: str = "", request: HttpRequest | None = None
) -> HttpResponse:
    """A page if the header ``accept`` prefers HTML, or ``application/problem+json`` (RFC 9457)."""
    answer = refusal.answer(accept, partial(_render, request))
    return HttpResponse(answer.text, status=refusal.status, headers=answer.headers)


def _render(
    request: HttpRequest | None, names: list[str], context: dict[str, object]
) -> str | None:
    try:
        template = loader.select_template(names)
    except (TemplateDoesNotExist, ImproperlyConfigured):
        return None
    return str(template.render(context, request))


def in_language(refusal: Refusal) -> Refusal:
    """The refusal in the language that is active in Django now."""
    return refusal.in_language(get_language())


class LockErrors(MiddlewareMixin):
    """Answers for views that take a lock by hand and do not get it, as ``lock_view`` does.

    Without this middleware such a view answers 500. With it, an ``AcquireTimeout`` that a view does
    not catch is answered with 423 (or BUSY_STATUS) and Retry-After, a ``TooManyWaiters`` or a
    ``BackendUnavailable`` with 503. Put it before IdempotentOrderMiddleware. ATOMIC_REQUESTS has
    rolled back by then. These stay 500, because the work of the view may have been done:
    OutcomeUnknown, LeaseLost, an error of a lease's own ``release``, ``extend`` or ``downgrade``,
    an error in a hook of ``on_commit``; and, unless the request is a GET or HEAD, an error after a
    lock_view inside the view, or while Django renders the response. A ``process_exception`` of a
    later middleware goes first, and so does an EXCEPTION_HANDLER of DRF.
    """

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        stays = getattr(request, STAYS, False) or _is_too_late(error)
        if is_of_hook(error) or (stays and request.method not in SAFE):
            return None  # a client that tries again would do it twice
        refusal = refusal_of_uncaught(error, view_settings().busy_status)
        return None if refusal is None else refused(request, refusal, error)


def _is_too_late(error: Exception) -> bool:
    """Whether the view has returned, so that its COMMIT has gone before: Django has a response,
    and was about to render it."""
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code in HANDLERS:
            return frame.f_locals.get("response") is not None
    return False


def drf_exception(request: Any, refusal: Refusal, why: Exception) -> APIException:
    """Log the refusal, and make an exception of it for DRF's exception handler, which sends
    ``detail`` and ``code``, and ``wait`` as Retry-After. Content-Language is set for DRF's own
    handler only: the text of a project's handler may be in any language."""
    from rest_framework.exceptions import APIException, NotAuthenticated
    from rest_framework.views import exception_handler

    log_refusal(http_request(request), refusal, why=why)
    refusal = in_language(refusal)
    view = (request.parser_context or {}).get("view")
    if view is not None and view.get_exception_handler() is exception_handler:
        view.headers["Content-Language"] = refusal.language  # of the response that DRF makes
    body = {"detail": refusal.detail, "code": refusal.code}
    if refusal.reason:
        body["reason"] = refusal.reason
    if refusal.status == HTTPStatus.FORBIDDEN:
        return NotAuthenticated(body, refusal.code)  # DRF decides between 401 and 403
    error = APIException(body, refusal.code)
    error.status_code = refusal.status
    if refusal.retry_after is not None:
        error.wait = refusal.retry_after  # type: ignore[attr-defined]
    return error


def rendered(request: Any, response: Any, aliases: Iterable[str] = ()) -> Any:
    """Render a response now, because Django would do so after the lock is released. Rendering may
    query the database, and it may fail.

    A response that something may still change is returned as it is: if there is a middleware with
    process_template_response, or the DRF view has a finalize_response of its own. So is one that
    needs a transaction of these databases which must be rolled back: Django renders it afterwards.
    """
    if not callable(getattr(response, "render", None)) or _template_response_middleware():
        return response
    if any(is_rolled_back(connections[alias]) for alias in aliases):
        return response
    if request is not http_request(request) and not _finalized(request, response):
        return response
    return response.render()


def _finalized(request: Any, response: Any) -> bool:
    """Give a DRF response its renderer, as DRF will do again: doing it twice changes nothing.

    Returns False if it cannot be done for this view.
    """
    from rest_framework.views import APIView

    context = request.parser_context or {}
    view = context.get("view")
    if view is None or type(view).finalize_response is not APIView.finalize_response:
        return False
    view.finalize_response(request, response, *context["args"], **context["kwargs"])
    return True


@kept
def _template_response_middleware() -> bool:
    """Whether a middleware wants to see responses before they are rendered."""
    return any(
        inspect.isclass(middleware) and hasattr(middleware, "process_template_response")
        for middleware in map(import_string, settings.MIDDLEWARE)
    )
