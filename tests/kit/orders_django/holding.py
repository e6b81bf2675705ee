"""Views of orders that take a lock deep in the code that they call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from lockkit.model.errors import LeaseLost
from lockkit_django import locked, locks
from lockkit_django.orders import idempotent
from orders_django.views import sell


def _deduct(**options: Any) -> Any:
    with locks["default"].lock("stock:42", timeout=0, **options) as lease:
        sell("by-hand")
    return lease


def refused(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(_deduct()), status=201)


def held(request: HttpRequest) -> HttpResponse:
    _deduct(until="commit")
    with suppress(ZeroDivisionError), transaction.atomic():
        _deduct(until="commit")
        raise ZeroDivisionError
    return HttpResponse("sold", status=201)


def broken(request: HttpRequest) -> HttpResponse:
    _deduct(until="commit")
    raise ZeroDivisionError


def lost(request: HttpRequest) -> HttpResponse:
    lease = _deduct(until="commit")
    locks["default"].break_("stock:42", fence=lease.fencing_token)
    with suppress(LeaseLost):
        lease.extend()
    return HttpResponse("sold", status=201)


@idempotent(atomic=False)
def in_commit_in(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):
        return request.order.respond_with(held(request))  # type: ignore[no-any-return]


@idempotent
def sold(request: HttpRequest) -> HttpResponse:
    sell("below")
    if "X-Fail" in request.headers:
        raise ZeroDivisionError
    return HttpResponse("sold", status=201)


def _by_hand(name: str, **options: Any) -> Any:
    """As a decorator that somebody has written with ``with``."""

    @wraps(sold)
    def view(request: HttpRequest) -> HttpResponse:
        with locks["default"].lock("stock:42", timeout=0, **options) as lease:
            if name == "loses":
                locks["default"].break_("stock:42", fence=lease.fencing_token)
                with suppress(LeaseLost):
                    lease.extend()
            response: HttpResponse = sold(request)
        return response

    view.__name__ = name
    return view


@idempotent
async def async_sold(request: HttpRequest) -> HttpResponse:
    await sync_to_async(sell)("below")
    return HttpResponse("sold", status=201)


async def in_coroutine(request: HttpRequest) -> HttpResponse:
    with locks["default"].lock("stock:42", timeout=0):
        await sync_to_async(sell)("by-hand")
    return HttpResponse("sold", status=201)


async def held_by_coroutine(request: HttpRequest) -> HttpResponse:
    with locks["default"].lock("stock:42", timeout=0, until="commit"):
        await sync_to_async(sell)("by-hand")
    return HttpResponse("sold", status=201)


def _above_coroutine(name: str, lock: Callable[[], Any]) -> Any:
    @wraps(async_sold)
    async def view(request: HttpRequest) -> HttpResponse:
        with lock():
            if "X-Fail" in request.headers:
                await async_sold(request)
                raise ZeroDivisionError
            return await async_sold(request)  # type: ignore[no-any-return]

    return _named(name, view)


def _named(name: str, view: Any) -> Any:
    view.__name__ = name
    return view


ABOVE = (
    _by_hand("with"),
    _by_hand("with-until", until="commit"),
    _by_hand("with-allow", in_atomic="allow"),
    _by_hand("loses", until="commit"),
    _named("locked", locked("stock:42")(sold)),
    _named("async-locked", locked("stock:42")(async_sold)),
    _named("async-allow", locked("stock:42", in_atomic="allow")(async_sold)),
    _named("locked-until", locked("stock:42", until="commit")(sold)),
)
IN_COROUTINES = (
    in_coroutine,
    held_by_coroutine,
    _above_coroutine("above_coroutine", lambda: locks["default"].lock("stock:42", timeout=0)),
    _above_coroutine("several_above", lambda: locks["default"].multi("stock:42", "a", timeout=0)),
)
VIEWS = (refused, held, broken, lost, in_commit_in, *IN_COROUTINES, *ABOVE)
urlpatterns = [path(f"orders/{view.__name__}", view) for view in VIEWS]
