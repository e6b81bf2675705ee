"""Each store beside the lock that its users would write or install otherwise."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import lockkit
from benchmarks import contention, handoff, pair
from benchmarks.through import migrated
from lockkit.testing.servers import (
    MariaDBServer,
    PostgresServer,
    RedisServer,
    Server,
    ValkeyServer,
    ZooKeeperServer,
)

__all__ = ["STORES", "measure", "with_table"]

PAIRS = 10
ROUNDS = 3


Measure = Callable[[str, tuple[str, ...]], dict[str, dict[str, float]]]
HANDOFF: Measure = partial(handoff.measure, rounds=1)
SHARED: tuple[Measure, ...] = (HANDOFF, partial(contention.measure, rounds=ROUNDS))
OF_FILES: tuple[Measure, ...] = (
    *SHARED,
    handoff.measure_long,
    partial(contention.measure_many, rounds=1),
)


class Compared(NamedTuple):
    """A store, and the peers that are natural for it."""

    start: Callable[[], AbstractContextManager[str]]
    peers: tuple[str, ...]
    alone: tuple[str, ...] = ()  #: peers that nobody can wait for
    measures: tuple[Measure, ...] = SHARED  #: beside the pair


@contextmanager
def _file() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{Path(folder, 'locks.sqlite3')}"


@contextmanager
def _server(kind: Callable[..., Server], *options: str, query: str = "") -> Iterator[str]:
    with kind(*options) as server:
        yield server.url + query


# What these servers confirm is on the disk, as it is by default. Autovacuum stays off: it would run
# in some turns and not in others.
ON_DISK = ("fsync=on", "full_page_writes=on")
POSTGRESQL = partial(_server, PostgresServer, *ON_DISK)
MARIADB = partial(_server, MariaDBServer, "--innodb-flush-log-at-trx-commit=1")


@contextmanager
def _postgres(mode: str) -> Iterator[str]:
    with POSTGRESQL() as url:
        yield with_table(f"{url}?mode={mode}")


@contextmanager
def _mariadb(mode: str) -> Iterator[str]:
    with MARIADB() as url:
        yield with_table(f"{url.replace('mysql://', 'mariadb://')}?mode={mode}")


def with_table(url: str) -> str:
    with lockkit.connect(url) as client:
        client.store.create_table()
    return url


@contextmanager
def _django(scheme: str, start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    with start() as url:
        yield migrated(f"{url}?through={scheme}")


@contextmanager
def _five_nodes() -> Iterator[str]:
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisServer()) for _ in range(5)]
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        yield f"redlock://{hosts}/0?restart_delay=0"  # they have just been started


@contextmanager
def _group(name: str) -> Iterator[str]:
    """A group of servers, as the tests start it."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "kit"))
    with getattr(import_module("redis_family"), name)() as group:
        yield group.url.partition("?")[0]


BY_HAND = ("two UPDATEs",)
ON_POSTGRESQL = ("pg_advisory_lock", "sqlalchemy-dlock", "django-pgware")
ON_FILES = ("flock", "filelock")
REDIS = partial(_server, RedisServer)
PLAIN = partial(REDIS, query="?protocol=plain")
STORES = {
    "memory://": Compared(
        lambda: nullcontext("memory://threads"), ("threading.Lock",), measures=(HANDOFF,)
    ),
    "sqlite://": Compared(_file, ON_FILES, measures=OF_FILES),
    "postgresql://": Compared(partial(_postgres, "table"), ON_POSTGRESQL, BY_HAND),
    "postgresql://?mode=advisory": Compared(partial(_postgres, "advisory"), ON_POSTGRESQL),
    "postgresql://?mode=row": Compared(partial(_postgres, "row"), ON_POSTGRESQL),
    "mariadb://": Compared(partial(_mariadb, "table"), ("GET_LOCK",), BY_HAND),
    "mariadb://?mode=advisory": Compared(partial(_mariadb, "advisory"), ("GET_LOCK",)),
    "mariadb://?mode=row": Compared(partial(_mariadb, "row"), ("GET_LOCK",)),
    "django:// on SQLite": Compared(partial(_django, "django", _file), ON_FILES, measures=OF_FILES),
    "django:// on PostgreSQL": Compared(
        partial(_django, "django", POSTGRESQL), ("pg_advisory_lock", "django-pgware"), BY_HAND
    ),
    "django:// on MariaDB": Compared(partial(_django, "django", MARIADB), ("GET_LOCK",), BY_HAND),
    "django-redis://": Compared(partial(_django, "django-redis", REDIS), ("django-redis",)),
    "django-cache://": Compared(partial(_django, "django-cache", REDIS), ("redis-py",)),
    "?protocol=plain": Compared(PLAIN, ("drop-in", "redis-py")),
    "redis:// of Valkey": Compared(
        partial(_server, ValkeyServer), ("redis-py", "python-redis-lock")
    ),
    "redis+sentinel://": Compared(partial(_group, "SentinelGroup"), ("redis-py",)),
    "redis+cluster://": Compared(partial(_group, "ClusterGroup"), ("redis-py",)),
    "redlock://": Compared(_five_nodes, ("pottery",)),
    "zookeeper://": Compared(partial(_server, ZooKeeperServer), ("kazoo",)),
}


def measure(store: str) -> dict[str, dict[str, float]]:
    """Pair, handoff and eight processes at 5 ms, for lockkit and the store's peers."""
    compared = STORES[store]
    peers = ("lockkit", *compared.peers)
    with compared.start() as url:
        found = pair.measure(url, (*peers, *compared.alone), PAIRS)
        for measure_ in compared.measures:
            for peer, figures in measure_(url, peers).items():
                found[peer] |= figures
    return found
