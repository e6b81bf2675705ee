from __future__ import annotations

from collections.abc import Iterator

import pytest
from over_a_wire import BY_OTHERS_TASKS, LOSES_SOCKETS, OfAnotherServer, OverAWire, by_tls

from lockkit.stores import redis as redis_store
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.servers import RedisServer, ValkeyServer
from lockkit.testing.targets import RedisTarget

PATIENT = {"options": {"socket_timeout": 10.0}}
"""For a machine that stalls: no test is about a server that takes so long to answer."""


class Forgetful(RedisTarget):
    persists = False


class Persistent(RedisTarget):
    persists = True


class TestRedis(StoreConformance):
    """Debian's Redis, which forgets everything when it is restarted."""

    schemes = ("redis",)
    tested = redis_store.RedisStore
    reached = Forgetful
    cycles = 10_000

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Forgetful]:
        with RedisServer() as server:
            yield Forgetful(server, options=PATIENT)


class TestValkeyOverAUnixSocket(OfAnotherServer):
    """A current Valkey, which forgets nothing."""

    schemes = ("unix",)
    tested = redis_store.RedisStore
    reached = Persistent
    by_tasks = BY_OTHERS_TASKS

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Persistent]:
        with ValkeyServer(persist=True) as server:
            yield Persistent(server, server.unix_url, options=PATIENT)


@LOSES_SOCKETS
class TestRedisOverTLS(OverAWire):
    schemes = ("rediss",)
    tested = redis_store.RedisStore
    reached = RedisTarget

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[RedisTarget]:
        with by_tls(), RedisServer(tls=True, password="a-password") as server:
            yield RedisTarget(server, server.tls_url, options=PATIENT)
