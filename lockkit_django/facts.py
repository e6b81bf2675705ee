"""One Django or DRF request, as the name templates read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.http import HttpRequest

from lockkit.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["DjangoFacts", "http_request", "is_request"]


def is_request(value: object) -> bool:
    """Whether it is a request of Django, or of DRF, which wraps one."""
    return isinstance(value, HttpRequest) or isinstance(
        getattr(value, "_request", None), HttpRequest
    )


def http_request(request: Any) -> HttpRequest:
    """Django's own request."""
    wrapped = getattr(request, "_request", None)
    return cast(HttpRequest, request if wrapped is None else wrapped)


class DjangoFacts:
    """Facts for ``lockkit.facts``. ``user``: the user if known already, as in a coroutine."""

    def __init__(self, request: Any, kwargs: Mapping[str, object], user: Any = None) -> None:
        self._request = request
        self._http = http_request(request)
        self._kwargs = kwargs
        self._user = user

    def kwarg(self, key: str) -> object:
        return self._kwargs.get(key)

    def user_pk(self) -> object:
        user = self._user if self._user is not None else self._user_of_request()
        return user.pk if user is not None and user.is_authenticated else None

    def content_type(self) -> str:
        return str(self._http.META.get("CONTENT_TYPE", ""))

    def body(self) -> bytes:
        return self._http.body

    def form(self, key: str) -> Sequence[str]:
        return [str(value) for value in self._http.POST.getlist(key)]

    def query(self, key: str) -> Sequence[str]:
        return [str(value) for value in self._http.GET.getlist(key)]

    def header(self, name: str) -> str | None:
        return self._http.headers.get(name)

    def _user_of_request(self) -> Any:
        try:
            return self._request.user
        except AttributeError:
            raise ConfigurationError(
                "{user.pk} needs django.contrib.auth.middleware.AuthenticationMiddleware"
            ) from None
