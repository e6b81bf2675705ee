"""Responses that a framework has made of a view's exception, without telling Django."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.http import HttpResponseBase

__all__ = ["is_of_handler"]

DRF = "rest_framework.views"


def is_of_handler(response: HttpResponseBase) -> bool:
    """Whether DRF made it of an exception, and not by its own exception handler.

    That one answers only what the view has raised to be answered, an ``APIException``. Another
    may answer 500 to anything, and the exception is not to be seen any more.
    """
    if not getattr(response, "exception", False):
        return False
    context: dict[str, Any] = getattr(response, "renderer_context", None) or {}
    view = context.get("view")
    handler = getattr(view, "get_exception_handler", lambda: None)()
    return not (_is_drfs(handler) and _is_drfs(getattr(view, "handle_exception", None)))


def _is_drfs(function: Any) -> bool:
    return bool(getattr(function, "__globals__", {}).get("__name__") == DRF)
