"""redis+sentinel:// and redis+cluster://."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from over_a_wire import BY_TASKS, LOSES_SOCKETS, OverAWire, Reached, by_tls
from redis_family import ClusterGroup, ClusterStore, SentinelGroup, SentinelStore

from lockkit.stores import redis as redis_store
from lockkit.testing.conformance import StoreConformance


class TestSentinel(OverAWire):
    """Of a current Valkey; tests/faults has Debian's Redis."""

    schemes = ("redis+sentinel",)
    tested = redis_store.SentinelStore
    reached = SentinelStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[SentinelStore]:
        with SentinelGroup(valkey=True) as group:
            yield SentinelStore(group, socket_timeout=10.0)


class TestPlainKeysOverSentinel(Reached):
    schemes = ("redis+sentinel?protocol=plain",)
    tested = redis_store.PlainSentinelStore
    reached = SentinelStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[SentinelStore]:
        with SentinelGroup() as group:
            yield SentinelStore(group, "protocol=plain", socket_timeout=10.0)


@LOSES_SOCKETS
class TestSentinelOverTLS(Reached):
    """With passwords as well: another one for the Sentinels."""

    schemes = ("rediss+sentinel",)
    tested = redis_store.SentinelStore
    reached = SentinelStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[SentinelStore]:
        with by_tls(), SentinelGroup(guarded=True) as group:
            yield SentinelStore(group, socket_timeout=10.0)


class TestCluster(StoreConformance):
    """Six servers of a current Valkey: names are on three of them, and the scripts that grant are
    others than those of a single server."""

    schemes = ("redis+cluster",)
    tested = redis_store.ClusterStore
    reached = ClusterStore
    cycles = 800
    by_tasks = BY_TASKS

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[ClusterStore]:
        with ClusterGroup(valkey=True) as group:
            yield ClusterStore(group, socket_timeout=10.0)


@LOSES_SOCKETS
class TestClusterOverTLS(Reached):
    schemes = ("rediss+cluster",)
    tested = redis_store.ClusterStore
    reached = ClusterStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[ClusterStore]:
        with by_tls(), ClusterGroup(guarded=True) as group:
            yield ClusterStore(group, socket_timeout=10.0)
