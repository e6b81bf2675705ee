"""Views that change something before a lock that is inside them."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_project.shop.models import Sale
from lockkit_django import lock_view


def _execute(sql: str) -> None:
    with connection.cursor() as cursor:
        try:
            cursor.execute(sql)
        except Exception:
            if "FOR UPDATE" not in sql:  # SQLite has no such thing; it was asked for
                raise


def _in_savepoint() -> None:
    with transaction.atomic():
        Sale.objects.create(sku="before")


BEFORE = {
    "reads": Sale.objects.count,
    "inserts": lambda: Sale.objects.create(sku="before"),
    "updates": lambda: Sale.objects.update(sku="before"),
    "locks-rows": lambda: _execute("SELECT 1 /* of rows */ FOR UPDATE"),
    "cte-reads": lambda: _execute("WITH a AS (SELECT 1) SELECT * FROM a"),
    "cte-writes": lambda: _execute(
        "WITH a AS (SELECT 1) INSERT INTO shop_sale (sku) SELECT 'before' FROM a"
    ),
    "in-savepoint": _in_savepoint,
}


class Dirty(View):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        BEFORE[kwargs["what"]]()
        return super().dispatch(request, *args, **kwargs)

    @lock_view("stock")
    def post(self, request: HttpRequest, what: str) -> HttpResponse:
        Sale.objects.create(sku="view")
        return HttpResponse(str(connection.in_atomic_block))


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class Exempt(Dirty):
    pass


urlpatterns = [
    path("dirty/<str:what>", Dirty.as_view()),
    path("exempt/<str:what>", Exempt.as_view()),
]
