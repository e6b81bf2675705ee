"""Views that change something before a lock that is inside them."""

from __future__ import annotations

from functools import partial
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


QUERIES = [
    "/* app=web */ SELECT 1",
    "-- why\nSELECT 1",
    "SELECT 1 /*note='(delete from shop_sale)'*/;",
    "WITH a AS (SELECT '(delete from shop_sale)' AS b) SELECT * FROM a",
    'WITH a AS (SELECT 1 AS "update") SELECT * FROM a',
    "SELECT (replace ('a', 'b', 'c'))",
    "SELECT 'it''s; DELETE FROM x FOR UPDATE'",
    "PRAGMA user_version",
    "PRAGMA table_info(shop_sale)",
    "PRAGMA cache_size = 2000",
]
"""Each only reads, and looks as if it did not to who looks badly."""

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
    "pragma-writes": lambda: _execute("PRAGMA main.user_version = 3"),
    "comment-writes": lambda: _execute("/* a */ INSERT INTO shop_sale (sku) VALUES ('x;')"),
    **{f"query-{i}": partial(_execute, query) for i, query in enumerate(QUERIES)},
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
