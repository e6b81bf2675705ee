"""Orders through real servers: two gunicorn masters or two uvicorn processes, one database."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from orders_django.running import Answer, Machine, environment, machines, migrate

from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.timeout(120)


class Place(NamedTuple):
    """Where the servers of a test keep things: the environment of their processes."""

    environment: dict[str, str]
    count: Callable[[str], int]


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    """One SQLite file, and lockkit's locks in another: nothing but files."""
    path = tmp_path / "shop.sqlite3"
    options = {"transaction_mode": "IMMEDIATE", "timeout": 20}
    database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": options,
        "ATOMIC_REQUESTS": True,
    }

    def count(table: str) -> int:
        import sqlite3

        connection = sqlite3.connect(path)
        try:
            return int(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])
        finally:
            connection.close()

    return Place(_environment(database, f"sqlite:///{tmp_path}/locks.sqlite3", tmp_path), count)


@pytest.fixture
def postgres_place(
    postgres_url: str, postgres_server: PostgresServer, redis_url: str, tmp_path: Path
) -> Place:
    """PostgreSQL, and locks in Redis."""
    return _postgres_place(postgres_url, postgres_server, redis_url, tmp_path)


@pytest.fixture
def lockless_place(postgres_url: str, postgres_server: PostgresServer, tmp_path: Path) -> Place:
    """PostgreSQL, and each process with locks that only it knows of."""
    return _postgres_place(postgres_url, postgres_server, "memory://", tmp_path)


def _postgres_place(url: str, server: PostgresServer, locks: str, path: Path) -> Place:
    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
    return Place(
        _environment(database, locks, path),
        lambda table: int(server.execute(f"SELECT COUNT(*) FROM {table}", url).split()[-1]),
    )


def _environment(database: dict[str, Any], locks: str, path: Path) -> dict[str, str]:
    made = environment(database, locks, path, WAIT=60)
    migrate(made)
    return made


def simultaneously(two: list[Machine], each: int = 5) -> list[Answer]:
    with ThreadPoolExecutor(each * len(two)) as pool:
        return list(pool.map(lambda machine: machine.send("/orders/slow"), two * each))


@pytest.mark.parametrize(
    ("place", "server"), [("sqlite_place", "gunicorn"), ("postgres_place", "uvicorn")]
)
def test_ten_first_requests_at_once_on_two_machines_are_one_order(
    place: str, server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    there: Place = request.getfixturevalue(place)
    with machines(server, *[there.environment] * 2, home=tmp_path) as two:
        answers = simultaneously(two)
        other = two[0].send("/orders/slow", token="Token b")
    assert [answer.status for answer in answers] == [201] * 10
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 9
    assert len({answer.body for answer in answers}) == 1
    assert (other.status, other.replayed) == (201, False)
    assert (there.count("shop_sale"), there.count("lockkit_order")) == (2, 2)


def test_the_unique_key_decides_where_the_locks_do_not(
    lockless_place: Place, tmp_path: Path
) -> None:
    with machines("uvicorn", *[lockless_place.environment] * 2, home=tmp_path) as two:
        answers = simultaneously(two)
    assert [answer.status for answer in answers] == [201] * 10
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 9
    assert len({answer.body for answer in answers}) == 1
    assert lockless_place.count("shop_sale") == 1


def test_a_worker_that_is_killed_in_its_view_leaves_nothing_behind(
    postgres_place: Place, redis_server: RedisServer, tmp_path: Path
) -> None:
    place = postgres_place
    place.environment["ORDERS_SETTINGS"] = '{"WAIT": 0}'
    with machines("gunicorn", *[place.environment] * 2, home=tmp_path) as (first, second):
        with pytest.raises((OSError, http.client.HTTPException)):
            first.send("/orders/dies")
        assert place.count("shop_sale") == 0
        assert second.send("/orders/dies").status == 409  # until the dead one's lease expires
        redis_server.flush()  # as if it had
        eventually(lambda: place.count("pg_stat_activity WHERE state LIKE 'idle in%'") == 0)
        answers = [machine.send("/orders/dies") for machine in (second, first)]
    assert [(answer.status, answer.replayed) for answer in answers] == [(201, False), (201, True)]
    assert answers[0].body == answers[1].body
    assert (place.count("shop_sale"), place.count("lockkit_order")) == (1, 1)
