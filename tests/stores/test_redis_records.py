"""STORE "redis": claims beside the lock, on real servers; and what operators do about orphans."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis
from claiming import MADE, begun, died, left_behind, order_of, rules
from places import ROOT

import lockkit
from lockkit import aio
from lockkit.engine.effects import Exchange
from lockkit.leases.client import LockClient
from lockkit.leases.lease import give_back
from lockkit.model.errors import ConfigurationError, LayoutMismatch, LeaseLost
from lockkit.model.types import Request
from lockkit.orders import (
    DuplicateKeyError,
    Order,
    OrderResponse,
    Orders,
    Proceed,
    Record,
    Refusal,
    Replay,
    adrive,
    drive,
)
from lockkit.orders.decisions import news_of
from lockkit.orders.record import RecordState
from lockkit.orders.redis_records import RedisOrderRecords, orphans, resolve
from lockkit.stores.redis import RedisStore
from lockkit.stores.redis.layout import BUCKETS, VERSION, Keys, bucket_of
from lockkit.stores.redis.thread_wire import ThreadRedisWire
from lockkit.stores.wires import AsyncWire
from lockkit.testing.conformance.base import eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer


@pytest.fixture(params=["redis", "valkey"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def locks(url: str) -> Iterator[LockClient]:
    client = lockkit.connect(url, key_prefix="shop", ttl=30)
    yield client
    client.close()


@pytest.fixture
def store(locks: LockClient) -> RedisOrderRecords:
    return RedisOrderRecords(locks)


@pytest.fixture
def orders() -> Orders:
    return rules()


def test_an_order_from_its_first_request_to_its_replay(
    orders: Orders, store: RedisOrderRecords, locks: LockClient
) -> None:
    order = order_of(orders)
    first = begun(orders, order, store, locks)
    record = store.find(order.key, fresh=True)
    assert record is not None
    assert (record.state, record.order_id) == (RecordState.RUNNING, "A-1")
    second = drive(orders.admit(order), store, locks)
    assert isinstance(second, Refusal)
    assert second.code == "order-running"
    assert drive(orders.settle(first, MADE), store, locks) is None
    give_back(first.lease)
    again = drive(orders.admit(order), store, locks)
    assert isinstance(again, Replay)
    assert again.snapshot == (201, (("Location", "/orders/1"),), b"\x00\xffmade")
    assert list(orphans(locks)) == []
    other = drive(orders.admit(order_of(orders, body=b"[]")), store, locks)
    assert isinstance(other, Refusal)
    assert other.status == 422


def test_a_running_order_is_no_orphan_while_its_lease_lives(
    orders: Orders, store: RedisOrderRecords, locks: LockClient
) -> None:
    first = begun(orders, order_of(orders), store, locks)
    assert list(orphans(locks)) == []
    died(first)
    (orphan,) = orphans(locks)
    assert (orphan.name, orphan.fence) == (first.order.lock_name, first.lease.fencing_token)
    assert str(orphan.owner).endswith("POST /orders/ order A-1")
    assert orphan.left is not None
    assert 86000 < orphan.left <= 86400


@pytest.mark.parametrize("days", [-3, 3])
def test_the_age_of_an_orphan_is_by_the_clock_of_the_store(
    days: int, store: RedisOrderRecords, locks: LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = rules()
    died(begun(orders, order_of(orders), store, locks))
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + days * 86400)
    (orphan,) = orphans(locks)
    assert orphan.age is not None
    assert 0 <= orphan.age < 60


def test_an_orphan_is_not_run_again_by_itself(
    orders: Orders, store: RedisOrderRecords, locks: LockClient
) -> None:
    order = order_of(orders)
    died(begun(orders, order, store, locks))
    for _ in range(2):
        answer = drive(orders.admit(order), store, locks)
        assert isinstance(answer, Refusal)
        assert (answer.status, answer.code) == (409, "order-orphaned")
        assert [*news_of(answer)] == ["order_orphaned"]
    assert locks.inspect(order.lock_name) is None


def test_an_order_that_outlives_its_claim_is_done(
    store: RedisOrderRecords, locks: LockClient
) -> None:
    """Its lease was renewed all the time, so nobody else can have begun it."""
    orders = rules(TTL=0.2)
    order = order_of(orders)
    first = begun(orders, order, store, locks)
    eventually(lambda: store.find(order.key, fresh=True) is None)
    other = rules()
    assert drive(other.settle(first, MADE), store, locks) is None
    give_back(first.lease)
    again = drive(other.admit(order), store, locks)
    assert isinstance(again, Replay)
    assert again.snapshot.body == MADE.body


def test_an_orphan_is_run_again_if_the_settings_say_so(
    store: RedisOrderRecords, locks: LockClient
) -> None:
    orders = rules(ORPHANS="retry")
    order = order_of(orders)
    first = begun(orders, order, store, locks)
    died(first)
    second = begun(orders, order, store, locks)
    assert (second.orphan, *news_of(second)) == (True, "order_orphaned")
    assert second.lease.fencing_token > first.lease.fencing_token
    late = drive(orders.settle(first, MADE), store, locks)
    assert isinstance(late, Refusal)
    assert late.code == "order-outcome-unknown"
    assert drive(orders.settle(second, OrderResponse(200, [], b"two")), store, locks) is None
    give_back(second.lease)
    again = drive(orders.admit(order), store, locks)
    assert isinstance(again, Replay)
    assert again.snapshot.body == b"two"


def test_the_application_may_know_how_an_orphan_ended(
    orders: Orders, store: RedisOrderRecords, locks: LockClient
) -> None:
    order = order_of(orders)
    died(begun(orders, order, store, locks))
    asked: list[Order] = []

    def recover(order: Order) -> OrderResponse:
        asked.append(order)
        return MADE

    found = drive(orders.admit(order), store, locks, recover)
    assert isinstance(found, Replay)
    assert (found.orphan, found.snapshot.body) == (True, MADE.body)
    assert [*news_of(found)] == ["order_orphaned", "order_replayed"]
    again = drive(orders.admit(order), store, locks, recover)
    assert isinstance(again, Replay)
    assert (again.orphan, asked) == (False, [order])
    assert list(orphans(locks)) == []


def test_the_application_may_not_know(
    orders: Orders, store: RedisOrderRecords, locks: LockClient
) -> None:
    order = order_of(orders)
    died(begun(orders, order, store, locks))
    for answer in (None, OrderResponse(503, [], b"")):
        told = drive(orders.admit(order), store, locks, lambda _order, a=answer: a)
        assert isinstance(told, Refusal)
        assert told.code == "order-orphaned"


def test_a_hook_that_fails_leaves_everything_as_it_is(
    orders: Orders, store: RedisOrderRecords, locks: LockClient
) -> None:
    order = order_of(orders)
    died(begun(orders, order, store, locks))

    def recover(_order: Order) -> OrderResponse:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(orders.admit(order), store, locks, recover)
    assert locks.inspect(order.lock_name) is None
    assert len(list(orphans(locks))) == 1


def test_a_response_that_was_not_kept_may_be_made_again(
    store: RedisOrderRecords, locks: LockClient
) -> None:
    orders = rules(MAX_RESPONSE=3)
    order = order_of(orders)
    first = begun(orders, order, store, locks)
    assert drive(orders.settle(first, MADE), store, locks) is None
    give_back(first.lease)
    told = drive(orders.admit(order), store, locks)
    assert isinstance(told, Refusal)
    assert (told.code, told.location) == ("order-completed", "/orders/1")
    found = drive(orders.admit(order), store, locks, lambda _: MADE)
    assert isinstance(found, Replay)
    assert found.snapshot.body == MADE.body


@pytest.mark.parametrize(
    ("ending", "left"),
    [
        ((OrderResponse(503, [], b""), False), Proceed),
        ((OrderResponse(409, [], b""), False), Proceed),
        ((OrderResponse(409, [], b""), True), Refusal),
        ((OrderResponse(500, [], b""), True), Refusal),
        ((OrderResponse(201, [], b""), True), Refusal),
        ((OrderResponse(302, [], b""), True), Refusal),
        ((None, False), Refusal),
        ((OrderResponse(404, [], b""), True), Replay),
    ],
    ids=str,
)
def test_what_a_view_leaves(
    ending: tuple[OrderResponse | None, bool],
    left: type,
    orders: Orders,
    store: RedisOrderRecords,
    locks: LockClient,
) -> None:
    order = order_of(orders)
    first = begun(orders, order, store, locks)
    response, failed = ending
    told = drive(orders.settle(first, response, failed=failed), store, locks)
    is_success = response is not None and response.status == 201
    assert getattr(told, "code", None) == ("order-outcome-unknown" if is_success else None)
    give_back(first.lease)
    again = drive(orders.admit(order), store, locks)
    assert type(again) is left
    if isinstance(again, Proceed):
        give_back(again.lease)


@pytest.mark.parametrize("end", [MADE, OrderResponse(503, [], b"")], ids=["done", "dropped"])
def test_who_looks_for_orphans_reads_only_what_runs(
    end: OrderResponse, orders: Orders, store: RedisOrderRecords, locks: LockClient, url: str
) -> None:
    """The index of a bucket would grow with each order of the last TTL."""
    first = begun(orders, order_of(orders), store, locks)
    running = Keys("shop").record(first.order.lock_name)[2]
    with redis.Redis.from_url(url) as admin:
        assert admin.zcard(running) == 1
        assert drive(orders.settle(first, end), store, locks) is None
        assert admin.zcard(running) == 0
    give_back(first.lease)


def test_full_memory_refuses_new_orders_and_keeps_the_end_of_those_that_run(
    url: str, orders: Orders, store: RedisOrderRecords, locks: LockClient
) -> None:
    """Otherwise the order would have taken effect, and its next try would be let run again."""
    first = begun(orders, order_of(orders), store, locks)
    left_behind(locks, "A-2")
    (orphan,) = orphans(locks)
    with redis.Redis.from_url(url) as admin:
        admin.config_set("maxmemory", "1mb")
        try:
            refused = drive(orders.admit(order_of(orders, "A-3")), store, locks)
            assert isinstance(refused, Refusal)
            assert refused.code == "order-store-unavailable"
            assert drive(orders.settle(first, MADE), store, locks) is None
            assert resolve(locks, orphan, done=True)
        finally:
            admin.config_set("maxmemory", "0")
    give_back(first.lease)
    assert isinstance(drive(orders.admit(order_of(orders)), store, locks), Replay)


def test_a_claim_needs_the_lease(
    store: RedisOrderRecords, orders: Orders, locks: LockClient
) -> None:
    order = order_of(orders)
    lease = locks.lock(order.lock_name).acquire()
    fence = lease.fencing_token
    lease.release()
    with pytest.raises(LeaseLost):
        store.start(orders.running(order), fence, replaces=True)
    with locks.lock(order.lock_name), pytest.raises(LeaseLost):
        store.start(orders.running(order), fence, replaces=True)
    assert store.find(order.key, fresh=True) is None


def test_steps_may_be_repeated(store: RedisOrderRecords, orders: Orders, locks: LockClient) -> None:
    order = order_of(orders)
    first = begun(orders, order, store, locks)
    fence = first.lease.fencing_token
    store.start(orders.running(order), fence, replaces=False)
    done = orders.running(order)._replace(state=RecordState.DONE)
    assert [store.finish(done, fence) for _ in range(2)] == [True, True]
    assert not store.drop(order.key, fence), "what has ended is not forgotten"
    give_back(first.lease)
    with locks.lock(order.lock_name) as lease, pytest.raises(DuplicateKeyError):
        store.start(orders.running(order), lease.fencing_token, replaces=True)


def test_no_claim_is_written_over_a_newer_one(
    store: RedisOrderRecords, orders: Orders, locks: LockClient
) -> None:
    order = order_of(orders)
    first = begun(orders, order, store, locks)
    died(first)
    with locks.lock(order.lock_name) as lease:
        with pytest.raises(DuplicateKeyError):
            store.start(orders.running(order), lease.fencing_token, replaces=False)
        store.start(orders.running(order), lease.fencing_token, replaces=True)
        old = first.lease.fencing_token
        assert not store.finish(orders.running(order)._replace(state=RecordState.DONE), old)
        assert not store.drop(order.key, old)
        assert store.finish(orders.running(order), lease.fencing_token)


def test_a_claim_that_is_late_does_not_undo_the_end_of_its_own_try(
    store: RedisOrderRecords, orders: Orders, locks: LockClient
) -> None:
    """Its first copy was held up in the network; the second one was answered."""
    first = begun(orders, order_of(orders), store, locks)
    assert drive(orders.settle(first, MADE), store, locks) is None
    with pytest.raises(DuplicateKeyError):
        store.start(orders.running(first.order), first.lease.fencing_token, replaces=False)
    give_back(first.lease)
    again = drive(orders.admit(first.order), store, locks)
    assert isinstance(again, Replay)
    assert list(orphans(locks)) == []


def test_no_claim_is_written_over_a_record_with_a_higher_fence(
    store: RedisOrderRecords, orders: Orders, locks: LockClient, url: str
) -> None:
    """As after a backup of the locks that is older than the records."""
    order = order_of(orders)
    died(begun(orders, order, store, locks))
    record = Keys("shop").record(order.lock_name)[1]
    with redis.Redis.from_url(url) as admin:
        admin.setrange(record, 1, b"9" * 16)
        before = admin.get(record)
        with locks.lock(order.lock_name) as lease, pytest.raises(DuplicateKeyError):
            store.start(orders.running(order), lease.fencing_token, replaces=True)
        assert admin.get(record) == before


class Delayed(RedisOrderRecords):
    """A store whose claim is interrupted, after or before it reaches the server."""

    def __init__(self, locks: LockClient, *, arrives: str) -> None:
        super().__init__(locks)
        self._arrives, self._late = arrives, list[Callable[[], None]]()

    def start(self, record: Record, fence: int, *, replaces: bool) -> None:
        claim = partial(super().start, record, fence, replaces=replaces)
        if self._arrives == "before":
            claim()
        else:
            self._late.append(claim)
        raise KeyboardInterrupt

    def drop(self, key: str, fence: int) -> bool:
        dropped = super().drop(key, fence)
        while self._late:
            self._late.pop()()
        return dropped


@pytest.mark.parametrize("arrives", ["before", "after the first look"])
def test_a_claim_in_doubt_is_forgotten_before_and_after_its_lease(
    arrives: str, store: RedisOrderRecords, orders: Orders, locks: LockClient, url: str
) -> None:
    """Whoever gets the lease next must not meet an orphan of a view that did not run."""
    seen: list[object] = []

    class Watched(RedisStore):
        def returned(self, request: Request) -> Exchange:
            seen.append(store.find(order.key, fresh=True))
            return super().returned(request)

    order = order_of(orders)
    settings = locks.settings
    watched = LockClient(Watched.from_settings(settings), settings)
    with pytest.raises(KeyboardInterrupt):
        drive(orders.admit(order), Delayed(watched, arrives=arrives), watched)
    watched.close()
    if arrives == "before":
        assert seen == [None]
    assert store.find(order.key, fresh=True) is None
    assert locks.inspect(order.lock_name) is None


def test_who_waited_in_vain_looks_once_more(
    store: RedisOrderRecords, orders: Orders, locks: LockClient
) -> None:
    """The first one has ended, and has yet to give its lock back."""
    order = order_of(orders)
    first = begun(orders, order, store, locks)

    class EndsMeanwhile(RedisOrderRecords):
        def find(self, key: str, *, fresh: bool) -> Record | None:
            found = super().find(key, fresh=fresh)
            if found is not None and found.state == RecordState.RUNNING:
                assert drive(orders.settle(first, MADE), store, locks) is None
            return found

    second = drive(orders.admit(order), EndsMeanwhile(locks), locks)
    assert isinstance(second, Replay)
    give_back(first.lease)


@pytest.mark.parametrize(("policy", "promised"), [("block", True), ("retry", False)])
def test_that_nothing_runs_twice_is_said_only_where_it_is_so(
    policy: str, promised: bool, store: RedisOrderRecords, locks: LockClient
) -> None:
    orders = rules(ORPHANS=policy)
    order = order_of(orders)
    first = begun(orders, order, store, locks)
    store.drop(order.key, first.lease.fencing_token)  # as if another try had taken it over
    give_back(first.lease)
    answer = drive(orders.settle(first, MADE), store, locks)
    assert isinstance(answer, Refusal)
    assert (answer.code, "twice" in answer.detail) == ("order-outcome-unknown", promised)
    assert "twice" not in answer.advice


class InThreads(RedisStore):
    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        return ThreadRedisWire(self.wire())


@pytest.mark.parametrize("native", [True, False], ids=["native", "in threads"])
async def test_the_same_awaited(native: bool, url: str, locks: LockClient) -> None:
    orders = rules(ORPHANS="retry")
    client = aio.connect(url, key_prefix="shop", ttl=30)
    if not native:
        await client.close()
        client = aio.AsyncLockClient(InThreads.from_settings(client.settings), client.settings)
    store = RedisOrderRecords(client)
    order = order_of(orders)
    first = await adrive(orders.admit(order), store, client)
    assert isinstance(first, Proceed)
    await first.lease.release()
    second = await adrive(orders.admit(order), store, client)
    assert isinstance(second, Proceed)
    assert second.orphan
    assert not await store.drop(order.key, first.lease.fencing_token)
    assert await adrive(orders.settle(second, MADE), store, client) is None
    await second.lease.release()
    again = drive(orders.admit(order), RedisOrderRecords(locks), locks)
    assert isinstance(again, Replay)
    third = await adrive(orders.admit(order), store, client)
    assert third == again
    await client.close()


async def test_a_cancelled_claim_leaves_nothing(url: str, locks: LockClient) -> None:
    """At every point: what it cannot know, it takes back."""
    orders = rules()
    for steps in range(1, 12):
        client = aio.connect(url, key_prefix="shop", ttl=30)
        store = RedisOrderRecords(client)
        order = order_of(orders, f"A-{steps}")
        task = asyncio.create_task(adrive(orders.admit(order), store, client))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        (answer,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(answer, Proceed):
            await adrive(orders.settle(answer, OrderResponse(500, [], b"")), store, client)
            await answer.lease.release()
        assert await store.find(order.key, fresh=True) is None
        assert locks.inspect(order.lock_name) is None
        await client.close()


class Slow(RedisOrderRecords):
    """Says what it is asked for, and drops a claim only when it is allowed to."""

    def __init__(self, client: aio.AsyncLockClient) -> None:
        super().__init__(client)
        self.asked, self.may_drop = asyncio.Queue[str](), asyncio.Event()

    async def start(self, record: Record, fence: int, *, replaces: bool) -> None:
        await super().start(record, fence, replaces=replaces)
        self.asked.put_nowait("start")
        await asyncio.Event().wait()

    async def drop(self, key: str, fence: int) -> bool:
        self.asked.put_nowait("drop")
        await self.may_drop.wait()
        dropped = await super().drop(key, fence)
        self.asked.put_nowait("dropped")
        return dropped


async def test_who_is_cancelled_again_while_it_clears_up_clears_up_all_the_same(
    url: str, locks: LockClient
) -> None:
    """Twice: there is a second drop after the release, and the first goes on in the background."""
    async with aio.connect(url, key_prefix="shop", ttl=30) as client:
        orders, store = rules(), Slow(client)
        order = order_of(orders)
        task = asyncio.create_task(adrive(orders.admit(order), store, client))
        for expected in ("start", "drop", "drop"):
            assert await asyncio.wait_for(store.asked.get(), 30) == expected
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert locks.inspect(order.lock_name) is None
        store.may_drop.set()
        for _ in range(2):
            assert await asyncio.wait_for(store.asked.get(), 30) == "dropped"
    assert list(orphans(locks)) == []


def test_a_dropped_reply_is_asked_for_again(
    redis_server: RedisServer, redis_url: str, proxy: Callable[[RedisServer], FaultProxy]
) -> None:
    link, orders = proxy(redis_server), rules()
    locks = lockkit.connect(redis_url.replace(str(redis_server.port), str(link.port)), ttl=30)
    store = RedisOrderRecords(locks)
    for order_id in ("A-1", "A-2"):  # the first one has to load the scripts
        order = order_of(orders, order_id)
        claim = link.drop_replies(matching=b'"state": "running"')
        first = begun(orders, order, store, locks)
        end = link.drop_replies(matching=b'"state": "done"')
        assert drive(orders.settle(first, MADE), store, locks) is None
        assert claim.happened.wait(20)
        assert end.happened.wait(20)
        give_back(first.lease)
    assert isinstance(drive(orders.admit(order), store, locks), Replay)
    locks.close()


def test_a_claim_whose_reply_is_lost_is_forgotten_if_the_lease_is_lost_too(
    redis_server: RedisServer, redis_url: str, orders: Orders
) -> None:
    """It was written; when it is sent again, the lease has ended, and the view does not run."""
    sent: list[bytes] = []

    def end_the_lease(data: bytes) -> None:
        if b'"state": "running"' not in data:
            return
        sent.append(data)
        if len(sent) == 2:
            (held,) = direct.holders()
            assert held.fence is not None
            assert direct.break_(held.name, fence=held.fence)

    with (
        lockkit.connect(redis_url, ttl=30) as direct,
        FaultProxy("127.0.0.1", redis_server.port, on_request=end_the_lease) as link,
        lockkit.connect(redis_url.replace(str(redis_server.port), str(link.port)), ttl=30) as locks,
    ):
        died(begun(orders, order_of(orders, "A-0"), RedisOrderRecords(direct), direct))  # scripts
        store = RedisOrderRecords(locks)
        link.drop_replies(matching=b'"state": "running"')
        refused = drive(orders.admit(order_of(orders)), store, locks)
        assert isinstance(refused, Refusal)
        assert (refused.code, len(sent)) == ("order-lease-lost", 2)
        died(begun(orders, order_of(orders), store, locks))


def test_a_store_that_dies_under_the_view_leaves_an_unknown_outcome() -> None:
    with RedisServer() as server:
        locks = lockkit.connect(server.url, options={"socket_timeout": 5}, ttl=30)
        store, orders = RedisOrderRecords(locks), rules()
        first = begun(orders, order_of(orders), store, locks)
        server.kill()
        answer = drive(orders.settle(first, MADE), store, locks)
        assert isinstance(answer, Refusal)
        assert (answer.status, answer.code) == (503, "order-outcome-unknown")
        answer = drive(orders.admit(order_of(orders, "A-2")), store, locks)
        assert isinstance(answer, Refusal)
        assert (answer.status, answer.code) == (503, "order-store-unavailable")
        give_back(first.lease)
        locks.close()


@pytest.mark.parametrize(
    "payload",
    [b'{"version": 99}\n', b"", b"\xff", b"[]", b"{}\n", b'{"version": 2}\n', b"[" * 100_000],
    ids=["newer", "empty", "bytes", "list", "bare", "short", "deep"],
)
def test_what_another_release_wrote_is_not_run_over(
    payload: bytes, store: RedisOrderRecords, locks: LockClient, url: str
) -> None:
    orders = rules(ORPHANS="retry")
    order = order_of(orders)
    for state in (b"R", b"D"):
        with redis.Redis.from_url(url) as admin:
            admin.set(Keys("shop").record(order.lock_name)[1], state + b"%016d" % 5 + payload)
        answer = drive(orders.admit(order), store, locks)
        assert isinstance(answer, Refusal)
        assert (answer.status, answer.code) == (503, "order-record-unreadable")
    assert locks.inspect(order.lock_name) is None


def test_another_layout_is_refused(store: RedisOrderRecords, locks: LockClient, url: str) -> None:
    orders = rules()
    order = order_of(orders)
    bucket = Keys("shop").record(order.lock_name)[0]
    with redis.Redis.from_url(url) as admin:
        admin.hset(bucket, "v", int(VERSION) + 1)
        with pytest.raises(LayoutMismatch):
            store.start(orders.running(order), 1, replaces=False)
        with pytest.raises(LayoutMismatch):
            store.drop(order.key, 1)
        admin.delete(bucket)


def test_the_least_permissions_suffice() -> None:
    """As docs/redis.md says."""
    text = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")
    (rights,) = re.findall(r"^user shop on >… (.*)$", text, re.MULTILINE)
    (more,) = re.findall(r'Orders with `STORE` `"redis"` (?:also )?need `([^`]*)`', text)
    with RedisServer(users={"shop": f"on >secret {rights} {more}"}) as server:
        url = server.url.replace("redis://", "redis://shop:secret@")
        locks = lockkit.connect(url, key_prefix="shop", ttl=30)
        store, orders = RedisOrderRecords(locks), rules(ORPHANS="retry")
        order = order_of(orders)
        died(begun(orders, order, store, locks))
        assert len(list(orphans(locks))) == 1
        second = begun(orders, order, store, locks)
        assert drive(orders.settle(second, MADE), store, locks) is None
        died(second)
        other = begun(orders, order_of(orders, "A-2"), store, locks)
        assert drive(orders.settle(other, OrderResponse(503, [], b"")), store, locks) is None
        died(other)
        died(begun(orders, order_of(orders, "A-3"), store, locks))
        (orphan,) = orphans(locks)
        assert resolve(locks, orphan, done=False)
        locks.close()


@pytest.mark.parametrize("url", ["memory://", "redis://h?protocol=plain", "redlock://h1,h2,h3"])
def test_records_need_redis(url: str) -> None:
    client = lockkit.connect(url)
    said = r"STORE.*'default' keeps no records\. That needs redis:// without protocol=plain, "
    with pytest.raises(ConfigurationError, match=said):
        RedisOrderRecords(client)
    assert list(orphans(client)) == []
    client.close()


async def test_records_need_redis_awaited() -> None:
    client = aio.connect("memory://")
    with pytest.raises(ConfigurationError, match="keeps no records"):
        RedisOrderRecords(client)
    await client.close()


def test_nothing_of_the_client_is_in_the_store(
    store: RedisOrderRecords, locks: LockClient, orders: Orders, url: str
) -> None:
    order = order_of(orders, body=b'{"password": "hunter2"}')
    first = begun(orders, order, store, locks)
    drive(orders.settle(first, MADE), store, locks)
    with redis.Redis.from_url(url) as admin:
        kept = b"".join(admin.dump(key) or b"" for key in admin.scan_iter())
        raw = admin.get(Keys("shop").record(order.lock_name)[1])
    give_back(first.lease)
    assert isinstance(raw, bytes)
    for secret in (b"hunter2", b"s3cret", b"Set-Cookie", b"x=1"):
        assert secret not in kept + raw


def test_done_by_an_operator(orders: Orders, store: RedisOrderRecords, locks: LockClient) -> None:
    order = order_of(orders)
    died(begun(orders, order, store, locks))
    (orphan,) = orphans(locks, order.lock_name)
    assert not resolve(locks, orphan._replace(fence=7), done=True)
    assert resolve(locks, orphan, done=True)
    assert not resolve(locks, orphan, done=True)
    answer = drive(orders.admit(order), store, locks)
    assert isinstance(answer, Refusal)
    assert answer.code == "order-completed"


def test_an_operator_who_is_overtaken_by_a_new_try_changes_nothing(
    orders: Orders, store: RedisOrderRecords, locks: LockClient
) -> None:
    """It came after he had looked: the server compares again."""
    order = order_of(orders)
    first = begun(orders, order, store, locks)
    records = locks.store.records()
    assert records is not None
    fence = first.lease.fencing_token
    for says in (b"", b"done"):
        resolving = records.resolve(order.lock_name, fence, says, 60.0)
        assert not locks.perform(resolving), "its lock is held"
    assert store.drop(order.key, fence)
    give_back(first.lease)


def test_expired_orphans_leave_the_index_with_the_next_write(
    locks: LockClient, store: RedisOrderRecords, url: str
) -> None:
    """Where there is always one that runs, the index never expires as a whole."""
    brief, long = rules(TTL=0.2), rules()
    order = order_of(brief)
    died(begun(brief, order, store, locks))
    bucket = bucket_of(order.lock_name)
    others = (order_of(long, f"B-{number}") for number in range(10_000))
    neighbours = (each for each in others if bucket_of(each.lock_name) == bucket)
    index = Keys("shop").running(bucket)
    with redis.Redis.from_url(url) as admin:
        died(begun(long, next(neighbours), store, locks))
        until(lambda: store.find(order.key, fresh=True) is None)
        assert admin.pttl(index) > 60_000

        def is_listed() -> bool:
            """Its entry may end a moment after its record."""
            died(begun(long, next(neighbours), store, locks))
            return admin.zscore(index, order.lock_name) is not None

        until(lambda: not is_listed())


def test_to_be_tried_anew_by_an_operator(
    orders: Orders, store: RedisOrderRecords, locks: LockClient
) -> None:
    order = order_of(orders)
    died(begun(orders, order, store, locks))
    (orphan,) = orphans(locks)
    with locks.lock(order.lock_name):
        assert not resolve(locks, orphan, done=False), "somebody is looking at it right now"
    assert resolve(locks, orphan, done=False)
    again = begun(orders, order, store, locks)
    assert not again.orphan
    give_back(again.lease)


def test_orphans_of_many_orders_are_listed_once(
    orders: Orders, store: RedisOrderRecords, locks: LockClient
) -> None:
    names = set()
    for number in range(150):
        decision = begun(orders, order_of(orders, f"A-{number}"), store, locks)
        names.add(decision.order.lock_name)
        died(decision)
    found = [orphan.name for orphan in orphans(locks)]
    assert (len(found), set(found)) == (150, names)


def test_random_keys_return_the_store_to_its_baseline(
    locks: LockClient, store: RedisOrderRecords, url: str
) -> None:
    """Ended records expire, and so do those that were left running, with their index."""
    orders = rules(TTL=0.3)
    with redis.Redis.from_url(url) as admin:
        before = admin.dbsize()
        for number in range(200):
            decision = begun(orders, order_of(orders, f"A-{number}"), store, locks)
            if number % 2:
                drive(orders.settle(decision, MADE), store, locks)
            give_back(decision.lease)
        until(lambda: not any(map(_is_of_records, admin.scan_iter(count=1000))))
        # A bucket has one key of its own, however many orders it has seen.
        assert int(admin.dbsize()) <= before + BUCKETS + 1
    assert list(orphans(locks)) == []


def _is_of_records(key: bytes) -> bool:
    """A record, or the index of those that run."""
    return b"o:" in key or key.endswith(b"r")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
