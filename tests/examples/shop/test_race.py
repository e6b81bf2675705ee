"""The race over HTTP: two gunicorn masters, a real database, real locks. All of its modes: see
the demo."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from five_nodes import five_nodes
from redis_family import ClusterGroup, SentinelGroup

from lockkit.stores.registry import SCHEMES
from lockkit.testing.servers import RedisServer, ValkeyServer, ZooKeeperServer

Place = Callable[[pytest.FixtureRequest], AbstractContextManager[str]]

KEYS = ["mode", "requested", "stock", "accepted", "sold", "oversold", "duplicates",
        "p50_ms", "p95_ms"]  # fmt: skip
SMALL = ("race", "--orders", "8", "--stock", "1", "--processes", "1", "--format", "json")

pytestmark = pytest.mark.timeout(360)


def outcome(finished: Any) -> dict[str, Any]:
    assert finished.returncode == 0, finished.stderr + finished.stdout
    shown: dict[str, Any] = json.loads(finished.stdout)
    assert list(shown) == KEYS
    return shown


@contextmanager
def group(kind: type[SentinelGroup | ClusterGroup]) -> Iterator[str]:
    with kind() as servers:
        yield servers.url


@contextmanager
def redlock() -> Iterator[str]:
    with five_nodes() as nodes:
        yield nodes.url(socket_timeout=5, socket_connect_timeout=5)


@contextmanager
def server(kind: Any, url: str = "url", **options: Any) -> Iterator[str]:
    with kind(**options) as started:
        yield getattr(started, url)


def of(fixture: str, more: str = "") -> Place:
    """The URL of a server that the other tests use as well."""
    return lambda request: nullcontext(request.getfixturevalue(fixture) + more)


PLACES: dict[str, Place] = {
    "sqlite": lambda request: nullcontext(
        f"sqlite:///{request.getfixturevalue('tmp_path')}/locks.sqlite3"
    ),
    "postgresql": of("postgres_url"),
    "postgresql?mode=advisory": of("postgres_url", "?mode=advisory"),
    "postgresql?mode=row": of("postgres_url", "?mode=row"),
    "mariadb": of("mariadb_url"),
    "mariadb?mode=advisory": of("mariadb_url", "?mode=advisory"),
    "mariadb?mode=row": of("mariadb_url", "?mode=row"),
    "redis": of("redis_url"),
    "unix": lambda _: server(ValkeyServer, "unix_url"),
    "rediss": lambda _: server(RedisServer, "tls_url", tls=True),
    "redis?protocol=plain": of("redis_url", "?protocol=plain"),
    "redis+sentinel": lambda _: group(SentinelGroup),
    "redis+cluster": lambda _: group(ClusterGroup),
    "redlock": lambda _: redlock(),
    "zookeeper": lambda _: server(ZooKeeperServer),
    "django": lambda _: nullcontext("django://default"),
    "django-cache": lambda _: nullcontext("django-cache://default"),
    "django-redis": lambda _: nullcontext("django-redis://default"),
}
LIKE = {
    "mysql": "mariadb", "mysql?mode=advisory": "mariadb?mode=advisory",
    "mysql?mode=row": "mariadb?mode=row", "sqlalchemy": "postgresql", "redlocks": "redlock",
    "rediss+sentinel": "redis+sentinel", "rediss+cluster": "redis+cluster",
    "redis+sentinel?protocol=plain": "redis+sentinel",
}  # fmt: skip
"""Schemes of the same store, with other words before the hosts."""


def test_what_needs_fences_is_not_raced_without(manage: Callable[..., Any]) -> None:
    finished = manage("race", "--mode", "fenced", LOCKKIT_URL="redlock://h1,h2,h3")
    assert finished.returncode == 1
    assert "these locks have no fencing tokens" in finished.stderr


@pytest.mark.parametrize("scheme", PLACES)
def test_django_and_flask_race_for_the_same_stock(
    manage: Callable[..., Any], request: pytest.FixtureRequest, redis_url: str, scheme: str
) -> None:
    """With the locks of every store. In an empty database, the demo makes the table of locks."""
    machines = "django,django" if "django-" in scheme else "django,flask"
    workers = ("sync", "--processes", "4") if scheme == "sqlite" else ("gthread",)
    arguments = ("--mode", "lockkit", "--machines", machines, "--workers", *workers)
    few = ("--orders", "12", "--stock", "4", "--seed", "20")  # and three double clicks
    with PLACES[scheme](request) as url:
        finished = manage(*SMALL, *arguments, *few, LOCKKIT_URL=url, SHOP_CACHE_URL=redis_url)
    found = outcome(finished)
    assert (found["sold"], found["oversold"], found["duplicates"]) == (4, 0, 0)


@pytest.mark.parametrize("given", ["postgres_url", "mariadb_url"])
def test_the_locks_are_where_the_orders_are(
    manage: Callable[..., Any], request: pytest.FixtureRequest, given: str
) -> None:
    """``django://`` for Django, and the table of the same database for Flask."""
    url = request.getfixturevalue(given)
    few = ("--mode", "lockkit", "--machines", "django,flask", "--workers", "gthread")
    stock = ("--orders", "12", "--stock", "4", "--seed", "20")
    found = outcome(manage(*SMALL, *few, *stock, SHOP_DATABASE_URL=url))
    assert (found["sold"], found["oversold"], found["duplicates"]) == (4, 0, 0)


def test_relative_paths_are_the_same_files_for_launcher_and_machines(
    manage: Callable[..., Any], tmp_path: Path
) -> None:
    """The machines have another working directory."""
    shop, locks = tmp_path / "shop.sqlite3", tmp_path / "locks.sqlite3"
    where = {
        "SHOP_DATABASE_URL": f"sqlite:///{os.path.relpath(shop)}",
        "LOCKKIT_URL": f"sqlite:///{os.path.relpath(locks)}",
    }
    assert outcome(manage(*SMALL, "--mode", "lockkit", **where))["sold"] == 1
    assert shop.exists() and locks.exists()


def test_a_store_that_is_in_one_process_is_refused(manage: Callable[..., Any]) -> None:
    finished = manage(*SMALL, LOCKKIT_URL="memory://")
    assert finished.returncode == 1
    assert "holds in one process" in finished.stderr


@pytest.mark.parametrize("scheme", sorted(SCHEMES.keys() - {"memory"}))
def test_every_scheme_is_raced_with(scheme: str) -> None:
    assert LIKE.get(scheme, scheme) in PLACES


@pytest.mark.parametrize(("mode", "oversells"), [("paused", True), ("fenced", False)])
def test_a_small_stock_is_enough(manage: Callable[..., Any], mode: str, oversells: bool) -> None:
    assert (outcome(manage(*SMALL, "--mode", mode))["oversold"] > 0) is oversells


def test_a_race_that_cannot_show_the_fault_fails(
    manage: Callable[..., Any], postgres_url: str
) -> None:
    """In all modes, with PostgreSQL's own locks."""
    finished = manage(*SMALL, "--stock", "50", SHOP_DATABASE_URL=postgres_url)
    assert finished.returncode == 1
    shown = {one["mode"]: one for one in json.loads(finished.stdout)}
    assert [list(one) for one in shown.values()] == [KEYS] * 6
    assert (shown["lockkit"]["sold"], shown["row"]["sold"]) == (8, 8)
    blamed = re.findall(r"(\w+) did not oversell: .*? proves nothing", finished.stderr)
    assert blamed == ["none", "naive", "paused"]


@pytest.mark.parametrize("arguments", [("--stock", "-1"), ("--machines", "django")])
def test_wrong_arguments_are_usage_errors(
    manage: Callable[..., Any], arguments: tuple[str, ...]
) -> None:
    finished = manage("race", *arguments)
    assert finished.returncode in (1, 2)
    assert "Traceback" not in finished.stderr


def test_a_store_that_is_down_is_said_before_anything_starts(
    manage: Callable[..., Any],
) -> None:
    finished = manage(*SMALL, LOCKKIT_URL="redis://:canary@127.0.0.1:1/0")
    assert finished.returncode == 69
    assert "Traceback" not in finished.stderr
    assert "canary" not in finished.stderr + finished.stdout
