"""Refusals in Django's own way, and responses rendered while the lock is held."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist, loader
from django.utils.module_loading import import_string
from django.utils.translation import get_language

from lockkit.web.refusal import Refusal, prefers_html
from lockkit_django.web.request import http_request

if TYPE_CHECKING:
    from rest_framework.exceptions import APIException


def refusal_response(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    """``lockkit/<status>.html`` for a browser, ``application/problem+json`` for a program."""
    said = in_language(refusal)
    if prefers_html(request.headers.get("Accept", "")):
        return html_response(request, said, (str(said.status), "refusal"))
    return problem_response(said)


def problem_response(refusal: Refusal) -> HttpResponse:
    """``application/problem+json`` (RFC 9457), never cached."""
    return JsonResponse(
        refusal.problem(),
        status=refusal.status,
        headers=refusal.headers(),
        content_type="application/problem+json",
    )


def html_response(request: HttpRequest, refusal: Refusal, names: Iterable[str]) -> HttpResponse:
    """The first of these templates that the project has, else a page of lockkit's own.

    Only the project knows in which language its template is.
    """
    headers = refusal.headers()
    try:
        template = loader.select_template([f"lockkit/{name}.html" for name in names])
    except (TemplateDoesNotExist, ImproperlyConfigured):
        text = refusal.page()
    else:
        text = template.render({"refusal": refusal, "advice": refusal.advice}, request)
        del headers["Content-Language"]
    return HttpResponse(text, status=refusal.status, headers=headers)


def in_language(refusal: Refusal) -> Refusal:
    """In the language that Django speaks at this moment."""
    return refusal.in_language(get_language())


def drf_exception(refusal: Refusal) -> APIException:
    """For DRF's exception handler, which sends ``detail`` and ``code``, and ``wait`` as
    Retry-After."""
    from rest_framework.exceptions import APIException, NotAuthenticated

    refusal = in_language(refusal)
    body = {"detail": refusal.detail, "code": refusal.code}
    if refusal.status == HTTPStatus.FORBIDDEN:
        return NotAuthenticated(body, refusal.code)  # DRF decides between 401 and 403
    error = APIException(body, refusal.code)
    error.status_code = refusal.status
    if refusal.retry_after is not None:
        error.wait = refusal.retry_after  # type: ignore[attr-defined]
    return error


def rendered(request: Any, response: Any) -> Any:
    """Render what Django would render after the lock is released: it may query, and it may fail.

    Left alone where somebody is still to change it: a middleware with process_template_response,
    or a DRF view with a finalize_response of its own.
    """
    if not callable(getattr(response, "render", None)) or _template_response_middleware():
        return response
    if request is not http_request(request) and not _finalized(request, response):
        return response
    return response.render()


def _finalized(request: Any, response: Any) -> bool:
    """Give a DRF response its renderer, as DRF is about to; doing it twice changes nothing."""
    from rest_framework.views import APIView

    context = request.parser_context or {}
    view = context.get("view")
    if view is None or type(view).finalize_response is not APIView.finalize_response:
        return False
    view.finalize_response(request, response, *context["args"], **context["kwargs"])
    return True


@lru_cache(maxsize=1)
def _template_response_middleware() -> bool:
    """Whether a middleware wants to see responses before they are rendered."""
    return any(
        inspect.isclass(middleware) and hasattr(middleware, "process_template_response")
        for middleware in map(import_string, settings.MIDDLEWARE)
    )


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "MIDDLEWARE":
        _template_response_middleware.cache_clear()


setting_changed.connect(_forget, dispatch_uid="lockkit_django.web.refusals")
