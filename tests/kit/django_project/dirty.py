"""Views that change something before a lock that is inside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections, transaction
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_project.shop.models import Sale
from lockkit_django import lock_view, locks

Before = Callable[[str], object]


def _create(sku: str, using: str) -> None:
    Sale.objects.using(using).create(sku=sku)


def _execute(sql: str) -> Before:
    def execute(using: str) -> None:
        with connections[using].cursor() as cursor:
            cursor.execute(sql)

    return execute


def _in_savepoint(using: str) -> None:
    with transaction.atomic(using):
        Sale.objects.using(using).create(sku="before")


READS: dict[str, Before] = {
    "nothing": lambda using: None,
    "reads": lambda using: list(Sale.objects.using(using).all()),
    "groups": lambda using: list(Sale.objects.using(using).values("sku").annotate(Count("pk"))),
    "cte-reads": _execute("WITH a AS (SELECT 1 AS b) SELECT * FROM a"),
    "looks-like-a-write": _execute("/* DELETE FROM shop_sale */ SELECT '; UPDATE shop_sale'"),
}
WRITES: dict[str, Before] = {
    "inserts": lambda using: Sale.objects.using(using).create(sku="before"),
    "updates": lambda using: Sale.objects.using(using).update(sku="before"),
    "deletes": lambda using: Sale.objects.using(using).all().delete(),
    "in-savepoint": _in_savepoint,
    "comment-writes": _execute("/* SELECT */ INSERT INTO shop_sale (sku) VALUES ('before')"),
}
OF_POSTGRESQL: dict[str, Before] = {
    "locks-rows": _execute("SELECT 1 FROM shop_sale FOR UPDATE"),
    "cte-writes": _execute("WITH a AS (DELETE FROM shop_sale RETURNING 1) SELECT * FROM a"),
    "function-writes": _execute("SELECT sell()"),
    "locks-table": _execute("LOCK TABLE shop_sale IN EXCLUSIVE MODE"),
    "draws-a-number": _execute("SELECT nextval('shop_sale_id_seq')"),
}
KEEPS: dict[str, Before] = {
    "keeps-a-lease": lambda _: locks["default"].lock("shop", until="commit").acquire(),
}
ENDS: dict[str, Before] = {
    "hooks": lambda using: transaction.on_commit(lambda: _create("hook", using), using),
    "marks": lambda using: transaction.set_rollback(True, using),
}
BEFORE = {**READS, **WRITES, **OF_POSTGRESQL, **KEEPS, **ENDS}


class Dirty(View):
    def dispatch(self, request: HttpRequest, using: str, what: str) -> Any:
        BEFORE[what](using)
        return super().dispatch(request, using, what)

    @lock_view("stock")
    def post(self, request: HttpRequest, using: str, what: str) -> HttpResponse:
        _create("view", using)
        return HttpResponse(str(connections[using].in_atomic_block))


class Twice(Dirty):
    """Each lock begins a transaction of its own; the second one finds no change in it."""

    def post(self, request: HttpRequest, using: str, what: str) -> HttpResponse:
        super().post(request, using, what)
        return super().post(request, using, what)


def _exempt(view: Callable[..., Any]) -> Callable[..., Any]:
    """Both in one decorator: if a method has several, Django heeds only one at the first call."""
    return transaction.non_atomic_requests("served")(transaction.non_atomic_requests(view))


@method_decorator(_exempt, name="dispatch")
class Exempt(Dirty):
    pass


urlpatterns = [
    path("dirty/<using>/<what>", Dirty.as_view()),
    path("twice/<using>/<what>", Twice.as_view()),
    path("locked/<using>/<what>", lock_view("outer")(Dirty.as_view())),
    path("exempt/<using>/<what>", Exempt.as_view()),
]
