"""A lost lease says why: expired, broken by whom, or a store that was unreachable since."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from command_line import hold, locks, until

import lockkit
import lockkit.aio
from lockkit.leases.client import LockClient
from lockkit.model.errors import LeaseLost, LockHeld, StoreRefused
from lockkit.testing.conformance.base import at_least_once

BROKEN = r"an operator released it: .*: ticket 7$"


@pytest.fixture(params=["memory", "sqlite", "redis"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LockClient]:
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
    else:
        path = f"{tmp_path}/locks.sqlite3"
        url = {"memory": f"memory://{path}", "sqlite": f"sqlite:///{path}"}[request.param]
    found = lockkit.connect(url)
    yield found
    found.close()


def why(lease: lockkit.Lease) -> str:
    with pytest.raises(LeaseLost) as lost:
        lease.check()
    return str(lost.value)


def break_it(client: LockClient, name: str) -> None:
    assert locks(client, "release", name, "--yes", "--reason", "ticket 7").status == 0


def test_broken_by_whom_as_the_watchdog_hears_of_it(client: LockClient) -> None:
    told = threading.Event()
    lease = client.lock("x", ttl=30, on_lost=lambda _: told.set()).acquire()
    break_it(client, "x")
    lease._hold.due = 0
    client._watchdog._hurry()
    assert told.wait(30)
    until(lambda: "operator" in why(lease))
    assert re.search(
        r"^the lease on 'x' is lost: an operator released it: \S+ uid=\d+.*: ticket 7$", why(lease)
    )
    lease.release()


@pytest.mark.parametrize("how", ["extend", "leave"])
def test_broken_by_whom_as_its_holder_hears_of_it(client: LockClient, how: str) -> None:
    def work() -> None:
        with client.lock("x", ttl=30) as lease:
            break_it(client, "x")
            if how == "extend":
                lease.extend()

    with pytest.raises(LeaseLost, match=BROKEN):
        work()


def test_of_several_names_the_one_that_was_broken(client: LockClient) -> None:
    said = "the lease on 'b' is lost: an operator released it"
    with pytest.raises(LeaseLost, match=said), client.multi("a", "b"):
        break_it(client, "b")


def test_under_asyncio(client: LockClient) -> None:
    async def lose() -> None:
        url = client.settings.location
        async with lockkit.aio.connect(url) as found, found.lock("x", ttl=30):
            await asyncio.to_thread(break_it, client, "x")

    with pytest.raises(LeaseLost, match=BROKEN):
        asyncio.run(lose())


def test_max_hold(client: LockClient) -> None:
    short = LockClient(client.store, client.settings._replace(max_hold=0.2))
    lease = short.lock("x", ttl=1.5).acquire()
    until(lambda: lease.lost)
    assert (
        why(lease) == "the lease on 'x' is lost: it was held for its MAX_HOLD of 0.2 s, and expired"
    )
    lease.release()


@pytest.mark.parametrize("most", [0.15, 600.0])
def test_a_process_that_was_paused(client: LockClient, most: float) -> None:
    """Renewal stops, as in a process that is stopped."""
    limited = LockClient(client.store, client.settings._replace(max_hold=most))
    lease = limited.lock("x", ttl=0.2).acquire()
    limited._watchdog.stop()
    until(lambda: lease.lost)
    assert why(lease).endswith("it expired: its process was paused, or did not renew it in time")
    lease.release()


def test_a_store_that_is_unreachable(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    directory.mkdir()

    def its_renewals_fail() -> bool:
        with lockkit.connect(f"sqlite:///{directory}/locks.sqlite3") as client:
            lease = client.lock("x", ttl=1.5).acquire()
            directory.rename(elsewhere)
            until(lambda: lease.lost)
            told = why(lease)
            elsewhere.rename(directory)
            time.sleep(0.3)  # whoever looks later is told the same
            is_same = told == why(lease)
            lease.release()
            if not is_same:
                return False
        return bool(
            re.search(r"it expired: for \d\.\d s no renewal had succeeded: BackendUnavail", told)
        )

    at_least_once(its_renewals_fail)


def test_a_store_that_refuses_is_not_called_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user may not write any more."""

    def refuse(_: object) -> NoReturn:
        raise StoreRefused("NOPERM: no permission to run 'evalsha'")

    def its_renewals_fail() -> bool:
        with lockkit.connect("memory://refusing") as client:
            lease = client.lock("x", ttl=1.0).acquire()
            with monkeypatch.context() as patched:
                patched.setattr(client.store, "renew", refuse)
                until(lambda: lease.lost)
            told = why(lease)
            lease.release()
        said = r"it expired: for \d\.\d s no renewal had succeeded: StoreRefused: NOPERM: no perm"
        return bool(re.search(said, told))

    at_least_once(its_renewals_fail)


def test_a_record_that_cannot_be_read_is_not_called_unreachable(tmp_path: Path) -> None:
    path = f"{tmp_path}/locks.sqlite3"

    def its_renewals_fail() -> bool:
        with lockkit.connect(f"sqlite:///{path}") as client:
            lease = client.lock("x", ttl=1.0).acquire()
            with closing(sqlite3.connect(path)) as rows, rows:
                rows.execute("UPDATE lockkit_lock SET state = 'cut'")
            until(lambda: lease.lost)
            told = why(lease)
            client.repair("x")
            lease.release()
        return ": DamagedRecord: " in told

    at_least_once(its_renewals_fail)


def test_one_that_was_released_says_so(client: LockClient) -> None:
    lease = client.lock("x").acquire()
    lease.release()
    assert why(lease) == "the lease on 'x' was released"


def test_what_this_thread_holds_itself(client: LockClient) -> None:
    """As in a view that locks the name of its own lock_view once more."""
    with client.lock("stock:42", label="POST /stock/42"):
        with pytest.raises(LockHeld, match="POST /stock/42: that is this thread or task itself"):
            client.lock("stock:42", timeout=0).acquire()
        with pytest.raises(lockkit.AcquireTimeout, match="waiting would never end"):
            client.lock("stock:42", timeout=0.05).acquire()
        said: list[str] = []

        def other() -> None:
            try:
                client.lock("stock:42", timeout=0).acquire()
            except LockHeld as error:
                said.append(str(error))

        for name in (None, threading.current_thread().name):
            thread = threading.Thread(target=other, name=name)
            thread.start()
            thread.join()
    assert "waiting would never end" not in said[0]
    assert "(or one with the same name), so waiting would never end" in said[1]


def test_what_this_task_holds_itself(tmp_path: Path) -> None:
    async def enter_twice() -> None:
        url = f"sqlite:///{tmp_path}/locks.sqlite3"
        async with lockkit.aio.connect(url) as found, found.lock("x"):
            await found.lock("x", timeout=0).acquire()

    with pytest.raises(LockHeld, match="this thread or task itself"):
        asyncio.run(enter_twice())


def test_what_somebody_else_holds(client: LockClient) -> None:
    hold(client, "x")
    with pytest.raises(LockHeld) as held:
        client.lock("x", timeout=0).acquire()
    assert "waiting would never end" not in str(held.value)
