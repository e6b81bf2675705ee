"""A project that has lockkit_django installed and does not use it: what its own queries cost.

Two processes take turns, one of which has the app in INSTALLED_APPS. Each asks PostgreSQL, in a
transaction, for one row and for 10,000 IDs. Modules that are loaded also give the garbage collector
more to look at, as those of any other app do: that is left out.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from lockkit.testing.servers import PostgresServer

__all__ = ["measure"]

APPS = {"lockkit": ["lockkit_django"], "without lockkit_django": []}
ROUNDS, TURNS = 8, 20
"""Processes are made anew for each round: where one has its objects makes several per cent."""

QUERIES = {"one_row_us": (1, 80), "many_ids_us": (10_000, 1)}
"""How many IDs, and how often in a turn."""


def measure(_redis: str) -> dict[str, dict[str, float]]:
    """Microseconds of CPU for a query."""
    with PostgresServer() as server:
        url = server.create_database()
        rounds = [_round(url) for _ in range(ROUNDS)]
    figures = {
        peer: {key: statistics.median(took[peer][key] for took in rounds) for key in QUERIES}
        for peer in APPS
    }
    ratios = [mine / others for took in rounds for mine, others in _pairs(took)]
    figures["lockkit"]["installed_cost"] = statistics.median(ratios)
    return figures


def _pairs(took: dict[str, dict[str, float]]) -> Iterator[tuple[float, float]]:
    mine, others = took.values()
    return zip(mine.values(), others.values(), strict=True)


def _round(url: str) -> dict[str, dict[str, float]]:
    """The medians of one process for each peer."""
    context = multiprocessing.get_context("spawn")
    ours: dict[str, Connection] = {}
    workers = []
    for peer, apps in APPS.items():
        ours[peer], theirs = context.Pipe()
        worker = context.Process(target=_work, args=(url, apps, theirs))
        worker.start()
        workers.append(worker)
        theirs.close()
    took: dict[str, dict[str, list[float]]] = {peer: {key: [] for key in QUERIES} for peer in ours}
    for turn in range(-1, TURNS):  # the first warms up
        for key in QUERIES:
            for peer, link in ours.items():
                seconds = _turn(link, key)
                took[peer][key] += [seconds] if turn >= 0 else []
    for link in ours.values():
        link.send(None)
    for worker in workers:
        worker.join()
    return {
        peer: {key: statistics.median(each) for key, each in found.items()}
        for peer, found in took.items()
    }


def _turn(link: Connection, key: str) -> float:
    link.send(key)
    seconds: float = link.recv()
    return seconds * 1e6


def _work(url: str, apps: list[str], parent: Connection) -> None:
    import django
    from django.conf import settings
    from django.db import connection, transaction

    from benchmarks.orders import database

    settings.configure(DATABASES={"default": database(url)}, INSTALLED_APPS=apps)
    django.setup()
    gc.freeze()

    def asked(count: int) -> Any:
        marks = ", ".join(["%s"] * count)
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT 1 WHERE 1 IN ({marks})", range(count))
            return cursor.fetchone()

    while (key := parent.recv()) is not None:
        count, times = QUERIES[key]
        with transaction.atomic():
            start = time.process_time()
            for _ in range(times):
                asked(count)
            parent.send((time.process_time() - start) / times)
