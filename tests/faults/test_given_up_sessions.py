"""Claims of session locks that are given up: in time, and with nothing left at the server."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from servers_of_sessions import ADVISORY, ROW, SessionServer

import lockkit
from lockkit.model.types import Mode
from lockkit.testing import blocking
from lockkit.testing.conformance.base import SOON, eventually
from lockkit.testing.conformance.steps import claim, granted
from lockkit.testing.protocols import AnyClient

TTL = 6.0
LONG = 30.0
TIMEOUT = 4.0
"""Seconds of a waiter that is seen in the queue of the server before they are over."""

HANGS = 20.0
"""Seconds."""

Connect = Callable[[str], AnyClient]

on_postgresql = pytest.mark.parametrize(
    "server", [ADVISORY, ROW], indirect=True, ids=lambda kind: kind.name
)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[SessionServer]:
    with request.param.of(request) as found:
        yield found


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(url: str) -> AnyClient:
            client: Any = blocking.connect(request.param, url, ttl=LONG)
            stack.callback(client.stop if request.param == "async" else client.close)
            return client  # type: ignore[no-any-return]

        yield make


@pytest.fixture
def other(server: SessionServer) -> Iterator[lockkit.LockClient]:
    """Another process, as it were: with sessions of its own."""
    with lockkit.connect(f"{server.url}&max_sessions=5", ttl=LONG) as client:
        yield client


@pytest.fixture
def _old_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 17."""
    monkeypatch.setattr(psycopg.capabilities, "has_cancel_safe", lambda: False)


@on_postgresql
@pytest.mark.usefixtures("_old_libpq")
def test_a_waiter_gives_up_in_time_at_a_server_that_hangs(
    server: SessionServer, connect: Connect, other: lockkit.LockClient
) -> None:
    """And it holds up nobody else in its process."""
    lock = connect(server.url).lock("a")
    with (
        ThreadPoolExecutor() as threads,
        lockkit.connect("memory://", ttl=TTL) as memory,
        memory.lock("elsewhere") as elsewhere,
        other.lock("a"),
    ):
        waiting = threads.submit(lock.acquire, TIMEOUT)
        eventually(server.waiters)
        with hanging(server) as hangs:
            assert isinstance(waiting.exception(HANGS + SOON), lockkit.AcquireTimeout)
            assert hangs()
            assert not elsewhere.lost


@on_postgresql
@pytest.mark.usefixtures("_old_libpq")
def test_with_an_old_libpq_too_a_waiter_that_gives_up_leaves_the_queue(
    server: SessionServer, connect: Connect, other: lockkit.LockClient
) -> None:
    """At once, and its session is kept for the next."""
    client, waiting = connect(server.url), claim("a", Mode.ENQUEUE)
    with other.lock("a"):
        client.perform(client.store.acquire(waiting))
        eventually(server.waiters)
        sessions = server.pids()
        client.perform(client.store.release(waiting._replace(queued=True)))
        assert not server.waiters()
    granted(client, claim("a"))
    assert server.pids() == sessions


@contextmanager
def hanging(server: SessionServer) -> Iterator[Callable[[], bool]]:
    """Whether it still hangs. Another process lets it go on, because this one may be frozen."""
    resume = f"os.kill({server.server.pid}, {signal.SIGCONT})"
    program = f"import os, time; time.sleep({HANGS}); {resume}"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        server.server.pause()
        try:
            yield lambda: process.poll() is None
        finally:
            server.server.resume()
            process.kill()
