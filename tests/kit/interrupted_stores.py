"""The stores in which interrupts are tested, and how long their leftovers may stay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest
from cache_settings import cache
from database_settings import complete, sqlite
from django.db import connections
from django.test import override_settings
from five_nodes import five_nodes
from lock_tables import table_at
from redis_family import ClusterGroup, SentinelGroup
from servers_of_sessions import SERVERS, Kind

from lockkit.testing.servers import RedisServer, ZooKeeperServer

TTL = 0.5
LONG_TTL = 60.0
"""Seconds. Those who wait for such a lock poll so rarely that only a message can be in time."""

SOON = 1.0
"""Seconds, for what takes milliseconds when nobody is in its way."""

TRIES = 3
PATIENT = 30.0
MOMENT = 0.005
MOST = 2000
ENDINGS = 2  # an uninterrupted run may be one on a machine that stalled


_numbers = itertools.count(1)


@contextmanager
def memory(_: pytest.FixtureRequest) -> Iterator[str]:
    yield "memory://interrupts"


@contextmanager
def sqlite_file(request: pytest.FixtureRequest) -> Iterator[str]:
    path: Path = request.getfixturevalue("tmp_path")
    yield f"sqlite:///{path / 'locks.sqlite3'}"


@contextmanager
def postgresql(request: pytest.FixtureRequest) -> Iterator[str]:
    with table_at(request.getfixturevalue("postgres_server")) as url:
        yield url


@contextmanager
def mariadb(request: pytest.FixtureRequest) -> Iterator[str]:
    with table_at(request.getfixturevalue("mariadb_server")) as url:
        yield url


@contextmanager
def redis_cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    group = request.getfixturevalue("groups")(ClusterGroup)
    group.flush()
    yield group.url


@contextmanager
def redis_sentinel(request: pytest.FixtureRequest) -> Iterator[str]:
    group = request.getfixturevalue("groups")(SentinelGroup)
    group.master.flush()
    yield group.url


@contextmanager
def redis(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.getfixturevalue("redis_url")


@contextmanager
def django_database(request: pytest.FixtureRequest) -> Iterator[str]:
    database = sqlite(request.getfixturevalue("tmp_path") / "shop.sqlite3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections.settings, "default", complete(database))
        yield "django://default"


@contextmanager
def django_cache(request: pytest.FixtureRequest) -> Iterator[str]:
    server: RedisServer = request.getfixturevalue("redis_server")
    server.flush()
    with override_settings(CACHES={"default": cache("django-redis", server.port)}):
        yield "django-redis://default"


@contextmanager
def plain_keys(request: pytest.FixtureRequest) -> Iterator[str]:
    yield f"{request.getfixturevalue('redis_url')}?protocol=plain"


@contextmanager
def zookeeper(request: pytest.FixtureRequest) -> Iterator[str]:
    """One server for all tests of a file: to start it takes as much CPU as a test."""
    request.getfixturevalue("other_servers")
    server = request.getfixturevalue("groups")(ZooKeeperServer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lockkit.stores.zookeeper.settings.CONNECT_TIMEOUT", 5.0)
        yield f"{server.url}/interrupts-{next(_numbers)}"


@contextmanager
def redlock(request: pytest.FixtureRequest) -> Iterator[str]:
    nodes = request.getfixturevalue("groups")(ThreeNodes).nodes
    for node in nodes:
        node.flush()
    yield nodes.url()


def sessions(kind: Kind) -> Store:
    """A claim has a session with a server of databases."""

    @contextmanager
    def store(request: pytest.FixtureRequest) -> Iterator[str]:
        with kind.of(request) as server:
            yield f"{server.url}&max_sessions=80"

    store.__name__ = kind.name.replace(" ", "_")
    return store


class ThreeNodes(ExitStack):
    """Started as one."""

    def __enter__(self) -> Self:
        self.nodes = self.enter_context(five_nodes(count=3))
        return self


Store = Callable[[pytest.FixtureRequest], AbstractContextManager[str]]

ONE = redis
"""Where the code that all stores share is interrupted as well."""

STORES: list[Store] = [
    memory,
    sqlite_file,
    postgresql,
    mariadb,
    django_database,
    redis,
    django_cache,
    redis_sentinel,
    redis_cluster,
    plain_keys,
    redlock,
    zookeeper,
    *map(sessions, SERVERS),
]


def below(url: str) -> str:
    """Where a store is interrupted: in its own code, and what that calls. The rest is interrupted
    over one of the stores."""
    return "" if url.startswith("redis://") and "?" not in url else "/stores/"


def name_of(store: Callable[..., object]) -> str:
    return store.__name__
