"""Orders: what the middleware costs a view that saves one row, and what a replay saves.

In one process, without a network in front: Django's WSGI handler is called. The row and lockkit's
records are in PostgreSQL, under ATOMIC_REQUESTS; its locks, and all of django-idempotency-key, are
in Redis.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

from lockkit.testing.servers import PostgresServer

__all__ = ["measure"]

MIDDLEWARE = {
    "lockkit": "lockkit_django.middleware.IdempotentOrderMiddleware",
    "plain view": None,
    "django-idempotency-key": "idempotency_key.middleware.IdempotencyKeyMiddleware",
}
PER_TURN = 20
TURNS = 25

Send = Callable[[str], None]


def measure(url: str) -> dict[str, dict[str, float]]:
    """Requests per second, first ones and replays; the peers take turns. A plain view has none."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with PostgresServer() as server:
        worker = context.Process(target=_work, args=(url, server.create_database(), theirs))
        worker.start()
        theirs.close()
        try:
            figures: dict[str, dict[str, float]] = ours.recv()
        finally:
            worker.join()
    return figures


def _work(redis_url: str, database_url: str, parent: Connection) -> None:
    _set_up(redis_url, database_url)
    senders = {peer: _sender(middleware) for peer, middleware in MIDDLEWARE.items()}
    firsts: dict[str, list[float]] = {peer: [] for peer in senders}
    replays: dict[str, list[float]] = {peer: [] for peer in senders if MIDDLEWARE[peer]}
    for turn in range(TURNS + 1):
        for peer, send in senders.items():
            orders = [f"{peer} {turn} {number}" for number in range(PER_TURN)]
            firsts[peer].append(_turn(send, orders))
            if peer in replays:
                replays[peer].append(_turn(send, orders))
    parent.send(_summary(firsts, replays))


def _summary(
    firsts: dict[str, list[float]], replays: dict[str, list[float]]
) -> dict[str, dict[str, float]]:
    """The first turn of each is for warming up."""
    figures = {peer: {"order_first": _median(rates)} for peer, rates in firsts.items()}
    for peer, rates in replays.items():
        figures[peer]["order_replay"] = _median(rates)
    return figures


def _median(rates: list[float]) -> float:
    return statistics.median(rates[1:])


def _turn(send: Send, orders: Iterable[str]) -> float:
    """Requests per second."""
    start = time.perf_counter()
    for order_id in orders:
        send(order_id)
    return PER_TURN / (time.perf_counter() - start)


def _set_up(redis_url: str, database_url: str) -> None:
    import django
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    settings.configure(
        SECRET_KEY="x" * 50,
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=["django.contrib.contenttypes", "lockkit_django"],
        DATABASES={"default": _database(database_url)},
        CACHES={
            "default": {
                "BACKEND": "django.core.cache.backends.redis.RedisCache",
                "LOCATION": redis_url,
            }
        },
        LOCKKIT={"default": redis_url},
        IDEMPOTENCY_KEY={
            "CONFLICT_STATUS_CODE": None,  # a replay has the status of the first
            "STORAGE": {"CLASS": "idempotency_key.storage.CacheKeyStorage"},
            "LOCK": {
                "CLASS": "idempotency_key.locks.redis.MultiProcessRedisLock",
                "LOCATION": redis_url,
            },
        },
    )
    django.setup()
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE sale (id BIGSERIAL PRIMARY KEY, sku TEXT NOT NULL)")


def _database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
        "ATOMIC_REQUESTS": True,
        "CONN_MAX_AGE": None,
    }


def _sender(middleware: str | None) -> Send:
    """Sends an order to a handler with this middleware, and looks at the answer."""
    from django.core.handlers.wsgi import WSGIHandler
    from django.test import RequestFactory, override_settings

    with override_settings(MIDDLEWARE=[middleware] if middleware else []):
        handler = WSGIHandler()
    factory = RequestFactory(headers={"Authorization": "Token a"})

    def send(order_id: str) -> None:
        request = factory.post(
            "/", b"{}", content_type="application/json", headers={"Idempotency-Key": order_id}
        )
        response = handler(request.environ, _start)
        response.close()
        if response.status_code != 201:
            raise RuntimeError(f"{middleware}: {response.status_code}")

    return send


def _start(*_: Any) -> Callable[[bytes], object]:
    """What WSGI's start_response is for, nobody looks at here."""
    return bytes


def _order(_request: Any) -> Any:
    """The view: one row."""
    from django.db import connection
    from django.http import JsonResponse

    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO sale (sku) VALUES ('book') RETURNING id")
        return JsonResponse({"sale": cursor.fetchone()[0]}, status=201)


def __getattr__(name: str) -> Any:
    """``urlpatterns``: this module is the project's URLs, too, once Django is set up."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.urls import path

    return [path("", _order)]
