"""Each store beside the lock that its users would write or install otherwise."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import lockkit
from benchmarks import contention, handoff, pair
from lockkit.testing.servers import (
    MariaDBServer,
    PostgresServer,
    RedisServer,
    ValkeyServer,
    ZooKeeperServer,
)

__all__ = ["STORES", "measure", "with_table"]

PAIRS = 10
ROUNDS = 2


class Compared(NamedTuple):
    """A store, and the peers that are natural for it."""

    start: Callable[[], AbstractContextManager[str]]
    peers: tuple[str, ...]
    alone: tuple[str, ...] = ()  #: peers that nobody can wait for
    also: tuple[Callable[[str, tuple[str, ...]], dict[str, dict[str, float]]], ...] = ()


@contextmanager
def _file() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{Path(folder, 'locks.sqlite3')}"


# What these servers have confirmed is on the disk, as by default.


@contextmanager
def _postgres(mode: str) -> Iterator[str]:
    with PostgresServer("fsync=on") as server:
        yield with_table(f"{server.url}?mode={mode}")


@contextmanager
def _mariadb(mode: str) -> Iterator[str]:
    with MariaDBServer("--innodb-flush-log-at-trx-commit=1") as server:
        yield with_table(f"{server.url.replace('mysql://', 'mariadb://')}?mode={mode}")


def with_table(url: str) -> str:
    with lockkit.connect(url) as client:
        client.store.create_table()
    return url


@contextmanager
def _five_nodes() -> Iterator[str]:
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisServer()) for _ in range(5)]
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        yield f"redlock://{hosts}/0?restart_delay=0"  # they have just been started


@contextmanager
def _plain() -> Iterator[str]:
    with RedisServer() as server:
        yield f"{server.url}?protocol=plain"


@contextmanager
def _valkey() -> Iterator[str]:
    with ValkeyServer() as server:
        yield server.url


@contextmanager
def _group(name: str) -> Iterator[str]:
    """Of servers, as the tests start it."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "kit"))
    with getattr(import_module("redis_family"), name)() as group:
        yield group.url.partition("?")[0]


@contextmanager
def _zookeeper() -> Iterator[str]:
    with ZooKeeperServer() as server:
        yield server.url


BY_HAND = ("two UPDATEs",)
ON_POSTGRESQL = ("pg_advisory_lock", "sqlalchemy-dlock", "django-pgware")
STORES = {
    "sqlite://": Compared(
        _file,
        ("flock", "filelock"),
        also=(handoff.measure_long, partial(contention.measure_many, rounds=1)),
    ),
    "postgresql://": Compared(partial(_postgres, "table"), ON_POSTGRESQL, BY_HAND),
    "postgresql://?mode=advisory": Compared(partial(_postgres, "advisory"), ON_POSTGRESQL),
    "postgresql://?mode=row": Compared(partial(_postgres, "row"), ON_POSTGRESQL),
    "mariadb://": Compared(partial(_mariadb, "table"), ("GET_LOCK",), BY_HAND),
    "mariadb://?mode=advisory": Compared(partial(_mariadb, "advisory"), ("GET_LOCK",)),
    "mariadb://?mode=row": Compared(partial(_mariadb, "row"), ("GET_LOCK",)),
    "?protocol=plain": Compared(_plain, ("drop-in", "redis-py")),
    "redis:// of Valkey": Compared(_valkey, ("redis-py", "python-redis-lock")),
    "redis+sentinel://": Compared(partial(_group, "SentinelGroup"), ("redis-py",)),
    "redis+cluster://": Compared(partial(_group, "ClusterGroup"), ("redis-py",)),
    "redlock://": Compared(_five_nodes, ("pottery",)),
    "zookeeper://": Compared(_zookeeper, ("kazoo",)),
}


def measure(store: str) -> dict[str, dict[str, float]]:
    """Pair, handoff and eight processes at 5 ms, for lockkit and the store's peers."""
    compared = STORES[store]
    peers = ("lockkit", *compared.peers)
    with compared.start() as url:
        found = pair.measure(url, (*peers, *compared.alone), PAIRS)
        measured = [handoff.measure(url, peers, 1), contention.measure(url, peers, ROUNDS)]
        for more in measured + [measure(url, peers) for measure in compared.also]:
            for peer, figures in more.items():
                found[peer] |= figures
    return found
