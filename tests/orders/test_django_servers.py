"""Orders through real servers: two gunicorn masters or two uvicorn processes, one database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from lockkit.testing.servers import PostgresServer, RedisServer
from lockkit.testing.servers.base import free_port

TESTS = Path(__file__).parent.parent
WSGI = [
    "gunicorn",
    "orders_django.servers:wsgi",
    "--worker-class",
    "gthread",
    "--threads",
    "8",
    "--log-level",
    "warning",
    "--bind",
]
ASGI = [
    "uvicorn",
    "orders_django.servers:asgi",
    "--log-level",
    "warning",
    "--lifespan",
    "off",
    "--port",
]
pytestmark = pytest.mark.timeout(120)


class Answer(NamedTuple):
    status: int
    replayed: bool
    body: bytes


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
    environment = {
        **os.environ,
        "ORDERS_DATABASE": json.dumps(database),
        "ORDERS_LOCKS": locks,
        "ORDERS_DEATH": str(path / "death"),
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "DJANGO_SETTINGS_MODULE": "orders_django.settings",
    }
    environment.pop("LOCKKIT_URL", None)
    migrate = [sys.executable, "-W", "ignore", "-m", "django", "migrate", "--run-syncdb", "-v0"]
    subprocess.run(migrate, env=environment, check=True, timeout=60)
    return environment


@contextmanager
def servers(place: Place, command: list[str], count: int = 2) -> Iterator[list[int]]:
    """Ports of that many independent servers."""
    ports = [free_port() for _ in range(count)]
    with ExitStack() as stack:
        started = [stack.enter_context(_server(place, command, port)) for port in ports]
        for port, process in zip(ports, started, strict=True):
            _wait_for(port, process)
        yield ports


@contextmanager
def _server(place: Place, command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    address = f"127.0.0.1:{port}" if command[-1] == "--bind" else str(port)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *command, address], env=place.environment, cwd=TESTS
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/nothing", timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)  # another process: there is no event to wait for


def buy(port: int, kind: str = "slow", order_id: str = "A-1", token: str = "a") -> Answer:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/orders/{kind}",
        b"{}",
        {
            "Idempotency-Key": order_id,
            "Authorization": f"Token {token}",
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return Answer(
                response.status, "Idempotent-Replayed" in response.headers, response.read()
            )
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, "Idempotent-Replayed" in error.headers, error.read())


def simultaneously(ports: list[int], kind: str, each: int = 5) -> list[Answer]:
    with ThreadPoolExecutor(each * len(ports)) as pool:
        return list(pool.map(lambda port: buy(port, kind), ports * each))


@pytest.mark.parametrize("place", ["sqlite_place", "postgres_place"])
@pytest.mark.parametrize("command", [WSGI, ASGI], ids=["gunicorn", "uvicorn"])
def test_ten_first_requests_at_once_on_two_machines_are_one_order(
    place: str, command: list[str], request: pytest.FixtureRequest
) -> None:
    there: Place = request.getfixturevalue(place)
    with servers(there, command) as ports:
        answers = simultaneously(ports, "slow")
        other = buy(ports[0], "slow", token="b")
    assert [answer.status for answer in answers] == [201] * 10
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 9
    assert len({answer.body for answer in answers}) == 1
    assert (other.status, other.replayed) == (201, False)
    assert (there.count("shop_sale"), there.count("lockkit_order_record")) == (2, 2)


@pytest.mark.parametrize("command", [WSGI, ASGI], ids=["gunicorn", "uvicorn"])
def test_the_unique_key_decides_where_the_locks_do_not(
    command: list[str], lockless_place: Place
) -> None:
    with servers(lockless_place, command) as ports:
        answers = simultaneously(ports, "slow")
    assert [answer.status for answer in answers] == [201] * 10
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 9
    assert len({answer.body for answer in answers}) == 1
    assert lockless_place.count("shop_sale") == 1


def test_a_worker_that_is_killed_in_its_view_leaves_nothing_behind(
    postgres_place: Place, redis_server: RedisServer
) -> None:
    place = postgres_place
    place.environment["ORDERS_WAIT"] = "0.2"
    with servers(place, WSGI) as (first, second):
        with pytest.raises((OSError, urllib.error.URLError)):
            buy(first, "dies")
        assert place.count("shop_sale") == 0
        assert buy(second, "dies").status == 409  # until the lease of the dead one expires
        redis_server.flush()  # as if it had
        answers = [buy(port, "dies") for port in (second, first)]
    assert [(answer.status, answer.replayed) for answer in answers] == [(201, False), (201, True)]
    assert answers[0].body == answers[1].body
    assert (place.count("shop_sale"), place.count("lockkit_order_record")) == (1, 1)
