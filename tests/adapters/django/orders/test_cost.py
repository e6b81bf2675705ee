"""The cost of an order beyond its view, counted in requests to its database and the lock store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import redis
from django.db import connection, connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from orders_django import views

from lockkit.testing.servers import RedisServer

pytestmark = pytest.mark.django_db(transaction=True)

CONTROL = {"BEGIN", "COMMIT", "SAVEPOINT", "RELEASE"}
"""Of transactions; the rest asks for rows or writes them."""


class Cost(NamedTuple):
    queries: list[str]
    control: list[str]
    lock_requests: int


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic-requests"])
def atomic_requests(request: pytest.FixtureRequest) -> Iterator[bool]:
    settings = connections["default"].settings_dict
    before, settings["ATOMIC_REQUESTS"] = settings["ATOMIC_REQUESTS"], request.param
    yield request.param
    settings["ATOMIC_REQUESTS"] = before


@pytest.fixture
def admin(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        client.ping()
        yield client


@pytest.fixture
def locks_in_redis(redis_url: str) -> Iterator[None]:
    with override_settings(LOCKKIT={"default": redis_url}):
        yield


def buy(order_id: str | None, admin: redis.Redis) -> Cost:
    """The first words of what the database was told, and how often Redis was asked."""
    headers = {"Authorization": "Token a"}
    if order_id is not None:
        headers["Idempotency-Key"] = order_id
    before = _reads(admin)
    with CaptureQueriesContext(connection) as queries:
        response = Client(headers=headers).post(
            "/orders/function", b"{}", content_type="application/json"
        )
    assert response.status_code == 201
    words = [query["sql"].split()[0] for query in queries]
    return Cost(
        [word for word in words if word not in CONTROL],
        [word for word in words if word in CONTROL],
        _reads(admin) - before - 1,  # the second look is one itself
    )


def cheapest(costs: list[Cost]) -> Cost:
    """A busy machine may add a handshake."""
    return min(costs, key=lambda cost: cost.lock_requests)


def _reads(admin: redis.Redis) -> int:
    return int(admin.info("stats")["total_reads_processed"])


@pytest.mark.usefixtures("locks_in_redis")
class TestDatabase:
    def test_a_replay_is_one_query_and_nothing_else(
        self, atomic_requests: bool, admin: redis.Redis
    ) -> None:
        buy("a", admin)
        views.calls.clear()
        cost = cheapest([buy("a", admin) for _ in range(3)])
        assert cost == Cost(["SELECT"], [], 0)
        assert views.calls == []

    def test_a_first_request_is_two_queries_and_two_lock_requests_more(
        self, atomic_requests: bool, admin: redis.Redis
    ) -> None:
        """Its transaction is one pair of BEGIN and COMMIT, which is Django's own, if there is
        one."""
        buy(secrets.token_hex(), admin)
        plain = cheapest([buy(None, admin) for _ in range(3)])
        cost = cheapest([buy(secrets.token_hex(), admin) for _ in range(5)])
        assert plain.queries == ["INSERT"]
        assert plain.lock_requests == 0
        assert cost.queries == ["INSERT", *plain.queries, "UPDATE"]
        assert cost.control == ["BEGIN", "COMMIT"]
        assert cost.lock_requests == 2


MANY = 100_000
FILL = f"""
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})
    INSERT INTO lockkit_order
        (key, order_id, request, fingerprint, state, status, headers, body, version, created,
         expires)
    SELECT lower(hex(randomblob(32))), hex(randomblob(8)), 'POST /', '1:x', 'done', 201, '[]',
           x'', 1, 1, 1 FROM n ORDER BY 1
"""


@pytest.mark.usefixtures("locks_in_redis")
def test_many_other_orders_cost_nothing(admin: redis.Redis) -> None:
    """Of each statement on the table of records the database finds its row by the key."""
    with connection.cursor() as cursor:
        cursor.execute(FILL)
        with CaptureQueriesContext(connection) as queries:
            costs = [buy("a", admin) for _ in range(2)]
        assert [cost.queries for cost in costs] == [
            ["INSERT", "INSERT", "UPDATE"],
            ["SELECT"],
        ]
        asked = [q["sql"] for q in queries if "lockkit_order" in q["sql"]]
        assert len(asked) == 3
        for sql in asked:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            assert not any("SCAN" in str(line) for line in cursor.fetchall()), sql


@pytest.mark.usefixtures("locks_in_redis")
class TestRedis:
    @pytest.fixture(autouse=True)
    def claims(self, fresh_orders: None) -> Iterator[None]:
        with override_settings(
            LOCKKIT_ORDERS={"PATHS": [r"^/orders/"], "STORE": "redis", "NAMESPACE": "shop"}
        ):
            yield

    def test_a_replay_is_one_request(self, admin: redis.Redis) -> None:
        buy("a", admin)
        views.calls.clear()
        cost = cheapest([buy("a", admin) for _ in range(3)])
        assert cost == Cost([], [], 1)
        assert views.calls == []

    def test_a_first_request_is_two_and_the_two_of_the_lock(self, admin: redis.Redis) -> None:
        buy(secrets.token_hex(), admin)
        cost = cheapest([buy(secrets.token_hex(), admin) for _ in range(5)])
        assert cost == Cost(["INSERT"], [], 2 + 2)
