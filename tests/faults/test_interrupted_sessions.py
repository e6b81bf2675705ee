"""What ends the steps of a claim that has a session with a database server, beside the interrupts
of ``test_interrupts``: an exception of a task's time limit, and a handler that uses the lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from garbage import collected
from interrupted_places import Works, interrupted_everywhere
from interrupted_stores import LONG_TTL, MOMENT, MOST, TTL
from interrupting import TimeLimit
from servers_of_sessions import SERVERS, Kind, SessionServer

import lockkit
from lockkit import Lease, LockClient
from lockkit.model.errors import BackendUnavailable, LockError
from lockkit.testing.conformance.base import eventually

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*was never released:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STORE = "/stores/"


@pytest.fixture(params=SERVERS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[SessionServer]:
    kind: Kind = request.param
    with kind.of(request) as found:
        yield found
        collected()


@pytest.fixture
def locks(server: SessionServer) -> Iterator[LockClient]:
    with lockkit.connect(f"{server.url}&max_sessions=80", ttl=TTL, max_hold=None) as client:
        yield client


@pytest.fixture
def other(server: SessionServer) -> Iterator[LockClient]:
    """Another process, as it were: with sessions of its own."""
    url = f"{server.url}&max_sessions=60"
    with lockkit.connect(url, ttl=LONG_TTL) as client:
        yield client


@pytest.fixture
def works(locks: LockClient) -> Iterator[Works]:
    with ThreadPoolExecutor(2) as threads:
        yield Works(locks, threads)


def test_an_extension_that_a_time_limit_ends(
    locks: LockClient, server: SessionServer, works: Works
) -> None:
    """A lease whose session did not survive the interrupt is lost, and says so."""
    kept: list[Lease] = []

    def step(at: int) -> Callable[[], object]:
        if kept:
            lease = kept.pop()
            assert lease.release() or lease.lost
        kept.append(locks.lock(f"e{at}", ttl=LONG_TTL).acquire())
        return kept[-1].extend

    assert interrupted_everywhere(step, works, STORE, kind=TimeLimit).places > 40
    kept.pop().release()
    nothing_is_held(server, "e")


def test_an_extension_of_a_lease_that_the_handler_of_a_signal_gives_back(
    locks: LockClient, server: SessionServer, works: Works
) -> None:
    """Nobody waits for the step in which the handler was called."""
    kept: list[Lease] = []

    def step(at: int) -> Callable[[], object]:
        if kept and not kept[0].released:  # nothing called the handler
            kept[0].release()
        kept[:] = [locks.lock(f"h{at}", ttl=LONG_TTL).acquire()]
        return extend

    def extend() -> None:
        with suppress(LockError):
            kept[0].extend()

    def handle() -> None:
        with suppress(BackendUnavailable):
            kept[0].release()

    assert interrupted_everywhere(step, works, STORE, handle).places > 40
    kept.pop().release()
    nothing_is_held(server, "h")


def test_a_wait_that_a_time_limit_ends(
    locks: LockClient, other: LockClient, server: SessionServer, works: Works
) -> None:
    with other.lock("v").acquire():
        assert server.locked(["v"])
        lock = locks.lock("v", ttl=LONG_TTL)

        def wait() -> None:
            with pytest.raises(lockkit.AcquireTimeout):
                lock.acquire(MOMENT)

        assert interrupted_everywhere(lambda _: wait, works, STORE, kind=TimeLimit).places > 40
        eventually(lambda: not server.waiters())
    nothing_is_held(server, "v")


def nothing_is_held(server: SessionServer, prefix: str) -> None:
    """Some TTLs later; and no session waits."""
    names = [prefix, *(f"{prefix}{number}" for number in range(1, MOST))]
    eventually(lambda: not server.locked(names))
    assert not server.waiters()
