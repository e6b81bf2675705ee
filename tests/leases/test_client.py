"""Clients, locks and leases where the store does not matter; errors as values."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any

import pytest
from garbage import collected
from interrupting import Interrupting
from steps import Steps

import lockkit
from lockkit import aio
from lockkit.engine import state
from lockkit.leases.client import Clients
from lockkit.model import errors
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Grant, Mode, Owner, Request
from lockkit.runtime import process
from lockkit.stores.registry import load_store
from lockkit.testing.conformance.base import eventually

ERRORS = [
    getattr(errors, name)
    for name in vars(errors)
    if isinstance(getattr(errors, name), type) and issubclass(getattr(errors, name), Exception)
]


LOOP_STANDS_STILL = """
import asyncio
import lockkit

async def main():
    locks = lockkit.connect("memory://")
    with locks.lock("free"), locks.lock("busy"):
        for _ in range(2):
            print("asks", flush=True)
            try:
                locks.lock("busy", timeout=0.05).acquire()
            except lockkit.AcquireTimeout:
                pass

asyncio.run(main())
"""


def test_a_blocking_lock_that_stops_an_event_loop_is_warned_of_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOP_STANDS_STILL], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("in a coroutine use lockkit.aio") == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["stock:{sku}", "{sku:int}:stock", "stock:{form.sku}"])
def test_a_name_that_looks_like_a_template_is_warned_of(name: str) -> None:
    client = lockkit.connect("memory://")
    for make in (client.lock, client.rwlock, lambda name: client.semaphore(name, 2)):
        with pytest.warns(RuntimeWarning, match="taken as it is") as told:
            make(name)
        assert {warning.filename for warning in told} == {__file__}
    for plain in ("stock:{}", 'stock:{"a": 1}', "{a b}", "a}b{c"):
        client.lock(plain)


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_pickle_with_what_they_carry(kind: type[errors.LockError]) -> None:
    error = kind("it is so", name="stock:42")
    if isinstance(error, errors.AcquireTimeout):
        error.waited, error.retry_after = 1.5, 7
        error.holder = Owner("web-1", 4121, "MainThread", "POST /stock/42")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.name) == ("it is so", "stock:42")
    assert vars(again) == vars(error)


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_are_importable_and_in_the_tree(kind: type[errors.LockError]) -> None:
    assert issubclass(kind, lockkit.LockError)
    assert getattr(lockkit, kind.__name__) is kind
    assert kind.__name__ in lockkit.__all__


def test_errors_are_what_people_catch() -> None:
    assert issubclass(lockkit.AcquireTimeout, TimeoutError)
    assert issubclass(lockkit.ConfigurationError, ValueError)
    assert issubclass(lockkit.DriverMissing, ImportError)
    assert not issubclass(lockkit.LeaseLost, lockkit.BackendError)


def test_every_public_name_is_there() -> None:
    for name in lockkit.__all__:
        assert hasattr(lockkit, name)


def test_a_token_is_shown_by_nothing() -> None:
    locks = lockkit.connect("memory://")
    with locks.lock("a").acquire() as lease:
        request = Request("a", lease.token, 1.0, "owner")
        shown = f"{lease!r}{locks!r}{locks.lock('a')!r}{request!r}{Grant(lease.token, 1, 1.0)!r}"
        shown += repr(locks.inspect("a"))
        assert lease.token not in shown
        with pytest.raises(lockkit.LockHeld) as caught:
            locks.lock("a", timeout=0).acquire()
        assert lease.token not in repr(vars(caught.value)) + str(caught.value)


def test_a_lock_is_entered_by_many_threads_at_once() -> None:
    """It is a description: what is held is in the leases."""
    lock = lockkit.connect("memory://").lock("a", timeout=10)
    seen = []

    def enter() -> None:
        with lock as lease:
            seen.append(lease.fencing_token)

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 8
    assert seen == sorted(seen)


def test_a_lock_may_be_used_again_after_an_error() -> None:
    lock = lockkit.connect("memory://").lock("a", timeout=0)
    with pytest.raises(KeyError), lock:
        raise KeyError
    with lock as lease:
        lease.check()


def test_a_mutex_is_not_entered_twice() -> None:
    lock = lockkit.connect("memory://").lock("a", timeout=0)
    with lock, pytest.raises(lockkit.LockHeld), lock:
        pytest.fail("entered twice")
    with lock as lease:
        lease.check()


def test_a_lease_that_nobody_references_warns_and_expires() -> None:
    locks = lockkit.connect("memory://", ttl=0.2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        locks.lock("a", label="nightly report").acquire()
        collected()
    assert [w.category for w in caught] == [ResourceWarning]
    assert "'a'" in str(caught[0].message)
    assert "never released; it was acquired in MainThread of " in str(caught[0].message)
    assert "nightly report" in str(caught[0].message)
    assert locks.lock("a", timeout=10).acquire().release()


def test_a_lease_may_be_released_by_another_thread() -> None:
    locks = lockkit.connect("memory://")
    lease = locks.lock("a").acquire()
    thread = threading.Thread(target=lease.release)
    thread.start()
    thread.join()
    assert lease.lost
    assert locks.inspect("a") is None


@contextmanager
def _holding(lock: lockkit.Lock) -> Iterator[lockkit.Lease]:
    with lock as lease:
        yield lease


def test_a_block_may_be_left_by_another_thread() -> None:
    """Of a pool: it runs the two halves of a generator wherever there is room."""
    locks = lockkit.connect("memory://")
    holding = _holding(locks.lock("a"))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        lease = one.submit(holding.__enter__).result()
        other.submit(holding.__exit__, None, None, None).result()
    assert lease.released
    assert locks.inspect("a") is None


async def test_a_block_may_be_left_by_another_task() -> None:
    locks = aio.connect("memory://")

    async def held() -> AsyncIterator[aio.AsyncLease]:
        async with locks.lock("a") as lease:
            yield lease

    steps = held()
    lease = await asyncio.create_task(anext(steps))
    with pytest.raises(StopAsyncIteration):
        await asyncio.create_task(anext(steps))
    assert lease.released
    await locks.close()


def test_each_block_over_one_lock_leaves_its_own_lease() -> None:
    """They need not end in the order in which they began, as those of generators do not."""
    locks = lockkit.connect("memory://")
    stock = locks.rwlock("stock:42")
    outer, inner = _holding(stock.read()), stock.read()
    first = outer.__enter__()
    with inner as second:
        outer.__exit__(None, None, None)
        assert (first.released, second.lost) == (True, False)
    assert second.released
    assert locks.inspect("stock:42") is None


async def test_each_block_of_a_task_over_one_lock_leaves_its_own_lease() -> None:
    locks = aio.connect("memory://")
    stock = locks.rwlock("stock:42").read()

    async def held() -> AsyncIterator[aio.AsyncLease]:
        async with stock as lease:
            yield lease

    steps = held()
    first = await anext(steps)
    async with stock as second:
        with pytest.raises(StopAsyncIteration):
            await anext(steps)
        assert (first.released, second.lost) == (True, False)
    await locks.close()


SHARED: dict[str, Callable[[Any], Any]] = {
    "semaphore": lambda locks: locks.semaphore("a", 2),
    "reader": lambda locks: locks.rwlock("a").read(),
    "reentrant": lambda locks: locks.lock("a", reentrant=True),
    "several": lambda locks: locks.multi("a", "b", kind="read"),
}
"""Locks that two hold at once."""


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_each_stack_over_one_lock_leaves_its_own_lease(
    shared: Callable[[lockkit.LockClient], lockkit.Lock],
) -> None:
    """They need not be closed in the opposite order, as nested blocks are."""
    locks = lockkit.connect("memory://")
    lock, one, two = shared(locks), ExitStack(), ExitStack()
    first, second = one.enter_context(lock), two.enter_context(lock)
    one.close()
    assert (first.released, second.lost) == (True, False)
    two.close()
    assert second.released
    assert list(locks.holders()) == []


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
async def test_each_stack_of_a_task_over_one_lock_leaves_its_own_lease(
    shared: Callable[[aio.AsyncLockClient], aio.AsyncLock],
) -> None:
    async with aio.connect("memory://") as locks:
        lock, one, two = shared(locks), AsyncExitStack(), AsyncExitStack()
        first = await one.enter_async_context(lock)
        second = await two.enter_async_context(lock)
        await one.aclose()
        assert (first.released, second.lost) == (True, False)
        await two.aclose()
        assert second.released
        assert [info async for info in locks.holders()] == []


def test_a_stack_that_has_lost_its_lease_leaves_that_of_the_next_holder() -> None:
    locks = lockkit.connect("memory://")
    lock, one, two = locks.lock("a", timeout=0), ExitStack(), ExitStack()
    first = one.enter_context(lock)
    assert locks.break_("a", fence=first.fencing_token)
    second = two.enter_context(lock)
    with pytest.raises(lockkit.LeaseLost):
        one.close()
    second.check()
    two.close()
    assert locks.inspect("a") is None


def test_a_stack_hands_its_lease_on() -> None:
    lock = lockkit.connect("memory://").semaphore("a", 2)
    with ExitStack() as stack, lock as other:
        lease = stack.enter_context(lock)
        last = stack.pop_all()
    assert (lease.lost, other.released) == (False, True)
    last.close()
    assert lease.released


def test_a_stack_may_be_closed_by_another_thread() -> None:
    locks = lockkit.connect("memory://")
    lock, stacks = locks.semaphore("a", 2), [ExitStack(), ExitStack()]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        first = one.submit(stacks[0].enter_context, lock).result()
        second = other.submit(stacks[1].enter_context, lock).result()
        other.submit(stacks[0].close).result()
        assert (first.released, second.lost) == (True, False)
        one.submit(stacks[1].close).result()
    assert locks.inspect("a") is None


async def test_a_stack_may_be_closed_by_another_task() -> None:
    async with aio.connect("memory://") as locks:
        lock, stacks = locks.semaphore("a", 2), [AsyncExitStack(), AsyncExitStack()]
        entering = [asyncio.create_task(each.enter_async_context(lock)) for each in stacks]
        first, second = await asyncio.gather(*entering)
        await asyncio.create_task(stacks[0].aclose())
        assert (first.released, second.lost) == (True, False)
        await asyncio.create_task(stacks[1].aclose())
        assert await locks.inspect("a") is None


def test_a_stack_leaves_what_was_entered_before_it() -> None:
    locks = lockkit.connect("memory://")
    leases = []
    with ExitStack() as stack:
        for lock in map(locks.lock, "ab"):
            leases.append(lock.__enter__())
            stack.push(lock)
        other = locks.lock("c").__enter__()  # nothing leaves this one
    assert [lease.released for lease in leases] == [True, True]
    assert other.release()


def test_a_stack_that_is_dropped_keeps_no_lease() -> None:
    """As after an interrupt that comes before it has noted what it has entered."""
    locks = lockkit.connect("memory://", ttl=0.2)
    lock, stack = locks.lock("a"), ExitStack()
    stack.enter_context(lock)
    del stack
    collected()
    assert locks.lock("a", timeout=10).acquire().release()


def test_nobody_leaves_what_nobody_has_entered() -> None:
    lock = lockkit.connect("memory://").lock("a", timeout=0)
    with pytest.raises(RuntimeError, match="no others have entered"):
        lock.__exit__(None, None, None)


def test_a_retry_comes_after_the_usual_hold_time() -> None:
    locks = lockkit.connect("memory://", ttl=3600.0)
    locks.note_hold("a", 4.2)
    with locks.lock("a").acquire(), pytest.raises(lockkit.LockHeld) as caught:
        locks.lock("a", timeout=0).acquire()
    assert caught.value.retry_after == 5
    with locks.lock("b").acquire(), pytest.raises(lockkit.LockHeld) as caught:
        locks.lock("b", timeout=0).acquire()
    assert caught.value.retry_after == 1


def test_hold_times_do_not_fill_the_memory() -> None:
    locks = lockkit.connect("memory://")
    for number in range(5000):
        locks.note_hold(str(number), 1.0)
    assert len(locks._held_for) <= 1024


def test_the_memory_of_a_released_name_is_given_back() -> None:
    locks = lockkit.connect("memory://")
    for number in range(100):
        locks.lock(f"a:{number}").acquire().release()
    assert not locks.store._states  # type: ignore[attr-defined]


def test_the_memory_of_abandoned_names_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """They expired, and nobody asks for them again; the dead in a queue count no longer."""
    monkeypatch.setattr(state, "GRACE_SECONDS", 0)
    backend = Steps(load_store(settings_from_url("memory://")))
    ask = Request("", "", 0.01, "owner", Mode.ENQUEUE)
    for number in range(50):
        for token in ("holder", "waiter"):
            backend.acquire(ask._replace(name=f"old:{number}", token=f"{token}:{number}"))
    kept = ask._replace(name="kept", token="kept", ttl=600.0)
    backend.acquire(kept)
    eventually(lambda: all(not info.waiters_alive for info in backend.holders()))
    for number in range(60):
        fresh = ask._replace(name=f"new:{number}", token=f"new:{number}")
        backend.acquire(fresh)
        backend.release(fresh)
    assert [info.name for info in backend.holders()] == ["kept"]


def test_clients_of_one_named_memory_share_it() -> None:
    with lockkit.connect("memory://one").lock("a").acquire():
        assert lockkit.connect("memory://one").lock("a").try_acquire() is None
        assert _free(lockkit.connect("memory://two"))
        assert _free(lockkit.connect("memory://"))
        assert _free(lockkit.connect("memory://one", key_prefix="another"))


def _free(locks: lockkit.LockClient) -> bool:
    lease = locks.lock("a").try_acquire()
    return lease is not None and lease.release()


def test_a_signal_handler_gets_the_client_that_is_being_made() -> None:
    """It runs in the thread that asks. Two clients of plain memory would not exclude each other."""

    def ask(at: int) -> str:
        clients = Clients(lambda _: lockkit.connect("memory://"))
        found = []

        def handler() -> None:
            found.append(clients["default"])

        with Interrupting(at, "leases/client.py", handler) as interrupting:
            found.append(clients["default"])
        assert {*found} == {clients["default"]}
        return interrupting.where

    places = [*itertools.takewhile(bool, map(ask, itertools.count(1)))]
    assert any("__getitem__" in place for place in places)


async def test_the_asyncio_client_shares_a_named_memory() -> None:
    with lockkit.connect("memory://three").lock("a").acquire():
        locks = aio.connect("memory://three")
        assert await locks.lock("a").try_acquire() is None
        await locks.close()


@pytest.mark.parametrize("label", ["a\nb", "\x1b[31m", "x" * 1000, "\u202e"])
def test_a_label_is_printable_and_short(label: str) -> None:
    locks = lockkit.connect("memory://")
    with locks.lock("a", label=label).acquire():
        info = locks.inspect("a")
        assert info is not None and info.owner is not None
        assert info.owner.label.isprintable()
        assert len(info.owner.label) <= 200


@pytest.mark.parametrize("name", ["T\x1fGET /admin by alice", "a\nb", "\udc80", "x" * 1000])
def test_the_name_of_a_thread_is_printable_and_short(name: str) -> None:
    """It would be taken for the label, the boot and the start of the process otherwise."""
    locks = lockkit.connect("memory://")

    def held() -> Owner | None:
        with locks.lock("a").acquire():
            info = locks.inspect("a")
            return None if info is None else info.owner

    with ThreadPoolExecutor(1, thread_name_prefix=name) as threads:
        found, expected = threads.submit(held).result(), process.owner("")
    assert found is not None
    assert found._replace(thread="") == expected._replace(thread="")
    assert found.thread.isprintable()
    assert len(found.thread) <= 200


def test_a_wrong_argument_is_told_at_once() -> None:
    with lockkit.connect("memory://") as client:
        for wrong in ({"label": 3}, {"on_lost": 3}):
            with pytest.raises(lockkit.ConfigurationError, match=next(iter(wrong))):
                client.lock("stock:42", **wrong)  # type: ignore[arg-type]
        with pytest.raises(lockkit.ConfigurationError, match="fencing token"):
            client.break_("stock:42", fence="3")  # type: ignore[arg-type]


def test_the_asyncio_api_is_an_attribute() -> None:
    program = "import lockkit; lockkit.aio.connect('memory://')"
    subprocess.run([sys.executable, "-c", program], check=True)
