"""Views whose URLs have a parameter that a converter turns into an object."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path, register_converter

from orders_django.views import sell


class Basket:
    """Each object reads as itself alone."""

    def __init__(self, number: str) -> None:
        self.number = number


class NamedBasket(Basket):
    """All of them read alike."""

    def __str__(self) -> str:
        return "a basket"


class BasketConverter:
    regex = "[^/]+"
    made: type[Basket] = Basket

    def to_python(self, value: str) -> Basket:
        return self.made(value)

    def to_url(self, value: Basket) -> str:
        return value.number


class NamedConverter(BasketConverter):
    made = NamedBasket


register_converter(BasketConverter, "basket")
register_converter(NamedConverter, "namedbasket")


def buy(request: HttpRequest, basket: Basket | str = "") -> HttpResponse:
    return HttpResponse(f"sold {sell('basket')}", status=201)


urlpatterns = [
    path("orders/basket/<basket:basket>", buy),
    path("orders/named/<namedbasket:basket>", buy),
    re_path(r"^orders/(?:quick|slow)/$", buy),  # nothing is captured
]
