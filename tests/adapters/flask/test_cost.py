"""The cost of an order beyond its view, counted in requests to its database and the lock store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import pytest
import redis
import sqlalchemy as sa
from flask import Flask
from flask_project import Order, db

from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import PostgresServer, RedisServer

ORDERS = {"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/"]}
SAVEPOINTS = ("SAVEPOINT", "RELEASE", "ROLLBACK")
CONTROL = ("begin", "commit", "rollback", "savepoint", "release_savepoint", "rollback_savepoint")


class Cost(NamedTuple):
    queries: list[str]
    control: list[str]
    lock_requests: int


class Meter:
    """One app, its database, and its locks in Redis."""

    def __init__(self, app: Flask, admin: redis.Redis) -> None:
        self.app = app
        self._admin = admin
        self._heard: list[str] = []
        with app.app_context():
            for name in CONTROL:
                sa.event.listen(db.engine, name, self._note(name))
            sa.event.listen(db.engine, "before_cursor_execute", self._query)

    def buy(self, order_id: str | None = None, view: str = "one") -> Cost:
        headers = {"X-User": "alice"}
        if order_id is not None:
            headers["X-Order-ID"] = order_id
        self._heard.clear()
        before = self._reads()
        response = self.app.test_client().post(f"/{view}", headers=headers)
        assert response.status_code == 201
        requests = self._reads() - before - 1  # the second look is one itself
        heard = self._heard
        return Cost(
            [word for word in heard if word not in CONTROL],
            [word for word in heard if word in CONTROL],
            requests,
        )

    def cheapest(self, buy: Callable[[], Cost]) -> Cost:
        """A busy machine may add a handshake."""
        return min((buy() for _ in range(5)), key=lambda cost: cost.lock_requests)

    def sold(self) -> int:
        with self.app.app_context():
            return int(db.session.scalar(sa.select(sa.func.count()).select_from(Order)) or 0)

    def _reads(self) -> int:
        return int(self._admin.info("stats")["total_reads_processed"])

    def _query(self, *arguments: Any) -> None:
        word = arguments[2].split()[0]
        if word not in SAVEPOINTS:  # heard as an event, too
            self._heard.append(word)

    def _note(self, name: str) -> Callable[..., None]:
        return lambda *_: self._heard.append(name)


Measured = Callable[..., AbstractContextManager[Meter]]


@pytest.fixture
def measured(
    make_shop: Callable[..., Flask], redis_url: str, redis_server: RedisServer
) -> Measured:
    @contextmanager
    def make(**orders: Any) -> Iterator[Meter]:
        app = make_shop(LOCKKIT_URL=redis_url, LOCKKIT_ORDERS={**ORDERS, **orders})
        with redis_server.client() as admin:
            admin.ping()
            yield Meter(app, admin)

    return make


@pytest.fixture(params=["database", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_replay_is_one_request_and_no_view(measured: Measured, store: str) -> None:
    with measured(STORE=store, NAMESPACE="shop") as meter:
        meter.buy("a")
        sold = meter.sold()
        cost = meter.cheapest(lambda: meter.buy("a"))
        assert meter.sold() == sold
    assert (cost.queries, cost.lock_requests) == (
        (["SELECT"], 0) if store == "database" else ([], 1)
    )


def test_the_look_up_has_no_transaction_around_it(
    measured: Measured, database: str, postgres_server: PostgresServer
) -> None:
    """Which would be two more requests: PostgreSQL knows what each session said last."""
    if not database.startswith("postgresql"):
        return  # in SQLite nothing is sent
    mine = f"datname = '{database.rpartition('/')[2]}'"

    def last_queries() -> str:
        return postgres_server.execute(f"SELECT query FROM pg_stat_activity WHERE {mine}")

    with measured() as meter:
        meter.buy("a")
        with meter.app.app_context():
            db.engine.dispose()
        eventually(lambda: not last_queries())  # the sessions of before
        meter.buy("a")
        said = last_queries()
    assert "FROM lockkit_order" in said
    assert "ROLLBACK" not in said


def test_a_first_request_is_two_queries_and_two_lock_requests_more(
    measured: Measured, database: str
) -> None:
    """Its transaction is one more pair of BEGIN and COMMIT: the view's own becomes a savepoint."""
    with measured() as meter:
        meter.buy("warm")
        plain = meter.cheapest(meter.buy)
        cost = meter.cheapest(lambda: meter.buy(secrets.token_hex()))
    assert plain == Cost(["INSERT", "SELECT"], ["begin", "commit", "begin", "rollback"], 0)
    end = "UPDATE" if database.startswith("sqlite") else "INSERT"
    assert cost.queries == ["INSERT", *plain.queries, end]
    assert cost.control.count("commit") == 1
    assert cost.lock_requests == 2


def test_a_first_claim_is_two_requests_and_the_two_of_the_lock(measured: Measured) -> None:
    with measured(STORE="redis", NAMESPACE="shop") as meter:
        meter.buy("warm")
        plain = meter.cheapest(meter.buy)
        cost = meter.cheapest(lambda: meter.buy(secrets.token_hex()))
    assert (cost.queries, cost.lock_requests) == (plain.queries, 2 + 2)
