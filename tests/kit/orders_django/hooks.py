"""Hooks of LOCKKIT_ORDERS."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse


def yes(request: HttpRequest) -> bool:
    return True


def no(request: HttpRequest) -> bool:
    return False


async def never_async(request: HttpRequest) -> bool:
    return False


class _NeverAwaitable:
    """Not a coroutine function, as far as ``inspect`` knows."""

    async def __call__(self, request: HttpRequest) -> bool:
        return False


never_awaitable = _NeverAwaitable()


def cart(request: HttpRequest) -> str | None:
    return request.headers.get("X-Cart")


def signed(request: HttpRequest) -> str:
    """SCOPE: the owner of the key that has signed the body."""
    return request.headers["X-Owner"] if request.body else "nobody"


def tenant(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tenant")


def may_see_sale(request: HttpRequest) -> bool:
    """What the object permission would say."""
    from orders_django import fit_views

    return request.headers["Authorization"].removeprefix("Token ") not in fit_views.revoked


def is_alice(request: HttpRequest) -> bool:
    """A check of the user, as ``has_perm`` is one."""
    return request.user.get_username() == "alice"


def of_this_user(request: HttpRequest, order_id: str) -> HttpResponse:
    """RECOVER: the order of this ID that the user has made."""
    return HttpResponse(f"{order_id} of {request.user.get_username()}", status=201)


def reads_first(get_response: Callable[[HttpRequest], object]) -> Callable[[HttpRequest], object]:
    """Middleware that reads what the request names, such as the form, for its token."""

    def middleware(request: HttpRequest) -> object:
        getattr(request, request.headers.get("X-Read", ""), None)
        return get_response(request)

    return middleware


def consumes(get_response: Callable[[HttpRequest], object]) -> Callable[[HttpRequest], object]:
    """Middleware that reads the stream, as for a signature, and then perhaps the form."""

    def middleware(request: HttpRequest) -> object:
        assert request.read()
        getattr(request, request.headers.get("X-Read", ""), None)
        return get_response(request)

    return middleware
