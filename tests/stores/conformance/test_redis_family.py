"""redis+sentinel:// and redis+cluster://."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from over_a_wire import BY_TASKS, LOSES_SOCKETS, REACHED, OverAWire, Reached, all_of, by_tls
from redis_family import ClusterGroup, ClusterStore, Group, SentinelGroup, SentinelStore

import lockkit
from lockkit.stores.redis import cluster_store, sentinel_store
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.conformance.base import Connect, Spawn, queued
from lockkit.testing.targets import Target


class WithPasswords:
    """Of several servers, which all take another one at once."""

    def test_a_password_may_change(
        self, store: Group, connect: Connect, name: str, spawn: Spawn
    ) -> None:
        """A function is asked for it at each new connection."""
        current = ["first"]
        asked: list[str] = []

        def password() -> str:
            asked.append(current[0])
            return current[0]

        store.set_password_of_app("first")
        options = store.options_of_app(password)
        client, other = (connect(store.url_of_app, options=options) for _ in range(2))
        lease = client.lock(name).acquire()
        assert set(asked) == {"first"}
        current[0] = "second"
        store.set_password_of_app("second")
        lease.extend()
        waiting = spawn(other.lock(name).acquire)
        queued(client, name, 1)
        assert lease.release()
        assert waiting.result().release()
        assert set(asked) == {"first", "second"}


class TestSentinel(WithPasswords, OverAWire):
    """Of a current Valkey; tests/faults has Debian's Redis."""

    asked = OverAWire.asked | all_of(WithPasswords)
    schemes = ("redis+sentinel",)
    tested = sentinel_store.SentinelStore
    reached = SentinelStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[SentinelStore]:
        with SentinelGroup(valkey=True) as group:
            yield SentinelStore(group, socket_timeout=10.0)


class TestPlainKeysOverSentinel(Reached):
    schemes = ("redis+sentinel?protocol=plain",)
    tested = sentinel_store.PlainSentinelStore
    reached = SentinelStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[SentinelStore]:
        with SentinelGroup() as group:
            yield SentinelStore(group, "protocol=plain", socket_timeout=10.0)


class OverTLS(WithPasswords, Reached):
    asked = REACHED | {
        *all_of(WithPasswords),
        "test_certificates_are_verified_by_default",
        "test_the_certificate_of_the_master_is_verified_by_default",
    }

    def test_certificates_are_verified_by_default(
        self, store: Target, connect: Connect, name: str
    ) -> None:
        _, options = _trust_and_others(store)
        with pytest.raises(lockkit.BackendUnavailable, match=r"self.signed.*ssl_ca_certs"):
            connect(options=options).lock(name).acquire(timeout=0)


def _trust_and_others(store: Target) -> tuple[dict[str, str], dict[str, Any]]:
    """Its OPTIONS: what it trusts, and the rest."""
    others = dict(store.options["options"])
    return {"ssl_ca_certs": others.pop("ssl_ca_certs")}, others


@LOSES_SOCKETS
class TestSentinelOverTLS(OverTLS):
    """With passwords as well: another one for the Sentinels."""

    schemes = ("rediss+sentinel",)
    tested = sentinel_store.SentinelStore
    reached = SentinelStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[SentinelStore]:
        with by_tls(), SentinelGroup(guarded=True) as group:
            yield SentinelStore(group, socket_timeout=10.0)

    def test_the_certificate_of_the_master_is_verified_by_default(
        self, store: Target, connect: Connect, name: str
    ) -> None:
        """Whatever the Sentinels may show."""
        trust, options = _trust_and_others(store)
        options["sentinel"] = {**options["sentinel"], **trust}
        with pytest.raises(lockkit.BackendUnavailable, match=r"self.signed.*ssl_ca_certs"):
            connect(options=options).lock(name).acquire(timeout=0)


class TestCluster(WithPasswords, StoreConformance):
    """Six servers of a current Valkey: names are on three of them, and the scripts that grant are
    others than those of a single server."""

    schemes = ("redis+cluster",)
    tested = cluster_store.ClusterStore
    reached = ClusterStore
    cycles = 800
    by_tasks = BY_TASKS | all_of(WithPasswords)

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[ClusterStore]:
        with ClusterGroup(valkey=True) as group:
            yield ClusterStore(group, socket_timeout=10.0)


@LOSES_SOCKETS
class TestClusterOverTLS(OverTLS):
    schemes = ("rediss+cluster",)
    tested = cluster_store.ClusterStore
    reached = ClusterStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[ClusterStore]:
        with by_tls(), ClusterGroup(guarded=True) as group:
            yield ClusterStore(group, socket_timeout=10.0)
