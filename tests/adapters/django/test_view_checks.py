"""System checks that compare the names of locks with the routes of their views."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from django.conf import global_settings
from django.conf.urls.i18n import i18n_patterns
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import include, path, re_path, register_converter
from django.utils.decorators import method_decorator
from django.utils.functional import lazy
from django.utils.translation import get_language
from django.views import View
from ninja import NinjaAPI
from rest_framework.decorators import api_view
from rest_framework.generics import RetrieveUpdateDestroyAPIView
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet
from system_checks import shown_until_silenced

from lockkit.model.errors import ConfigurationError
from lockkit_django import lock_view
from lockkit_django.operate.checks import check_transactions, check_views
from lockkit_django.operate.order_checks import check_paths, check_replays
from lockkit_django.orders import IdempotentMixin, idempotent
from lockkit_django.web import routes


@contextmanager
def routed(*patterns: Any) -> Iterator[None]:
    module = ModuleType("urls_of_a_test")
    vars(module)["urlpatterns"] = list(patterns)
    with override_settings(ROOT_URLCONF=module):
        yield


def found(*patterns: Any) -> list[tuple[str, str, str]]:
    with routed(*patterns):
        return [(str(each.id)[8:], each.msg, each.hint or "") for each in check_views()]


def locked(template: str) -> Any:
    @lock_view(template)
    def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return HttpResponse()

    return view


def of_class(template: str) -> Any:
    class Locked(View):
        @lock_view(template)
        def put(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            return HttpResponse()

    return Locked.as_view()


def of_dispatch(template: str) -> Any:
    @method_decorator(lock_view(template), name="dispatch")
    class Locked(View): ...

    return Locked.as_view()


def of_drf(template: str) -> Any:
    decorate = api_view(["POST"])
    return decorate(locked(template))


def of_partial(template: str) -> Any:
    return functools.partial(locked(template), shop=1)


def of_rare_method(template: str) -> Any:
    class Locked(View):
        http_method_names = ("get", "purge")

        def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            return HttpResponse()

        @lock_view(template)
        def purge(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            return HttpResponse()

    return Locked.as_view()


def of_generic(template: str) -> Any:
    class Locked(RetrieveUpdateDestroyAPIView[Any]):
        @lock_view(template)
        def destroy(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            return HttpResponse()

    return Locked.as_view()


def of_object(template: str) -> Any:
    class Locked:
        @lock_view(template)
        def __call__(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            return HttpResponse()

    return Locked()


KINDS: Sequence[Callable[[str], Any]] = (
    *(locked, of_partial, of_class, of_dispatch, of_drf, of_rare_method, of_generic, of_object),
)


@pytest.mark.parametrize("view", KINDS)
def test_a_field_that_the_route_does_not_have(view: Callable[[str], Any]) -> None:
    ((number, text, hint),) = found(path("stock/<int:pk>", view("stock:{sku}")))
    assert number == "E006"
    assert "{sku}" in text
    assert "'stock/<int:pk>' has {pk}" in text
    assert hint
    with routed(path("stock/<int:pk>", view("stock:{sku}"))):
        assert shown_until_silenced("lockkit.E006")
    for right in ("stock:{pk}", "stock:{kwargs.pk}", "stock", "cart:{user.pk}"):
        assert found(path("stock/<int:pk>", view(right))) == []


def test_a_method_that_no_request_reaches_is_not_compared() -> None:
    class Locked(View):
        http_method_names = ("get",)

        @lock_view("stock:{sku}")
        def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            return HttpResponse()

    assert found(path("stock/<int:pk>", Locked.as_view())) == []


def test_a_field_that_the_checks_do_not_see_is_an_error_at_the_first_request() -> None:
    class Locked(View):
        def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            return self.deduct(request, **kwargs)

        @lock_view("stock:{sku}")
        def deduct(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            return HttpResponse()

    here = path("stock/<int:pk>", Locked.as_view())
    assert found(here) == []
    with routed(here), pytest.raises(ConfigurationError, match=r"\{sku\}"):
        Client().post("/stock/42")


def test_an_order_inside_a_lock_that_the_decorator_does_not_see() -> None:
    @idempotent
    def order(request: Any) -> HttpResponse:
        return HttpResponse()

    class Orders(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

        @idempotent
        def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    class OnMethod(View):
        @idempotent
        @lock_view("stock")
        def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    lock = lock_view("stock")
    on_dispatch: Any = method_decorator(lock, name="dispatch")(type("Locked", (Orders,), {}))
    for wrong in (on_dispatch.as_view(), lock(Orders.as_view()), lock(api_view(["POST"])(order))):
        ((number, text, hint),) = found(path("orders", wrong))
        assert (number, "inside lock_view" in text) == ("E007", True)
        assert "Put @idempotent above lock_view" in hint
        with routed(path("orders", wrong)):
            assert shown_until_silenced("lockkit.E007")
    for right in (OnMethod.as_view(), Orders.as_view(), idempotent(OnMethod.as_view())):
        assert found(path("orders", right)) == []


class Plain(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


def by_method_decorator(*decorators: Any) -> Iterator[Any]:
    """In each way to write it; the first of them is the outer one."""
    for name in ("post", "dispatch"):
        cls: Any = type("Stocked", (Plain,), {})
        yield method_decorator(decorators, name=name)(cls).as_view()
        cls = type("Lined", (Plain,), {})
        for each in reversed(decorators):
            cls = method_decorator(each, name=name)(cls)
        yield cls.as_view()


def test_an_order_inside_a_lock_by_method_decorator() -> None:
    """The wrong order is found at the first request."""
    lock, headers = lock_view("stock"), {"Idempotency-Key": "A-1"}
    for wrong in by_method_decorator(lock, idempotent):
        with routed(path("orders", wrong)), pytest.raises(ConfigurationError, match="lock_view"):
            Client().post("/orders", headers=headers)
    for right in (*by_method_decorator(idempotent, lock), *by_method_decorator(idempotent)):
        assert found(path("orders", right)) == []


def test_parameters_come_from_all_that_leads_to_the_view() -> None:
    view = functools.partial(locked("{shop}:{pk}:{kind}:{tenant}:{page}:{by}"), by="hand")
    below = [
        path("<int:pk>/", include([re_path(r"^(?P<page>\d+)$", view, {"kind": "a"})])),
    ]
    numbers = [number for number, *_ in found(path("<uuid:shop>/", include(below), {"tenant": 1}))]
    assert numbers == ["W006"]  # the group of a regex is a text, whatever it matches


@pytest.mark.parametrize("view", KINDS)
@pytest.mark.parametrize(
    "field", ["form.sku", "query.sku", "json.order.sku", "header.X-Sku", "sku", "kwargs.sku"]
)
def test_a_text_that_a_client_chooses(view: Callable[[str], Any], field: str) -> None:
    ((number, text, hint),) = found(path("<sku>", view(f"stock:{{{field}}}")))
    assert number == "W006"
    assert f"{{{field}}}" in text
    for conversion in ("int", "uuid", "lower", "str"):
        assert f"{{{field}:{conversion}}}" in hint
        assert found(path("<sku>", view(f"stock:{{{field}:{conversion}}}"))) == []
    with routed(path("<sku>", view(f"stock:{{{field}}}"))):
        assert shown_until_silenced("lockkit.W006")


class PlainSku:
    """A converter that is derived from none, and says that it returns a text."""

    regex = "[0-9A-Za-z]+"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(PlainSku, "plain_sku")


@pytest.mark.parametrize(
    ("route", "is_text"),
    [
        (path("<slug:sku>", locked("{sku}")), True),
        (path("<plain_sku:sku>", locked("{sku}")), True),
        (path("<path:sku>", locked("{sku}")), True),
        (re_path(r"^(?P<sku>\d+)$", locked("{sku}")), True),
        (path("<int:sku>", locked("{sku}")), False),
        (path("<uuid:sku>", locked("{sku}")), False),
        (path("", locked("{sku}"), {"sku": "A1"}), False),
    ],
)
def test_a_value_of_the_url_is_a_text_or_not(route: Any, is_text: bool) -> None:
    assert [number for number, *_ in found(route)] == ["W006"] * is_text


def test_a_view_with_several_locks_and_routes_is_told_once_for_each() -> None:
    view = lock_view("a:{form.a}", "b:{form.b}")(locked("c:{form.c}"))
    told = found(path("1", view), path("2", view))
    assert ["{form.a}" in told[0][1], "{form.b}" in told[1][1], "{form.c}" in told[2][1]] == [
        True
    ] * 3
    assert len(told) == 3


def test_a_viewset_and_an_operation_of_ninja() -> None:
    class Stock(ViewSet):
        @lock_view("stock:{pk}")
        def update(self, request: Any, pk: str) -> HttpResponse:
            return HttpResponse()

    router = SimpleRouter()
    router.register("stock", Stock, basename="stock")
    ((number, text, _),) = found(path("", include(router.urls)))
    assert number == "W006"
    assert text.startswith(f"{__name__}.test_a_viewset_and_an_operation_of_ninja.<locals>.Stock ")

    api = NinjaAPI(urls_namespace="checked")

    @api.post("/{sku}")
    @lock_view("{sku}:{pk}:{qty}:{day}")
    def deduct(request: HttpRequest, sku: str, pk: int, qty: int = 1) -> str:
        return sku

    told = found(path("api/", api.urls))
    assert [(number, text.split("{")[1].split("}")[0]) for number, text, _ in told] == [
        ("W006", "sku"),
        ("E006", "day"),
    ]


def test_an_operation_of_a_ninja_before_1_5() -> None:
    """Its view is a bound method, and no function around that."""
    api = NinjaAPI(urls_namespace="checked-before")

    @api.post("/stock")
    @lock_view("{day}")
    def deduct(request: HttpRequest) -> str:
        return "deducted"

    view = api.default_router.path_operations["/stock"]._sync_view
    assert [number for number, *_ in found(path("stock", view))] == ["E006"]


def test_an_alias_that_a_view_uses_and_nobody_configured() -> None:
    view = lock_view("a", alias="elsewhere")(lambda request: HttpResponse())
    with override_settings(LOCKKIT={"default": "memory://"}):
        ((identifier, text, hint),) = found(path("", view))
        assert (identifier, hint) == ("E004", "Add 'elsewhere' to LOCKKIT, or correct the view.")
        assert "lock_view(alias='elsewhere')" in text
        with routed(path("", view)):
            assert shown_until_silenced("lockkit.E004")
    with override_settings(LOCKKIT={"default": "memory://", "elsewhere": "memory://"}):
        assert found(path("", view)) == []
    with override_settings(LOCKKIT={"default": {"TLL": 1}}):
        assert found(path("", view)) == []  # E001 says it


def test_names_by_a_callable_are_not_looked_into() -> None:
    view = lock_view(lambda request, **kwargs: "stock")(lambda request, **kwargs: HttpResponse())
    assert found(path("<sku>", view)) == []


@pytest.mark.parametrize("mode", [None, "DEFERRED", "deferred"])
def test_sqlite_that_begins_its_transactions_by_reading(
    mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = connections.settings["default"]
    monkeypatch.setitem(settings, "ATOMIC_REQUESTS", True)
    monkeypatch.setitem(settings, "OPTIONS", {"transaction_mode": mode} if mode else {})
    (message,) = check_transactions()
    assert message.id == "lockkit.W007"
    assert "'OPTIONS'] = {'transaction_mode': 'IMMEDIATE'}" in (message.hint or "")
    assert shown_until_silenced("lockkit.W007")
    monkeypatch.setitem(settings, "ATOMIC_REQUESTS", False)
    assert check_transactions() == []


@pytest.mark.parametrize("mode", ["IMMEDIATE", "immediate", "EXCLUSIVE"])
def test_sqlite_that_waits_for_its_turn(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = connections.settings["default"]
    monkeypatch.setitem(settings, "ATOMIC_REQUESTS", True)
    monkeypatch.setitem(settings, "OPTIONS", {"transaction_mode": mode})
    assert check_transactions() == []


def function(*decorators: Any) -> Any:
    def view(_: HttpRequest) -> HttpResponse:
        return HttpResponse()

    return functools.reduce(lambda made, decorate: decorate(made), reversed(decorators), view)


def on_dispatch(*decorators: Any) -> Any:
    cls: Any = type("Stocked", (Plain,), {})
    return method_decorator(decorators, name="dispatch")(cls).as_view()


@pytest.mark.parametrize(
    ("make", "others", "atomic", "number"),
    [
        (function, [], True, "E008"),
        (on_dispatch, [], True, "E008"),
        (function, [transaction.non_atomic_requests], True, "W009"),
        (function, [], False, "W009"),
        (on_dispatch, [], False, "W009"),
    ],
)
def test_a_database_without_autocommit(
    make: Any, others: list[Any], atomic: bool, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = path("stock", make(lock_view("stock"), *others))
    settings = connections.settings["default"]
    monkeypatch.setitem(settings, "ATOMIC_REQUESTS", atomic)
    assert found(stock) == []
    monkeypatch.setitem(settings, "AUTOCOMMIT", False)
    ((shown, text, hint),) = found(stock)
    assert shown == number
    assert "'default' has" in text
    assert "Remove AUTOCOMMIT" in hint
    with routed(stock):
        assert shown_until_silenced(f"lockkit.{number}")
    assert found(path("other", lambda _: HttpResponse())) == []


def test_another_database_needs_no_such_option(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {**connections.settings["default"], "ENGINE": "django.db.backends.postgresql"}
    monkeypatch.setitem(
        connections.settings, "elsewhere", {**other, "ATOMIC_REQUESTS": True, "OPTIONS": {}}
    )
    assert check_transactions() == []


def paths_found(patterns: Sequence[str], *urls: Any, **settings: Any) -> list[tuple[str, str]]:
    with routed(*urls), override_settings(LOCKKIT_ORDERS={"PATHS": patterns}, **settings):
        return [(str(each.id)[8:], each.msg) for each in check_paths()]


SHOP = (
    path("", locked("a")),
    path("orders/", include([path("", locked("a")), path("<int:pk>/pay", locked("a"))])),
    path("shops/<slug:shop>/<uuid:order>/", locked("a")),
    re_path(r"^archive/(?P<year>\d{4})/(?:old/)?$", locked("a")),
)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^/orders/",
        r"^/orders/$",
        r"^/orders/\d+/pay$",
        r"/pay$",
        r"^/shops/[\w-]+/",
        r"^/shops/[a-z]+/[0-9a-f-]{36}/$",
        r"^/archive/20\d\d/",
        r"^/$",
        r"",
    ],
)
def test_paths_that_fit_a_route(pattern: str) -> None:
    assert paths_found([pattern], *SHOP) == []


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [
        (r"^orders/", "/orders/"),
        (r"^/order/", "/orders/"),
        (r"^/orders$", "/orders/"),
        (r"^/archive/1/", "/archive/2024/"),
        (r"^/orders/\d+/pay/$", "/orders/1/pay"),
        (r"^/en/orders/", "/orders/"),
    ],
)
def test_paths_that_fit_no_route(pattern: str, nearest: str) -> None:
    ((number, text),) = paths_found([r"^/orders/", pattern], *SHOP)
    assert number == "W104"
    assert repr(pattern) in text
    assert f"the nearest path is {nearest!r}" in text
    with routed(*SHOP), override_settings(LOCKKIT_ORDERS={"PATHS": [pattern]}):
        assert shown_until_silenced("lockkit.W104")


class Shown(View):
    def get(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Bought(Shown):
    def post(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Closed(Bought):
    http_method_names = ("get", "head")


class ShownOrders(IdempotentMixin, APIView):
    def get(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Stocked(ViewSet):
    def create(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse()


@pytest.mark.parametrize(
    ("view", "fits"),
    [
        (Shown.as_view(), False),
        (Closed.as_view(), False),
        (ShownOrders.as_view(), False),
        (Bought.as_view(), True),
        (api_view(["GET"])(lambda _: HttpResponse()), False),
        (api_view(["GET", "POST"])(lambda _: HttpResponse()), True),
        (Stocked.as_view({"get": "create"}), False),
        (Stocked.as_view({"post": "create"}), True),
        (lambda _: HttpResponse(), True),
    ],
)
def test_paths_that_fit_only_what_is_read(view: Any, fits: bool) -> None:
    """Of a class the methods are known. The pattern was meant for another route."""
    for others in ((), (path("orders/", Bought.as_view()),)):
        found = paths_found([r"^/order/"], path("order/", view), *others)
        assert [number for number, _ in found] == ["W104"] * (not fits)


def test_paths_below_a_language() -> None:
    languages = {"LANGUAGES": [("en", "English"), ("de", "Deutsch")], "LANGUAGE_CODE": "en"}
    all_prefixed = i18n_patterns(*SHOP)
    assert [n for n, _ in paths_found([r"^/orders/"], *all_prefixed, **languages)] == ["W104"]
    assert paths_found([r"^/(en|de)/orders/"], *all_prefixed, **languages) == []
    german = paths_found([r"^/en/orders/"], *all_prefixed, **languages)
    assert {number for number, _ in german} == {"W105"}
    assert any("not in de" in text and "'/de/orders/'" in text for _, text in german)
    but_one = i18n_patterns(*SHOP, prefix_default_language=False)
    found = paths_found([r"^/orders/"], *but_one, **languages)
    assert {number for number, _ in found} == {"W105"}
    assert paths_found([r"^/([a-z]+/)?orders/"], *but_one, **languages) == []


def test_paths_that_are_translated() -> None:
    named = lazy(lambda: "bestellungen/" if get_language() == "de" else "orders/", str)()
    languages = {"LANGUAGES": [("en", "English"), ("de", "Deutsch")], "LANGUAGE_CODE": "en"}
    translated = i18n_patterns(path(named, locked("a")))
    assert paths_found([r"^/en/orders/$", "^/de/bestellungen/$"], *translated, **languages) == []
    ((number, text),) = paths_found([r"^/[a-z]+/orders/$"], *translated, **languages)
    assert number == "W105"
    assert "'/de/bestellungen/'" in text


def test_a_route_is_looked_into_once_for_all_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Mock(wraps=routes.fillings)
    monkeypatch.setattr(routes, "fillings", looked)
    paths_found([r"^/[a-z-]+/orders/"], *i18n_patterns(*SHOP), LANGUAGES=global_settings.LANGUAGES)
    assert looked.call_count == len(SHOP) + 1  # one has two routes


@pytest.mark.parametrize("make", [path, re_path])
def test_paths_with_a_percent_sign(make: Callable[..., Any]) -> None:
    assert paths_found([r"^/orders/50%/new$"], make("orders/50%/new", locked("a")), *SHOP) == []


class OfAModel:
    """Its table may not be there yet, and has no row that the check could make up."""

    regex = "[0-9]+"

    def to_python(self, value: str) -> Any:
        raise KeyError(value)

    def to_url(self, value: Any) -> str:
        return str(value.pk)


register_converter(OfAModel, "of_a_model")


def test_the_project_s_converters_are_asked_nothing() -> None:
    pay = path("orders/<of_a_model:order>/pay", locked("a"))
    assert paths_found([r"^/orders/\d+/pay$"], pay) == []
    with routed(pay), override_settings(LOCKKIT_ORDERS={}):
        assert check_replays() == []


def test_a_route_that_cannot_be_read_is_passed_over() -> None:
    assert paths_found([r"^/orders/"], re_path("^(?i:shop)/$", locked("a")), *SHOP) == []


def test_no_paths_fit_all() -> None:
    assert paths_found([], *SHOP) == []


def test_orders_that_are_not_set_up_have_no_paths() -> None:
    for orders in (None, {"PATHS": ["("]}, {}):
        with routed(*SHOP), override_settings(LOCKKIT_ORDERS=orders):
            assert check_paths() == []
