"""A Django project with one order view, on the database that it is given.

A line each: ``migrate``, ``order ID``, ``forget``.
"""

from __future__ import annotations

import sys
from types import ModuleType

import django
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import path

made: list[str] = []


def order(request: object) -> HttpResponse:
    made.append("order")
    return HttpResponse("made", status=201)


def main(database: str, locks: str, **orders: str) -> None:
    """``orders``: more of LOCKKIT_ORDERS."""
    settings.configure(
        SECRET_KEY="for-tests-only",
        ROOT_URLCONF="shop_urls",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": database}},
        INSTALLED_APPS=["lockkit_django"],
        MIDDLEWARE=["lockkit_django.middleware.IdempotentOrderMiddleware"],
        LOCKKIT={"default": locks},
        LOCKKIT_ORDERS={"PATHS": ["^/orders/"], **orders},
        ALLOWED_HOSTS=["*"],
    )
    urls = ModuleType("shop_urls")
    urls.urlpatterns = [path("orders/", order)]  # type: ignore[attr-defined]
    sys.modules["shop_urls"] = urls
    django.setup()
    client = Client(raise_request_exception=False)
    for line in sys.stdin:
        action, *words = line.split()
        if action == "migrate":
            answer = "migrated"
            try:
                call_command("migrate", verbosity=0)
            except CommandError as error:
                answer = str(error)
        elif action == "forget":
            with connection.cursor() as cursor:
                cursor.execute("DELETE FROM lockkit_order_record")
            answer = "forgotten"
        else:
            headers = {"Idempotency-Key": words[0], "Authorization": "Token alice"}
            response = client.post("/orders/", headers=headers)
            answer = f"{response.status_code // 100} {len(made)}"
        print(answer, flush=True)


main(*sys.argv[1:3], **dict(word.split("=") for word in sys.argv[3:]))
