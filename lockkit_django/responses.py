"""Refusals in Django's own way, and responses rendered while the lock is held."""

from __future__ import annotations

import inspect
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist, loader
from django.utils.module_loading import import_string

from lockkit.refusal import Refusal, prefers_html
from lockkit_django.facts import http_request

if TYPE_CHECKING:
    from rest_framework.exceptions import APIException

__all__ = ["drf_exception", "refusal_response", "rendered", "template_text"]


def refusal_response(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    """``lockkit/<status>.html`` for a browser, ``application/problem+json`` for a program."""
    if prefers_html(request.headers.get("Accept", "")):
        response = _html(request, refusal)
    else:
        response = JsonResponse(refusal.problem(), content_type="application/problem+json")
    response.status_code = refusal.status
    for header, value in refusal.headers().items():
        response[header] = value
    return response


def _html(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    templates = [f"lockkit/{refusal.status}.html", "lockkit/refusal.html"]
    text = template_text(request, templates, {"refusal": refusal})
    if text is None:
        return HttpResponse(f"{refusal.title}. {refusal.detail}", content_type="text/plain")
    return HttpResponse(text)


def template_text(
    request: HttpRequest, templates: list[str], context: dict[str, Any]
) -> str | None:
    """The first template that there is, rendered; None: the project has no templates."""
    try:
        template = loader.select_template(templates)
    except (TemplateDoesNotExist, ImproperlyConfigured):
        return None
    return str(template.render(context, request))


def drf_exception(refusal: Refusal) -> APIException:
    """For DRF's exception handler, which sends ``wait`` as Retry-After."""
    from rest_framework.exceptions import APIException, NotAuthenticated

    if refusal.status == HTTPStatus.FORBIDDEN:
        return NotAuthenticated(refusal.detail)  # DRF decides between 401 and 403
    error = APIException(refusal.detail, code=refusal.title.lower().replace(" ", "_"))
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


setting_changed.connect(_forget, dispatch_uid="lockkit_django.responses")
