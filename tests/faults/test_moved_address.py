"""An operator makes another server the primary, and has the address lead to it. The former primary
keeps the connections that it has, and refuses to write."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import redis
import redis.asyncio
from redis.exceptions import ResponseError
from redis_family import WITHOUT_DELAY

import lockkit
from lockkit.compat.redis import AsyncRedis
from lockkit.model.types import Kind, Release
from lockkit.testing.blocking import AnyClient, Api, connect, used_as
from lockkit.testing.conformance.base import SOON, eventually, queued
from lockkit.testing.conformance.steps import claim, granted
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer, ValkeyServer

NAME = "stock:42"
TTL = 30.0
LEASES = 100
REFUSALS = "READONLY", "NOREPLICAS", "MASTERDOWN"
HANDED = "lockkit.stores.redis.handed.HandedStore"

CLIENTS: dict[str, tuple[Api, Any]] = {
    "threads": ("sync", None),
    "tasks": ("async", None),
    "threads, handed over": ("sync", redis.Redis),
    "tasks, handed over": ("async", redis.asyncio.Redis),
    "tasks, over a blocking one": ("async", redis.Redis),
}


class Address(FaultProxy):
    """New connections lead to what ``target`` is then."""

    def _serve(self, client: socket.socket, target: tuple[str, int | None]) -> None:
        super()._serve(client, self.target)


class Scene(NamedTuple):
    first: RedisServer
    second: RedisServer
    address: Address

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.address.port}/0"

    def move(self, refusal: str = "READONLY") -> None:
        """The first is told to follow a server that is not there, or is cut off from those that
        follow it: it only refuses to write."""
        with self.first.client() as admin:
            if refusal == "NOREPLICAS":
                admin.config_set("min-replicas-to-write", 1)
            else:
                admin.config_set(
                    "replica-serve-stale-data", "no" if refusal == "MASTERDOWN" else "yes"
                )
                admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        self.address.target = "127.0.0.1", self.second.port


@pytest.fixture
def scene() -> Iterator[Scene]:
    with (
        RedisServer(*WITHOUT_DELAY) as first,
        RedisServer(*WITHOUT_DELAY) as second,
        Address("127.0.0.1", first.port) as address,
    ):
        yield Scene(first, second, address)


@pytest.fixture(params=CLIENTS.values(), ids=CLIENTS)
def client(request: pytest.FixtureRequest, scene: Scene) -> Iterator[AnyClient]:
    api, driver = request.param
    with ExitStack() as stack:
        if driver is None:
            made = connect(api, scene.url, ttl=TTL)
        else:
            given = driver.from_url(scene.url, socket_timeout=10)
            if driver is redis.Redis:
                stack.callback(given.connection_pool.disconnect)
            made = connect(api, "redis://", ttl=TTL, backend=HANDED, options={"client": given})
        stack.callback(getattr(made, "stop", made.close))
        yield made


def subscriptions(server: RedisServer) -> int:
    with server.client() as admin:
        return len(admin.client_list(_type="pubsub"))


def subscribed(client: AnyClient, server: RedisServer) -> None:
    """It has waited for long enough to listen there."""

    def has_listened() -> bool:
        with pytest.raises(lockkit.AcquireTimeout):
            client.lock(NAME).acquire(timeout=0.2)
        return subscriptions(server) == 1

    with client.lock(NAME).acquire():
        eventually(has_listened)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_locks_follow_it(scene: Scene, client: AnyClient, refusal: str) -> None:
    subscribed(client, scene.first)
    scene.move(refusal)
    with pytest.raises(lockkit.BackendUnavailable, match=refusal):
        client.lock(NAME).acquire()
    client.lock(NAME).acquire().release()
    with lockkit.connect(scene.second.url, ttl=TTL) as other, ThreadPoolExecutor(1) as threads:
        holder = other.lock(NAME).acquire()
        waiting = threads.submit(client.lock(NAME, timeout=SOON).acquire)
        queued(other, NAME, 1)
        assert subscriptions(scene.second) == 1
        eventually(lambda: subscriptions(scene.first) == 0)
        assert holder.release()
        assert waiting.result().release()


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_pass_of_renewals_ends_at_the_first_refusal(scene: Scene, refusal: str) -> None:
    """It holds for all of them, which may be in as many keys of the server."""
    with lockkit.connect(scene.url, ttl=600) as client:
        requests = [claim(f"n{n}") for n in range(LEASES)]
        for request in requests:
            granted(client, request)
        scene.move(refusal)
        scene.address.target = "127.0.0.1", scene.first.port  # not yet
        before = connections(scene.first)
        with pytest.raises(lockkit.BackendUnavailable, match=refusal):
            client.perform(client.store.extend([each._replace(number=1) for each in requests]))
        assert connections(scene.first) - before <= 2


@pytest.mark.parametrize("kind", [RedisServer, ValkeyServer])
@pytest.mark.parametrize(
    ("query", "use"), [("", "lock"), ("", "semaphore:1"), ("?protocol=plain", "lock")]
)
def test_who_listens_at_the_former_primary_hears_of_nothing_that_was_taken_back(
    kind: type[RedisServer], query: str, use: str
) -> None:
    """It has become a replica of the new one. That counts its own subscribers, and passes over who
    is not among them, but messages are passed on to replicas as well."""
    shared = {"kind": Kind.SEMAPHORE, "permits": 1, "shared": True} if use != "lock" else {}
    holder = claim(NAME)._replace(**shared)
    with (
        kind(*WITHOUT_DELAY) as former,
        kind(*WITHOUT_DELAY) as new,
        lockkit.connect(former.url + query, ttl=TTL) as client,
        lockkit.connect(new.url + query, ttl=TTL) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        follow(former, by=new)
        granted(client, holder)
        waiting = threads.submit(used_as(client, NAME, use).acquire, timeout=SOON)
        queued(client, NAME, 1)
        follow(new, by=former)
        assert other.perform(other.store.release(holder)) is Release.RELEASED
        with (
            used_as(other, NAME, use).acquire(timeout=0),
            pytest.raises(lockkit.BackendUnavailable, match="READONLY"),
        ):
            waiting.result()  # of its next poll


@pytest.mark.parametrize("api", ["sync", "async"])
def test_who_listens_at_the_former_primary_for_good_is_not_starved(scene: Scene, api: Api) -> None:
    """It follows the new one, and answers as before. It has closed the other connections, as one
    with a timeout does: so nobody is refused there, and all but the subscription goes to the new
    one."""
    client = connect(api, scene.url, ttl=TTL)
    subscribed(client, scene.first)
    follow(scene.second, by=scene.first)
    scene.address.target = "127.0.0.1", scene.second.port
    with scene.first.client() as admin:
        admin.client_kill_filter(_type="normal", skipme=True)
    with lockkit.connect(scene.second.url, ttl=TTL) as other, ThreadPoolExecutor(1) as threads:
        holder = other.lock(NAME).acquire()
        waiting = threads.submit(client.lock(NAME, timeout=SOON).acquire)
        for _ in range(2):
            queued(other, NAME, 1)
            assert holder.release()  # which passes it over
            holder = other.lock(NAME).acquire(timeout=0)
        queued(other, NAME, 1)
        eventually(lambda: (subscriptions(scene.first), subscriptions(scene.second)) == (0, 1))
        assert holder.release()
        assert waiting.result().release()
    getattr(client, "stop", client.close)()


def follow(primary: RedisServer, *, by: RedisServer) -> None:
    """All that either of them had is at both."""
    with primary.client() as leading, by.client() as following:
        written = following.info("replication")["master_repl_offset"]
        if leading.info("replication")["role"] == "slave":
            eventually(lambda: leading.info("replication")["slave_repl_offset"] >= written)
        leading.execute_command("REPLICAOF", "NO", "ONE")
        following.execute_command("REPLICAOF", "127.0.0.1", primary.port)
        eventually(lambda: following.info("replication")["master_link_status"] == "up")


def connections(server: RedisServer) -> int:
    """That were made so far, this one included."""
    with server.client() as admin:
        return int(admin.info("stats")["total_connections_received"])


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_drop_in_follows_it(scene: Scene, refusal: str) -> None:
    given = AsyncRedis.from_url(scene.url, socket_timeout=10)
    lock = given.lock(NAME, timeout=TTL)
    async with lock:
        pass
    scene.move(refusal)
    with pytest.raises(ResponseError, match=r"read only|MASTER is down|NOREPLICAS"):
        await lock.acquire()
    async with lock:
        pass
    await given.aclose()
