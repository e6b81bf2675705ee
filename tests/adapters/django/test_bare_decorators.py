"""Decorators without their parentheses, or in a wrong place, say what to write, at once."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from ninja import NinjaAPI, Router
from rest_framework.decorators import api_view
from rest_framework.views import APIView

from lockkit.model.errors import ConfigurationError
from lockkit_django import lock_view, locked
from lockkit_django.orders import IdempotentMixin, idempotent


@pytest.mark.parametrize(
    ("decorator", "example"),
    [(lock_view, r"@lock_view\('stock:{sku:str}'\)"), (locked, r"@locked\('stock:{sku}'\)")],
)
def test_what_to_write_is_said(decorator: Any, example: str) -> None:
    with pytest.raises(ConfigurationError, match=f"write {example}"):

        @decorator
        def deduct(request: Any, sku: str) -> str:
            return sku


def test_a_method_is_told_so_too() -> None:
    with pytest.raises(ConfigurationError, match="write @lock_view"):

        class Stock:
            @lock_view  # type: ignore[arg-type]
            def post(self, request: Any) -> None: ...


def page(request: Any, sku: str = "") -> HttpResponse:
    raise AssertionError


@pytest.mark.parametrize("view", [page, api_view(["GET"])(page)])
@pytest.mark.parametrize("url", ["/page", "/page/A1"])
def test_a_route_whose_view_was_taken_for_a_name_says_so(view: Any, url: str) -> None:
    locked_view: Any = lock_view(view)
    urls = ModuleType("urls_of_a_test")
    vars(urls)["urlpatterns"] = [path("page", locked_view), path("page/<sku>", locked_view)]
    expected = r"write @lock_view\('stock:{sku:str}'\) above the view"
    with override_settings(ROOT_URLCONF=urls), pytest.raises(ConfigurationError, match=expected):
        Client().get(url)


@pytest.mark.parametrize("decorator", [lock_view("stock"), idempotent])
def test_what_gets_no_request_is_named(decorator: Any) -> None:
    @decorator
    def restock(sku: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"restock has lock_view .* @locked on other"):
        restock("A1")


def test_options_of_a_class_are_told_by_it() -> None:
    class Orders(IdempotentMixin, APIView):
        order_options = {"requird": True}  # noqa: RUF012  as users write it

    with pytest.raises(ConfigurationError, match="Orders has no option 'requird'"):
        Orders.as_view()


@pytest.mark.parametrize(
    "option", [{"required": 0}, {"required": ""}, {"atomic": None}, {"using": ""}, {"using": 3}]
)
def test_a_wrong_option_of_an_order_is_refused_at_once(option: dict[str, Any]) -> None:
    class Orders(IdempotentMixin, APIView):
        order_options = option

    named = f"{next(iter(option))} of"
    with pytest.raises(ConfigurationError, match=f"^{named} Orders is"):
        Orders.as_view()
    with pytest.raises(ConfigurationError, match=f"^{named} @idempotent is"):
        idempotent(**option)


@pytest.mark.parametrize(
    "decorator",
    [lock_view("stock:{sku}"), idempotent, idempotent(required=True), locked("stock:{sku}")],
)
@pytest.mark.parametrize("registrar", [NinjaAPI(urls_namespace="misplaced"), Router()])
def test_above_an_operation_of_ninja_they_would_do_nothing(
    decorator: Any, registrar: NinjaAPI | Router
) -> None:
    with pytest.raises(ConfigurationError, match=r"below @api\.post"):

        @decorator
        @registrar.post("/stock")
        def deduct(request: Any, sku: str) -> str:
            return sku
