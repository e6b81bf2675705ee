"""Exceptions of views: where they come from and which response they became."""

from __future__ import annotations

from http import HTTPStatus
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.http import Http404

from lockkit.model.log import log

if TYPE_CHECKING:
    from django.http import HttpResponseBase

OK_CLASS = 2
DRF = "rest_framework.views"
CHECKS = {"django.contrib.auth.decorators", "django.contrib.auth.mixins"}
AROUND_VIEWS = {"asgiref", "asyncio", "concurrent", "contextlib", "django", "lockkit_django"}
ANSWERS = {"rest_framework.exceptions.APIException", "ninja.errors.HttpError"}


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an exception asks for; None if it was not raised to be answered."""
    if isinstance(error, (PermissionDenied, Http404)):
        return HTTPStatus.FORBIDDEN if isinstance(error, PermissionDenied) else HTTPStatus.NOT_FOUND
    return int(getattr(error, "status_code", 0)) if is_answer(error) else None


def is_answer(error: BaseException) -> bool:
    """Whether this exception of DRF or Ninja is raised to be answered."""
    names = {f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__}
    return bool(names & ANSWERS)


def is_of_check(error: BaseException) -> bool:
    """Whether one of Django's own checks has refused the request, so its view did not begin.

    False if a function of the project was called on the way: it may have done something before.
    """
    if not isinstance(error, PermissionDenied):
        return False
    modules = [str(f.f_globals.get("__name__")) for f, _ in walk_tb(error.__traceback__)]
    if not modules or modules[-1] not in CHECKS:
        return False
    return all(module.partition(".")[0] in AROUND_VIEWS for module in modules)


def told_broken(broken: bool) -> bool:
    """Log it if a view has caught an error of the database, and tells a success. Returns
    ``broken``."""
    if broken:
        log.error(
            "the view of an order has caught an error of the database, so nothing can be saved: "
            "the client is told so. Put what may fail into an atomic() block of its own, and catch "
            "the error outside of that"
        )
    return broken


def told_undone(response: HttpResponseBase) -> bool:
    """Log it if something other than DRF made this success from an exception of the view. Returns
    whether it is one."""
    is_undone = not is_made_by_drf(response) and response.status_code // 100 == OK_CLASS
    if is_undone:
        log.error(
            "the view of an order raised, and a middleware or a handler makes %s of it: the order "
            "was not saved, and the client is told so",
            response.status_code,
        )
    return is_undone


def is_made_by_drf(response: HttpResponseBase) -> bool:
    """Whether DRF made the response from an exception."""
    return bool(getattr(response, "exception", False))


def is_of_handler(response: HttpResponseBase) -> bool:
    """Whether DRF made the response from an exception, by a handler that is not DRF's own.

    DRF's own handler answers only exceptions that are raised to be answered, such as an
    ``APIException``. Another handler may answer any exception with 500, and hides the exception.
    """
    context: dict[str, Any] = getattr(response, "renderer_context", None) or {}
    view = context.get("view")
    handler = getattr(view, "get_exception_handler", lambda: None)()
    return not (_is_drfs(handler) and _is_drfs(getattr(view, "handle_exception", None)))


def _is_drfs(function: Any) -> bool:
    return bool(getattr(function, "__globals__", {}).get("__name__") == DRF)
