"""A lease that nobody has kept: Python hides its ResourceWarning, so the log says it as well."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import threading
from collections.abc import Callable, Iterator

import pytest
from garbage import collected

import lockkit
from lockkit import aio
from lockkit.testing.conformance.base import eventually

SOON = 60.0
TTL = 1.5
pytestmark = pytest.mark.filterwarnings("ignore:.*was never released:ResourceWarning")


class Heard(logging.Handler):
    """The lines, and the thread of each. It locks as it hears them, as a handler of a user may."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[tuple[str, threading.Thread]] = []
        self.said = threading.Event()
        self.locks: lockkit.LockClient | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.locks is not None:
            with self.locks.lock("log"):
                pass
        self.lines.append((record.getMessage(), threading.current_thread()))
        self.said.set()


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    logging.getLogger("lockkit").addHandler(handler)
    yield handler
    logging.getLogger("lockkit").removeHandler(handler)


@pytest.fixture(params=["memory://dropped", "redis"])
def locks(request: pytest.FixtureRequest) -> Iterator[lockkit.LockClient]:
    url = request.getfixturevalue("redis_url") if request.param == "redis" else request.param
    with lockkit.connect(url, ttl=TTL) as client:
        yield client


def test_the_log_names_it_once(locks: lockkit.LockClient, heard: Heard) -> None:
    heard.locks = locks
    locks.lock("nightly", label="import").acquire()
    collected()
    assert heard.said.wait(SOON)
    with locks.lock("nightly", ttl=SOON, timeout=SOON):
        collected()
    ((line, thread),) = heard.lines
    assert line.startswith("the lease on 'nightly' was never released")
    assert "keep what acquire() returns; it was acquired in MainThread of " in line
    assert line.endswith(" import")
    assert thread is not threading.current_thread()


def test_of_several_each_is_named(locks: lockkit.LockClient, heard: Heard) -> None:
    locks.multi("a", "b").acquire()
    collected()
    eventually(lambda: len(heard.lines) == 2)
    assert sorted(line.split("'")[1] for line, _ in heard.lines) == ["a", "b"]


def test_what_is_released_or_lost_is_not_called_dropped(
    locks: lockkit.LockClient, heard: Heard
) -> None:
    told = threading.Event()
    lost = locks.lock("lost", on_lost=lambda _: told.set()).acquire()
    locks.break_("lost", fence=lost.fencing_token)
    assert told.wait(SOON)
    del lost
    locks.lock("released").acquire().release()
    with locks.lock("block", ttl=SOON):
        pass
    collected()
    locks.lock("nightly").acquire()
    collected()
    assert heard.said.wait(SOON)
    assert [line.split("'")[1] for line, _ in heard.lines] == ["nightly"]


def test_a_lease_that_others_share_is_not_ended(locks: lockkit.LockClient, heard: Heard) -> None:
    lock = locks.lock("stock", reentrant=True, ttl=SOON)
    with lock as outer:
        lock.acquire()
        collected()
        locks.lock("nightly").acquire()
        collected()
        assert heard.said.wait(SOON)
        outer.check()
    assert [line.split("'")[1] for line, _ in heard.lines] == ["nightly"]


async def test_asyncio(request: pytest.FixtureRequest, heard: Heard) -> None:
    async with aio.connect(request.getfixturevalue("redis_url"), ttl=TTL) as locks:
        await locks.lock("nightly").acquire()
        collected()
        assert await asyncio.to_thread(heard.said.wait, SOON)
    ((line, _),) = heard.lines
    assert line.startswith("the lease on 'nightly' was never released")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_lease_is_not_copied(
    locks: lockkit.LockClient, copied: Callable[[lockkit.Lease], object]
) -> None:
    """The end of a copy would be the end of the claim."""
    with locks.lock("stock:42", ttl=SOON).acquire() as lease:
        with pytest.raises(TypeError, match="a lease cannot be copied"):
            copied(lease)
        collected()
        lease.check()
