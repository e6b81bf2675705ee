"""The race over HTTP: two gunicorn masters, a real database, real locks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
from five_nodes import five_nodes
from redis_family import ClusterGroup, SentinelGroup

from lockkit.stores.registry import SCHEMES
from lockkit.testing.servers import RedisServer, ValkeyServer, ZooKeeperServer

Place = Callable[[pytest.FixtureRequest], AbstractContextManager[str]]

KEYS = ["mode", "requested", "stock", "accepted", "sold", "oversold", "duplicates",
        "p50_ms", "p95_ms"]  # fmt: skip
SMALL = ("race", "--orders", "80", "--stock", "10", "--format", "json")

pytestmark = pytest.mark.timeout(180)


def outcomes(finished: Any) -> dict[str, dict[str, Any]]:
    assert finished.returncode == 0, finished.stderr + finished.stdout
    shown = json.loads(finished.stdout)
    return {one["mode"]: one for one in (shown if isinstance(shown, list) else [shown])}


def assert_only_the_naive_go_wrong(by_mode: dict[str, dict[str, Any]]) -> None:
    for mode in ("none", "naive", "paused"):
        assert by_mode[mode]["oversold"] > 0
    for mode in ("lockkit", "row", "fenced"):
        right = {"requested": 80, "stock": 10, "accepted": 10, "sold": 10}
        assert by_mode[mode] | right | {"oversold": 0, "duplicates": 0} == by_mode[mode]


def test_all_modes_on_sqlite_with_the_embedded_locks(manage: Callable[..., Any]) -> None:
    by_mode = outcomes(manage(*SMALL))
    assert_only_the_naive_go_wrong(by_mode)
    assert [list(one) for one in by_mode.values()] == [KEYS] * 6


def test_all_modes_on_postgresql_with_redis(
    manage: Callable[..., Any], postgres_url: str, redis_url: str
) -> None:
    """With threads: see the demo."""
    finished = manage(*SMALL, SHOP_DATABASE_URL=postgres_url, LOCKKIT_URL=redis_url)
    assert_only_the_naive_go_wrong(outcomes(finished))


def test_all_modes_on_postgresql_with_its_own_locks(
    manage: Callable[..., Any], postgres_url: str
) -> None:
    assert_only_the_naive_go_wrong(outcomes(manage(*SMALL, SHOP_DATABASE_URL=postgres_url)))


def test_one_mode_is_one_json_object(manage: Callable[..., Any], redis_url: str) -> None:
    finished = manage(*SMALL, "--mode", "row", "--seed", "7", LOCKKIT_URL=redis_url)
    assert list(json.loads(finished.stdout)) == KEYS


@contextmanager
def group(kind: type[SentinelGroup | ClusterGroup]) -> Iterator[str]:
    with kind() as servers:
        yield servers.url


@contextmanager
def redlock() -> Iterator[str]:
    with five_nodes() as nodes:
        yield nodes.url()


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
}
LIKE = {
    "mysql": "mariadb", "mysql?mode=advisory": "mariadb?mode=advisory",
    "mysql?mode=row": "mariadb?mode=row", "sqlalchemy": "postgresql", "redlocks": "redlock",
    "rediss+sentinel": "redis+sentinel", "rediss+cluster": "redis+cluster",
    "django-redis": "django-cache", "redis+sentinel?protocol=plain": "redis+sentinel",
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
    machines = "django,django" if "cache" in scheme else "django,flask"
    arguments = ("--mode", "lockkit", "--machines", machines, "--orders", "20", "--stock", "4")
    with PLACES[scheme](request) as url:
        finished = manage(*SMALL, *arguments, LOCKKIT_URL=url, SHOP_CACHE_URL=redis_url)
    outcome = outcomes(finished)["lockkit"]
    assert (outcome["sold"], outcome["oversold"], outcome["duplicates"]) == (4, 0, 0)


def test_a_store_that_is_in_one_process_is_refused(manage: Callable[..., Any]) -> None:
    finished = manage(*SMALL, LOCKKIT_URL="memory://")
    assert finished.returncode == 1
    assert "holds in one process" in finished.stderr


@pytest.mark.parametrize("scheme", sorted(SCHEMES.keys() - {"memory"}))
def test_every_scheme_is_raced_with(scheme: str) -> None:
    assert LIKE.get(scheme, scheme) in PLACES


def test_a_clerk_who_is_paused_takes_back_what_was_sold_meanwhile(
    manage: Callable[..., Any],
) -> None:
    """Without the fence: five are sold while he sleeps, and he puts four of them back."""
    by_mode = outcomes(manage(*SMALL, "--mode", "paused", "--seed", "7"))
    assert by_mode["paused"]["sold"] > by_mode["paused"]["stock"]


def test_a_small_stock_is_enough(manage: Callable[..., Any]) -> None:
    arguments = ("race", "--orders", "8", "--stock", "1", "--format", "json")
    assert outcomes(manage(*arguments, "--mode", "paused"))["paused"]["oversold"] > 0
    assert outcomes(manage(*arguments, "--mode", "fenced"))["fenced"]["oversold"] == 0


def test_a_race_that_cannot_show_the_fault_fails(manage: Callable[..., Any]) -> None:
    finished = manage("race", "--orders", "5", "--stock", "50", "--mode", "none")
    assert finished.returncode == 1
    assert "proves nothing" in finished.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--orders", "0"), ("--stock", "-1"), ("--mode", "best"), ("--machines", "django"),
     ("--workers", "gevent")],
)  # fmt: skip
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
