"""Extensions of one lease that overtake one another: the session lives as long as the last says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from servers_of_sessions import SERVERS, SessionServer

import lockkit
from lockkit import LockClient
from lockkit.model.errors import TooManySessions
from lockkit.model.types import Request
from lockkit.testing.conformance.base import lasts
from lockkit.testing.conformance.steps import claim, granted
from lockkit.testing.proxy import FaultProxy

SHORT, LONG = 3.0, 60.0


@pytest.fixture(params=SERVERS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[SessionServer]:
    with request.param.of(request) as found:
        yield found


def test_a_reply_that_is_read_late_shortens_nothing(
    server: SessionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass of a watchdog waits for another lease, while a user extends this one for longer."""
    monkeypatch.setattr("lockkit.stores.sessions.pool.GRACE", 0.0)
    with lockkit.connect(f"{server.url}&max_sessions=1") as locks:
        request = claim("a")
        granted(locks, request)
        old = locks.store.extend([request._replace(ttl=SHORT, number=1)])
        reply = locks.store.wire().exchange(next(old))
        extend(locks, request._replace(ttl=LONG, number=2))
        with pytest.raises(StopIteration):
            old.send(reply)
        time.sleep(SHORT + 0.5)
        with pytest.raises(TooManySessions):
            locks.lock("b").acquire(timeout=0)
        extend(locks, request._replace(ttl=LONG, number=3))


def test_one_that_a_later_one_has_overtaken_is_not_sent(server: SessionServer) -> None:
    """The server would end the session by what it hears last."""
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        lockkit.connect(server.through(proxy.port)) as locks,
    ):
        request = claim("a")
        granted(locks, request)
        old = locks.store.extend([request._replace(ttl=SHORT, number=1)])
        exchange = next(old)
        extend(locks, request._replace(ttl=LONG, number=2))
        sent = proxy.requests
        reply = locks.store.wire().exchange(exchange)
        assert proxy.requests == sent
        with pytest.raises(StopIteration) as end:
            old.send(reply)
        assert lasts(locks, end.value.value[0].left, LONG)


def extend(locks: LockClient, request: Request) -> None:
    (renewal,) = locks.perform(locks.store.extend([request]))
    assert lasts(locks, renewal.left, request.ttl)
