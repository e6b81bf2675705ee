"""Many orders in Redis: they cost no more memory than they must, and leave nothing behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from secrets import token_hex

import pytest
import redis
from command_line import listed

import lockkit
from lockkit.model.types import Mode, Owner, Request
from lockkit.orders import Record
from lockkit.orders.order import lock_name_of
from lockkit.orders.record import RecordState, Snapshot
from lockkit.orders.stored_form import dump
from lockkit.stores.redis import RedisStore
from lockkit.stores.redis.connections import exchange
from lockkit.stores.redis.protocol import NO_CHANNEL
from lockkit.stores.redis.records import RedisRecords
from lockkit.testing.servers import RedisServer

BATCH = 1_000
MEGABYTE = 1 << 20
OWNER = Owner("web-1", 4121, "MainThread", "POST /orders/ order A-17")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


def fill(url: str, many: int, ttl: float, *, ended: bool) -> None:
    """So many orders, pipelined: locked, claimed, finished if ``ended``, released."""
    client = lockkit.connect(url)
    store = client.store
    assert isinstance(store, RedisStore)
    records = store.records()
    with client.lock(lock_name_of("first")) as lease:  # loads the scripts
        payload = _payload("first", RecordState.RUNNING)
        fence = lease.fencing_token
        step = records.claim(lease.name, fence, payload, ttl, running=True, replaces=False)
        client.perform(step)
        client.perform(records.finish(lease.name, fence, payload, ttl))
    for _ in range(many // BATCH):
        _batch(store, records, [token_hex(32) for _ in range(BATCH)], ttl, ended=ended)
    client.close()


def _batch(
    store: RedisStore, records: RedisRecords, keys: list[str], ttl: float, *, ended: bool
) -> None:
    said = store._protocol
    names = {lock_name_of(key): key for key in keys}
    requests = [Request(name, token_hex(16), 600.0, OWNER.encode()) for name in names]
    wanted = [said.acquire(r, Mode.TRY, NO_CHANNEL).packed for r in requests]
    fences = [int(reply) for reply in exchange(store._connections, wanted)]
    commands = []
    for (name, key), fence, request in zip(names.items(), fences, requests, strict=True):
        running = _payload(key, RecordState.RUNNING)
        claim = records.claim(name, fence, running, ttl, running=True, replaces=False)
        commands += next(claim).payload
        if ended:
            finish = records.finish(name, fence, _payload(key, RecordState.DONE), ttl)
            commands += next(finish).payload
        commands.append(said.release(request).packed)
    assert all(reply == 1 for reply in exchange(store._connections, commands))


def _payload(key: str, state: RecordState) -> bytes:
    ended = Snapshot(201, (("Location", "/orders/17"),), b'{"id": 17}')
    snapshot = ended if state is RecordState.DONE else Snapshot(0)
    record = Record(key, "A-17", "POST /orders/", "1:" + "f" * 64, 86400, state, snapshot)
    return dump(record, OWNER if state is RecordState.RUNNING else None)


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "orphans"])
def test_random_keys_return_the_store_to_its_baseline(ended: bool, server: RedisServer) -> None:
    server.flush()
    with redis.Redis.from_url(server.url) as admin:
        before = admin.info("memory")["used_memory"]
        fill(server.url, 2000, 2.0, ended=ended)
        end = time.monotonic() + 40
        while admin.dbsize() > 65:  # a key for each bucket and one for all, whatever was ordered
            assert time.monotonic() < end
            time.sleep(0.05)
        assert admin.info("memory")["used_memory"] - before < MEGABYTE


def test_orphans_are_listed_in_little_memory(server: RedisServer) -> None:
    server.flush()
    fill(server.url, 5000, 86400.0, ended=False)
    one, least = listed(server.url, "--format", "jsonl", "--limit", "1")
    everything, most = listed(server.url, "--format", "jsonl")
    assert (one, everything) == (1, 5000)
    assert most - least < 3 * MEGABYTE
