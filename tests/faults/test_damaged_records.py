"""Anything may stand where the record of an order was: then its order is not run, and not replayed.

A record of an order says that it may have taken effect; what cannot be read says so as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from claiming import MADE, begun, order_of, rules
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lockkit
from lockkit.leases.client import LockClient
from lockkit.model.errors import LockError
from lockkit.model.types import LockState
from lockkit.orders import Order, Orders, Proceed, Reject, Replay, drive, give
from lockkit.orders.facts import lock_name_of
from lockkit.orders.judging import judge
from lockkit.orders.record import Record, dump_headers, recorded
from lockkit.orders.redis_records import RedisRecords, orphans
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
        self.store = RedisRecords.of(locks)
        self.rules: Orders = rules()
        self.order: Order = order_of(self.rules)
        self.key = Keys("shop").record(lock_name_of(self.order.key))[1]

    def begin(self, *, done: bool) -> None:
        self.admin.flushall()
        first = begun(self.rules, self.order, self.store, self.locks)
        if done:
            drive(self.rules.settle(first, MADE), self.store, self.locks)
        give(first.lease)

    def ask(self) -> Proceed | Replay | Reject | LockError:
        try:
            return drive(self.rules.admit(self.order), self.store, self.locks)
        except LockError as error:
            return error


@pytest.fixture(scope="module")
def case(redis_server: RedisServer) -> Iterator[Case]:
    locks = lockkit.connect(redis_server.url, key_prefix="shop", ttl=30)
    with redis_server.client() as admin:
        yield Case(locks, admin)
        admin.flushall()
    locks.close()


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
    found = [info.state for info in orphans(case.locks)]
    answer = case.ask()
    assert isinstance(answer, Replay | Reject | LockError), "a second run"
    if isinstance(answer, Reject) and answer.code == "order-record-unreadable":
        assert answer.status == 503
        assert done or LockState.DAMAGED in found or LockState.ORPHAN in found


@pytest.mark.parametrize("make", ["lpush", "sadd"])
def test_a_key_of_another_type(case: Case, make: str) -> None:
    case.begin(done=False)
    case.admin.delete(case.key)
    getattr(case.admin, make)(case.key, "something")
    content = sorted(case.admin.keys())
    (info,) = orphans(case.locks)
    assert info.state is LockState.DAMAGED
    assert "cannot be read" in info.damage
    answer = case.ask()
    assert isinstance(answer, Reject)
    assert answer.status == 503
    assert sorted(case.admin.keys()) == content


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
        "left": 3_600_000_000,
    }
    order = order_of(rules())
    columns["fingerprint"] = order.fingerprint
    columns[data.draw(st.sampled_from(sorted(set(columns) - {"key"})))] = data.draw(values)
    record = recorded(columns, columns["left"])
    assert isinstance(record, Record)
    if record.left > 0:
        assert isinstance(judge(order, record), Replay | Reject)
