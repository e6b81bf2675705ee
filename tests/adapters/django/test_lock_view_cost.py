"""What ``@lock_view`` adds to a view that takes the same lock by hand, counted in our own calls."""

from __future__ import annotations

import inspect
import weakref
from typing import Any
from unittest.mock import Mock

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from entered import calls_of_ours, is_calm
from garbage import collected

from lockkit.testing.conformance.base import eventually
from lockkit_django import lock_view, locks

MOST_CALLS = 50


@lock_view("stock:{sku}")
def locked(request: HttpRequest, sku: str) -> HttpResponse:
    return HttpResponse()


def by_hand(request: HttpRequest, sku: str) -> HttpResponse:
    with LOCK["it"]:
        return HttpResponse()


LOCK = {}


@pytest.mark.django_db(transaction=True)
def test_a_locked_view_adds_few_calls_to_its_lock() -> None:
    LOCK["it"] = locks["default"].lock("stock:42")
    request = RequestFactory().post("/stock/42")
    locked(request, sku="42")
    eventually(lambda: is_calm(locks["default"]))
    calls = {}
    for view in (locked, by_hand):
        calls[view] = calls_of_ours(lambda view=view: view(request, sku="42"))  # type: ignore[misc]
    assert calls[locked] - calls[by_hand] <= MOST_CALLS, calls


@method_decorator(lock_view("stock:{sku}"), name="dispatch")
class OfClass(View):
    def get(self, request: HttpRequest, sku: str) -> HttpResponse:
        return HttpResponse()


@pytest.mark.django_db(transaction=True)
def test_a_class_view_whose_decorator_is_applied_anew_leaves_nothing_behind() -> None:
    """``method_decorator`` does so for each request."""
    view, request = OfClass.as_view(), RequestFactory().get("/stock/42")
    kept: dict[Any, Any] = vars(weakref.finalize)["_registry"]
    view(request, sku="42")
    before = len(kept)
    for _ in range(10):
        view(request, sku="42")
    assert len(kept) <= before


@pytest.mark.django_db(transaction=True)
def test_nor_does_it_read_the_types_of_the_method_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view, request = OfClass.as_view(), RequestFactory().get("/stock/42")
    read = Mock(wraps=inspect.signature)
    monkeypatch.setattr(inspect, "signature", read)
    assert view(request, sku="42").status_code == 200
    assert not read.called


@pytest.mark.django_db(transaction=True)
def test_a_lock_view_that_a_request_makes_ends_with_it() -> None:
    """Its name may depend on the request, and ``on_busy`` may be a method of the view."""
    seen = []

    class OfRequest(OfClass):
        def dispatch(self, request: HttpRequest, **kwargs: Any) -> Any:
            seen.append(weakref.ref(self))
            lock = lock_view(f"stock:{len(seen)}", on_busy=self.busy, ttl=30, timeout=len(seen))
            return lock(super().dispatch)(request, **kwargs)

        def busy(self, request: HttpRequest, error: object) -> HttpResponse:
            return HttpResponse(status=409)

    view = OfRequest.as_view()
    for _ in range(10):
        assert view(RequestFactory().get("/stock/42"), sku="42").status_code == 200
    collected()
    assert [each() for each in seen] == [None] * 10
