"""Orders in Redis as the tests make them: claimed, and left behind."""

from __future__ import annotations

import json
from typing import Any

from lockkit.leases.client import LockClient
from lockkit.leases.lease import give_back
from lockkit.orders import (
    Identity,
    Order,
    OrderRequest,
    OrderResponse,
    Orders,
    Payload,
    Proceed,
    drive,
    read_order_settings,
)
from lockkit.orders.redis_records import RedisOrderRecords

MADE = OrderResponse(201, [("Location", "/orders/1"), ("Set-Cookie", "x=1")], b"\x00\xffmade")


def rules(**settings: Any) -> Orders:
    redis = {"PATHS": [], "STORE": "redis", "NAMESPACE": "shop", "WAIT": 0}
    return Orders(read_order_settings({**redis, **settings}))


def order_of(orders: Orders, order_id: str = "A-1", body: bytes = b"{}") -> Order:
    order = orders.identify(
        OrderRequest(
            method="POST",
            path="/orders/",
            route="orders/",
            header={"Idempotency-Key": json.dumps(order_id)}.get,
            media_type="application/json",
            read_payload=lambda: Payload(body=body),
            read_identity=lambda: Identity(user="auth.User:1", session="s3cret"),
        )
    )
    assert isinstance(order, Order)
    return order


def begun(orders: Orders, order: Order, store: RedisOrderRecords, locks: LockClient) -> Proceed:
    decision = drive(orders.admit(order), store, locks)
    assert isinstance(decision, Proceed)
    return decision


def died(decision: Proceed) -> None:
    """As a process that is gone: the lease ends, the claim stays."""
    give_back(decision.lease)


def left_behind(locks: LockClient, order_id: str = "A-1") -> Order:
    """An orphan."""
    orders, store = rules(), RedisOrderRecords(locks)
    order = order_of(orders, order_id)
    died(begun(orders, order, store, locks))
    return order
