"""Clients of event loops, which come and go: a WSGI server makes one for each async view."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from forking import in_child
from garbage import collected
from interrupting import Interrupting

from lockkit import aio
from lockkit.aio import AsyncLockClient
from lockkit.model.clock import now
from lockkit.model.errors import ConfigurationError
from lockkit.per_loop import PerLoop

SOON = 30.0
TTL = 60.0


def run_and_close(scene: Coroutine[None, None, None]) -> None:
    """As a server that does not do what asyncio.run does in the end."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(scene)
    loop.close()


def run_by_uvloop(scene: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=pytest.importorskip("uvloop").new_event_loop) as runner:
        runner.run(scene)


@pytest.mark.parametrize(
    ("run", "store"),
    [
        (run_and_close, "memory"),  # of an open connection, asyncio itself complains there
        *((run, store) for run in (asyncio.run, run_by_uvloop) for store in ("memory", "redis")),
    ],
)
def test_a_loop_that_has_ended_is_forgotten_with_its_client(
    run: Callable[..., None], store: str, request: pytest.FixtureRequest
) -> None:
    url = "memory://per-loop" if store == "memory" else request.getfixturevalue("redis_url")
    clients: PerLoop[AsyncLockClient] = PerLoop(lambda _: aio.connect(url))
    ended: list[weakref.ref[object]] = []

    async def scene() -> None:
        async with clients["default"].lock("stock:42"):
            assert clients["default"] is clients["default"]
        ended.append(weakref.ref(asyncio.get_running_loop()))
        ended.append(weakref.ref(clients["default"]))

    for _ in range(4):
        run(scene())
    collected()
    assert not [found for found in ended[:-2] if found() is not None]


FIRST_CALLS = """
import asyncio, gc, threading
from lockkit import locked

together = threading.Barrier(8)

@locked("stock:{sku}")
async def sell(sku):
    pass

async def scene(sku):
    together.wait()
    await sell(sku)
    await sell(sku)
    together.wait()
    if sku == 0:
        from lockkit.aio import AsyncLockClient
        gc.collect()
        print(sum(isinstance(each, AsyncLockClient) for each in gc.get_objects()))
    together.wait()

threads = [threading.Thread(target=lambda sku=sku: asyncio.run(scene(sku))) for sku in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_first_calls_of_several_loops_make_one_client_in_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKKIT_URL", "memory://")
    program = [sys.executable, "-c", FIRST_CALLS]
    assert subprocess.check_output(program, text=True) == "8\n"


def test_a_client_is_refused_in_another_loop() -> None:
    """Nobody would renew its leases there; also if its own loop has ended."""
    client = aio.connect("memory://")
    lock = client.lock("stock:42", reentrant=True)

    async def scene() -> None:
        async with lock, lock:
            pass

    async def refused() -> None:
        with pytest.raises(ConfigurationError, match="PerLoop"):
            await lock.acquire()

    asyncio.run(scene())
    asyncio.run(refused())
    assert asyncio.run(client.inspect("stock:42")) is None


@pytest.mark.parametrize("store", ["memory", "redis"])
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of the loop that ended
@pytest.mark.filterwarnings("ignore:loop is closed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lease_is_used_in_its_own_loop_only(store: str, request: pytest.FixtureRequest) -> None:
    """Elsewhere it would take the replies of others, and stop their renewal."""
    url = "memory://" if store == "memory" else request.getfixturevalue("redis_url")
    use_in_two_loops(url, refuses_all=store == "redis")
    collected()


def use_in_two_loops(url: str, *, refuses_all: bool) -> None:
    client = aio.connect(url, ttl=TTL)
    own = asyncio.new_event_loop()
    lease = own.run_until_complete(client.lock("stock:42").acquire())

    async def refused(use: Callable[[], Coroutine[None, None, object]]) -> None:
        with pytest.raises(ConfigurationError, match="event loop"):
            await use()

    several = own.run_until_complete(client.multi("a", "b").acquire())
    uses = lease.release, lease.downgrade, lambda: several.__aexit__(None, None, None)
    for use in (lambda: lease.extend(5), *uses):
        asyncio.run(refused(use))
    if refuses_all:
        asyncio.run(refused(lambda: client.inspect("stock:42")))
    own.run_until_complete(lease.extend())
    assert own.run_until_complete(lease.release()) is True
    assert own.run_until_complete(several.release()) is True
    late = own.run_until_complete(client.lock("late").acquire())
    own.close()
    assert asyncio.run(late.release()) is True
    assert asyncio.run(client.inspect("stock:42")) is None
    asyncio.run(client.close())


LOOP_AFTER_LOOP = """
import asyncio, sys
from lockkit import aio

client = aio.connect(sys.argv[1])
for _ in range(3):
    asyncio.run(client.inspect("stock:42"))
asyncio.run(client.close())
"""


def test_a_connection_of_a_loop_that_has_ended_is_left_quietly(redis_url: str) -> None:
    """The destructor of redis-py's would fail, and Python would print that."""
    program = [sys.executable, "-c", LOOP_AFTER_LOOP, redis_url]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_forked_child_goes_on_with_the_client_in_a_loop_of_its_own(
    store: str, redis_url: str, tmp_path: Path
) -> None:
    """Neither the tasks and threads of its parent are there, nor are the sockets its own."""
    url = redis_url if store == "redis" else f"sqlite:///{tmp_path}/locks.sqlite3"
    client = aio.connect(url, ttl=TTL)

    async def of_the_child() -> None:
        assert lease.lost
        async with client.lock("of the child") as own:
            await renewed(client, own)
        assert await client.lock("of the parent").try_acquire() is None

    with asyncio.Runner() as loop:
        lease = loop.run(client.lock("of the parent").acquire())
        loop.run(renewed(client, lease))
        in_child(lambda: asyncio.run(of_the_child()))
        loop.run(renewed(client, lease))
        assert loop.run(lease.release())
        loop.run(client.close())


async def renewed(client: AsyncLockClient, lease: aio.AsyncLease) -> None:
    """Now, and by the watchdog."""
    before = lease._hold.deadline
    lease._hold.due = now()
    client._watchdog._hurry()
    async with asyncio.timeout(SOON):
        while lease._hold.deadline <= before:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.001)


async def test_one_that_was_forgotten_by_others_is_closed_by_its_loop() -> None:
    clients: PerLoop[AsyncLockClient] = PerLoop(lambda _: aio.connect("memory://per-loop"))
    first = clients["default"]
    clients.clear()
    assert clients["default"] is not first
    async with clients["default"].lock("stock:42"):
        pass


def test_a_signal_handler_gets_the_client_that_is_being_made() -> None:
    """It runs in the thread of the loop, wherever that is."""
    clients: PerLoop[AsyncLockClient] = PerLoop(lambda _: aio.connect("memory://per-loop"))
    loops = []  # those that have ended are forgotten meanwhile

    async def scene(at: int) -> str:
        loops.append(asyncio.get_running_loop())
        found = []

        def handler() -> None:
            found.append(clients["default"])

        with Interrupting(at, "per_loop.py", handler) as interrupting:
            found.append(clients["default"])
        assert {*found} == {clients["default"]}
        return interrupting.where

    places = [*itertools.takewhile(bool, (asyncio.run(scene(at)) for at in itertools.count(1)))]
    assert any("_begin" in place for place in places)
