"""Anything may stand where the record of an order was: then its order is not run, and not replayed.

A record of an order says that it may have taken effect; what cannot be read says so as well.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from claiming import MADE, begun, order_of, rules
from command_line import locks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lockkit
from lockkit import aio
from lockkit.leases.client import LockClient
from lockkit.leases.lease import give_back
from lockkit.model.errors import LockError
from lockkit.model.types import LockState
from lockkit.orders import Order, Orders, Proceed, Refusal, Replay, adrive, drive, stored_form
from lockkit.orders.admission import judge
from lockkit.orders.order import lock_name_of
from lockkit.orders.record import Record, dump_headers, recorded
from lockkit.orders.redis_records import RedisOrderRecords, orphans, repair
from lockkit.orders.rows import COLUMNS
from lockkit.stores.redis.layout import Keys
from lockkit.testing.servers import RedisServer

EXAMPLES = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary(max_size=20)
    | st.text(max_size=20)
    | st.sampled_from(["[" * 100_000, '[["a"]]', "[1]", "9" * 5000])
)


class Case:
    """An order that is running or done, and its keys."""

    def __init__(self, locks: LockClient, admin: redis.Redis) -> None:
        self.locks = locks
        self.admin = admin
        self.store = RedisOrderRecords(locks)
        self.rules: Orders = rules()
        self.order: Order = order_of(self.rules)
        self.key = Keys("shop").record(lock_name_of(self.order.key))[1]

    def begin(self, *, done: bool) -> None:
        self.admin.flushall()
        first = begun(self.rules, self.order, self.store, self.locks)
        if done:
            drive(self.rules.settle(first, MADE), self.store, self.locks)
        give_back(first.lease)

    def listed(self) -> list[LockState]:
        return [info.state for info in orphans(self.locks)]

    def ask(self) -> Proceed | Replay | Refusal | LockError:
        try:
            return drive(self.rules.admit(self.order), self.store, self.locks)
        except LockError as error:
            return error


@pytest.fixture(scope="module")
def case(redis_server: RedisServer) -> Iterator[Case]:
    client = lockkit.connect(redis_server.url, key_prefix="shop", ttl=30)
    with redis_server.client() as admin:
        yield Case(client, admin)
        admin.flushall()
    client.close()


@EXAMPLES
@given(data=st.data(), done=st.booleans())
def test_whatever_stands_in_redis(case: Case, data: st.DataObject, done: bool) -> None:
    case.begin(done=done)
    value = case.admin.get(case.key)
    place = data.draw(st.integers(0, len(value) - 1))
    something = data.draw(st.binary(min_size=1, max_size=9))
    case.admin.set(case.key, data.draw(st.sampled_from([
        something,
        value[:place],
        value[:place] + something + value[place:],
        value[:place] + something + value[place + len(something):],
    ])), ex=60)  # fmt: skip
    answer = case.ask()
    assert isinstance(answer, Replay | Refusal | LockError), "a second run"
    found = case.listed()
    if isinstance(answer, Refusal) and answer.code == "order-record-unreadable":
        assert answer.status == 503
        is_newer = found == [LockState.ORPHAN] or stored_form.is_newer(
            case.admin.get(case.key)[17:]
        )
        assert found == [LockState.DAMAGED] or is_newer
    before = case.admin.get(case.key)
    assert repair(case.locks, case.order.lock_name) is (LockState.DAMAGED in found)
    assert case.admin.get(case.key) == (None if LockState.DAMAGED in found else before)


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("make", ["lpush", "sadd"])
def test_a_key_of_another_type(case: Case, make: str, done: bool) -> None:
    case.begin(done=done)
    case.admin.delete(case.key)
    getattr(case.admin, make)(case.key, "something")
    answer = case.ask()
    assert isinstance(answer, Refusal)
    assert answer.status == 503
    content = sorted(case.admin.keys())
    (info,) = orphans(case.locks)
    assert info.state is LockState.DAMAGED
    assert "cannot be read" in info.damage
    assert sorted(case.admin.keys()) == content
    assert repair(case.locks, info.name)
    assert not case.admin.exists(case.key)
    assert case.listed() == []


def test_one_that_is_done_is_listed_once_somebody_has_met_it(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing lists what is done; an operator can look at one by its name."""
    case.begin(done=True)
    case.admin.setrange(case.key, 20, "damaged")
    name = case.order.lock_name
    assert [info.state for info in orphans(case.locks, name)] == [LockState.DAMAGED]
    assert case.listed() == []
    assert isinstance(case.ask(), Refusal)
    assert name in caplog.text
    assert case.listed() == [LockState.DAMAGED]
    assert case.admin.zscore(Keys("shop").record(name)[2], name) > time.time() * 1e6


async def test_the_same_awaited(case: Case, redis_server: RedisServer) -> None:
    case.begin(done=True)
    case.admin.setrange(case.key, 20, "damaged")
    client = aio.connect(redis_server.url, key_prefix="shop")
    answer = await adrive(case.rules.admit(case.order), RedisOrderRecords(client), client)
    await client.close()
    assert isinstance(answer, Refusal)
    assert case.listed() == [LockState.DAMAGED]


def test_what_is_done_and_can_be_read_is_not_told(case: Case) -> None:
    case.begin(done=True)
    assert list(orphans(case.locks, case.order.lock_name)) == []
    assert not repair(case.locks, case.order.lock_name)
    assert isinstance(case.ask(), Replay)


def test_the_command_repairs_it(case: Case) -> None:
    """The order may have taken effect: only an operator can know."""
    case.begin(done=True)
    case.admin.setrange(case.key, 20, "damaged")
    case.ask()
    name = case.order.lock_name
    (row,) = locks(case.locks).rows
    assert row[:4] == ["default", name, "damaged", "STUCK"]
    shown = locks(case.locks, "show", name).out.replace("\n", " ")
    assert f"locks release --damaged {name}" in shown
    released = locks(case.locks, "release", name, "--damaged", "--yes", "--reason", "ticket 7")
    assert released.status == 0
    shown = locks(case.locks, "show", name).out
    assert re.search(r"an operator repaired its record \ds ago: .*: ticket 7", shown)
    answer = case.ask()
    assert isinstance(answer, Proceed)
    give_back(answer.lease)


def test_who_released_its_lock_is_known_after_the_repair_too(case: Case) -> None:
    """An operator must release the lock before the record can be repaired."""
    case.begin(done=True)
    case.admin.setrange(case.key, 20, "damaged")
    name = case.order.lock_name
    lease = case.locks.lock(name).acquire()
    case.locks.break_(name, fence=lease.fencing_token, by="ann: ticket 7")
    assert repair(case.locks, name, by="bob" + "!" * 10_000)
    told = {words.broken_by[:20]: words.fence for words in case.locks.last_words(name)}
    assert told == {"ann: ticket 7": lease.fencing_token, "repaired its record:": None}
    assert all(len(words.broken_by) < 300 for words in case.locks.last_words(name))
    with pytest.raises(lockkit.LeaseLost, match="an operator released it: ann: ticket 7"):
        lease.extend()
    lease.release()


def test_a_repair_leaves_the_bucket_of_another_release_alone(case: Case) -> None:
    case.begin(done=True)
    case.admin.setrange(case.key, 20, "damaged")
    bucket = Keys("shop").record(case.order.lock_name)[0]
    case.admin.hset(bucket, "v", "5")
    before = case.admin.hgetall(bucket)
    assert repair(case.locks, case.order.lock_name)
    assert case.admin.hgetall(bucket) == before


@pytest.mark.parametrize("place", [0, 2], ids=["bucket", "index"])
def test_a_key_of_many_orders_of_another_type(case: Case, place: int) -> None:
    """It has a row of its own, and all others are shown; the store is not down."""
    case.begin(done=False)
    with case.locks.lock("other"):
        key = Keys("shop").record(case.order.lock_name)[place]
        case.admin.delete(key)
        case.admin.set(key, "something")
        looked = locks(case.locks)
        assert looked.status == 0
        assert {row[1]: row[2] for row in looked.rows} == {"other": "held", key.decode(): "damaged"}
        assert f'DEL "{key.decode()}" in redis-cli' in looked.out
        assert locks(case.locks, "show", case.order.lock_name).status == 0
        assert locks(case.locks, "--lost").status == 0


@pytest.mark.parametrize("kind", ["version", "type"])
async def test_a_damaged_bucket_stops_no_orders_elsewhere(
    case: Case, redis_server: RedisServer, kind: str
) -> None:
    """Also those of a client that has just come, and looks at all buckets."""
    keys = Keys("shop")
    mine = keys.record(case.order.lock_name)[0]
    other = next(key for key in map(keys.bucket, range(64)) if key != mine)
    case.admin.flushall()
    if kind == "type":
        case.admin.set(other, "something")
    else:
        case.admin.hset(other, "v", "something")
    with lockkit.connect(redis_server.url, key_prefix="shop") as new:
        first = begun(case.rules, case.order, RedisOrderRecords(new), new)
        drive(case.rules.settle(first, MADE), RedisOrderRecords(new), new)
        give_back(first.lease)
    case.admin.delete(case.key)
    client = aio.connect(redis_server.url, key_prefix="shop")
    again = await adrive(case.rules.admit(case.order), RedisOrderRecords(client), client)
    assert isinstance(again, Proceed)
    await again.lease.release()
    await client.close()


def test_it_is_not_repaired_while_its_lock_is_held(case: Case) -> None:
    """Whoever holds it may be running the order."""
    case.admin.flushall()
    first = begun(case.rules, case.order, case.store, case.locks)
    case.admin.setrange(case.key, 20, "damaged")
    assert not repair(case.locks, case.order.lock_name)
    assert case.admin.exists(case.key)
    give_back(first.lease)
    assert repair(case.locks, case.order.lock_name)


@EXAMPLES
@given(data=st.data())
def test_whatever_stands_in_a_row(data: st.DataObject) -> None:
    columns: dict[str, Any] = {
        "key": "k",
        "order_id": "A-1",
        "request": "POST /orders",
        "fingerprint": "f",
        "state": "done",
        "status": 201,
        "headers": dump_headers([("Location", "/orders/1")]),
        "body": b"made",
        "version": 2,
        "expires": 3_600_000_000,
    }
    order = order_of(rules())
    columns["fingerprint"] = order.fingerprint
    columns[data.draw(st.sampled_from(sorted(set(columns) - {"key"})))] = data.draw(values)
    row = [columns[name] for name in (*COLUMNS, "expires")]
    record = recorded([*row, 0])
    assert isinstance(record, Record)
    if record.left > 0:
        answer = judge(order, record)
        assert isinstance(answer, Replay | Refusal)
        assert isinstance(answer, Refusal) or 100 <= answer.snapshot.status < 600
