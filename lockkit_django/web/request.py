"""One Django or DRF request, as the name templates read it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from django.http import HttpRequest, RawPostDataException

from lockkit.model.errors import ConfigurationError, InvalidName
from lockkit.web.name_fields import URL_ENCODED, url_encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockkit.leases.aio_client import AsyncLease
    from lockkit.leases.client import Lease

STAYS = "_lockkit_stays"
"""Attribute of a request: a lock_view has saved something, or may have, that stays saved. True if
it was in a transaction that lock_view has committed."""


class LockedRequest(HttpRequest):
    """For annotations: the request of a view below ``@lock_view``."""

    lease: Lease


class AsyncLockedRequest(HttpRequest):
    """The same for a coroutine."""

    lease: AsyncLease


def http_request(request: Any) -> HttpRequest:
    """Django's request, which DRF wraps in its own."""
    wrapped = getattr(request, "_request", None)
    return cast(HttpRequest, request if wrapped is None else wrapped)


def request_and_rest(view: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The request among a view's positional arguments, and the arguments after it. A method has its
    ``self`` before the request. Raises ConfigurationError if there is no request."""
    for position, value in enumerate(args[:2]):
        if isinstance(value, HttpRequest) or isinstance(
            getattr(value, "_request", None), HttpRequest
        ):  # DRF wraps one
            return value, args[position + 1 :]
    raise ConfigurationError(
        f"{getattr(view, '__qualname__', view)!s} has lock_view or @idempotent, and was called "
        "without a request: put them on what gets the request, and @locked on other functions"
    )


def of_async_class(view: Any, args: tuple[Any, ...]) -> bool:
    """Whether it is a method of a class view whose handlers are coroutines.

    Its ``dispatch`` is not a coroutine function itself, but returns what the handler returns.
    """
    owner = getattr(getattr(view, "func", view), "__self__", None)  # method_decorator: a partial
    if owner is None and args and not isinstance(args[0], HttpRequest):
        owner = args[0]
    return bool(getattr(owner, "view_is_async", False))


def query_string(request: HttpRequest) -> bytes:
    """The query string as it was sent. Django has it as text: Latin 1 (WSGI) or UTF-8 (ASGI)."""
    value = str(request.META.get("QUERY_STRING", ""))
    return value.encode("latin-1" if hasattr(request, "environ") else "utf-8", "replace")


def user_behind(request: Any, *, by_drf: bool) -> Any:
    """The authenticated user; None: there is none.

    Django Ninja puts the user of a token into ``request.auth``; ``request.user`` is then the user
    who is logged in in that browser. DRF sets both, and ``auth`` may be somebody who acts for the
    user.
    """
    for name in ("user", "auth") if by_drf else ("auth", "user"):
        user = getattr(request, name, None)
        if user is None or getattr(user, "is_authenticated", False) is not True:
            continue
        if getattr(user, "pk", None) is not None:
            return user
    return None


class RequestView:
    """What name templates read: ``lockkit.web``'s ``RequestView`` for Django and DRF."""

    def __init__(self, request: Any, kwargs: Mapping[str, object]) -> None:
        self._request, self._http = request, http_request(request)
        self._kwargs = kwargs

    def kwarg(self, key: str) -> object:
        if key not in self._kwargs and key in getattr(self._http.resolver_match, "kwargs", ()):
            raise InvalidName(
                f"the URL has {key!r}, but this view did not get it by keyword: name the lock by a "
                f"callable, as lock_view(lambda request, {key}: …)"
            )
        return self._kwargs.get(key)

    def user_pk(self) -> object:
        request = self._request
        user = user_behind(request, by_drf=request is not self._http)
        if user is None and not hasattr(request, "user"):
            raise ConfigurationError(
                "{user.pk} needs django.contrib.auth.middleware.AuthenticationMiddleware"
            )
        return None if user is None else user.pk

    def content_type(self) -> str:
        return str(self._http.META.get("CONTENT_TYPE", ""))

    def body(self) -> bytes:
        """The bytes that were sent. If DRF has consumed them: what its parser made of them."""
        try:
            return self._http.body
        except RawPostDataException:
            if self._request is self._http:
                raise
            return json.dumps(self._request.data).encode()

    def form(self, key: str) -> Sequence[str]:
        values = self._http.POST.getlist(key)  # Django's limits apply
        if values and self._http.content_type == URL_ENCODED:
            with suppress(RawPostDataException):  # DRF has parsed it
                return url_encoded(self._http.body, key)
        return values

    def query(self, key: str) -> Sequence[str]:
        return url_encoded(query_string(self._http), key)

    def header(self, name: str) -> str | None:
        return self._http.headers.get(name)
