"""Claims with several leases: each thread and task encloses its own transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from lockkit.leases.aio_enclosing import AsyncEnclosingClient
from lockkit.leases.enclosing import EnclosingClient
from lockkit.leases.until import Transaction
from lockkit.model.errors import OpenTransaction
from lockkit.model.settings import settings_from_url
from lockkit.stores.registry import load_store

OPEN: ContextVar[tuple[Transaction, ...]] = ContextVar("open", default=())
SHARED: dict[str, Any] = {"reentrant": True, "owner": "us", "timeout": 0}


class Order(Transaction):
    is_going_on = True

    def is_open(self) -> bool:
        return self.is_going_on

    def refuse_snapshot(self, name: str) -> None:
        raise OpenTransaction("its snapshot is older", name=name)


@contextmanager
def order() -> Iterator[Order]:
    """It is open until the end of the block, and then committed."""
    opened = Order()
    before = OPEN.set((opened,))
    try:
        yield opened
    finally:
        opened.is_going_on = False
        OPEN.reset(before)
        opened.give_back()


def refuse(name: str) -> None:
    if OPEN.get():
        raise OpenTransaction("a transaction is open", name=name)


class Client(EnclosingClient):
    @staticmethod
    def _refuse(name: str) -> None:
        refuse(name)

    @staticmethod
    def _transactions() -> Sequence[Transaction]:
        return OPEN.get()

    @staticmethod
    def _orders() -> Sequence[Transaction]:
        return OPEN.get()


class AsyncClient(AsyncEnclosingClient):
    @staticmethod
    async def _refuse(name: str) -> None:
        refuse(name)

    @staticmethod
    def _in_order() -> bool:
        return bool(OPEN.get())


@pytest.fixture
def client() -> Iterator[Client]:
    settings = settings_from_url("memory://")
    with Client(load_store(settings), settings) as made:
        yield made


@pytest.fixture
async def aclient() -> AsyncIterator[AsyncClient]:
    settings = settings_from_url("memory://")
    async with AsyncClient(load_store(settings), settings) as made:
        yield made


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """One other thread."""
    with ThreadPoolExecutor(1) as found:
        yield found


def is_free(client: Client) -> bool:
    return client.inspect("cart") is None


@pytest.mark.parametrize("options", [{}, {"until": "commit"}])
def test_a_lease_of_another_thread_encloses_no_transaction_of_this_one(
    client: Client, thread: ThreadPoolExecutor, options: dict[str, Any]
) -> None:
    """That thread may release its lease before this one's COMMIT, and has changed what this one's
    snapshot shows."""
    lock = client.lock("cart", **SHARED, **options)
    others = thread.submit(client.lock("cart", **SHARED).acquire).result()
    with order(), pytest.raises(OpenTransaction):
        lock.acquire()
    with client.lock("cart", **SHARED), order(), lock:
        assert others.release()
    assert is_free(client)


def test_whichever_of_its_leases_is_the_last_is_left_to_the_order(
    client: Client, thread: ThreadPoolExecutor
) -> None:
    lock = client.lock("cart", **SHARED)
    others = thread.submit(lock.acquire).result()
    first, second = lock.acquire(), lock.acquire()
    first.release()
    with order():
        assert second.release()
        assert thread.submit(others.release).result()
        assert not is_free(client)
    assert is_free(client)


def test_an_inner_lease_is_not_left_to_the_order(client: Client) -> None:
    lock = client.lock("cart", **SHARED)
    with lock, order() as opened:
        with lock:
            pass
        assert not opened.has_leases()


def test_where_that_is_allowed_the_last_one_is_released_at_once(client: Client) -> None:
    lock = client.lock("cart", in_atomic="allow", **SHARED)
    first, second = lock.acquire(), lock.acquire()
    with order():
        first.release()
        second.release()
        assert is_free(client)


@pytest.mark.parametrize("options", [{}, {"until": "commit"}])
def test_one_that_may_end_in_the_order_lets_no_other_into_it(
    client: Client, options: dict[str, Any]
) -> None:
    """What is taken inside of it would be free as soon as it ends, before the COMMIT."""
    anywhere, lock = client.lock("cart", in_atomic="allow", **SHARED), client.lock("cart", **SHARED)
    with order(), anywhere, pytest.raises(OpenTransaction):
        client.lock("cart", **SHARED, **options).acquire()
    with lock, order(), anywhere, lock:
        pass
    assert is_free(client)


def test_one_that_may_end_in_the_order_takes_no_other_out_of_it(client: Client) -> None:
    outer = client.lock("cart", **SHARED).acquire()
    with order():
        inner = client.lock("cart", in_atomic="allow", **SHARED).acquire()
        assert outer.release()
        assert inner.release()
        assert not is_free(client)
    assert is_free(client)


async def test_a_lease_of_another_task_encloses_no_transaction_of_this_one(
    aclient: AsyncClient,
) -> None:
    lock = aclient.lock("cart", **SHARED)
    others = await asyncio.create_task(lock.acquire())
    with order(), pytest.raises(OpenTransaction):
        await lock.acquire()
    async with lock:
        with order():
            async with lock:
                assert await others.release()


async def test_whichever_of_its_leases_is_the_last_may_not_end_in_the_order(
    aclient: AsyncClient,
) -> None:
    lock = aclient.lock("cart", **SHARED)
    first, second = await lock.acquire(), await lock.acquire()
    others = await asyncio.create_task(lock.acquire())
    await first.release()
    with order(), pytest.raises(OpenTransaction):
        await second.release()
    await others.release()


async def test_one_that_may_end_in_the_order_lets_no_other_into_it_by_asyncio(
    aclient: AsyncClient,
) -> None:
    lock = aclient.lock("cart", **SHARED)
    with order():
        async with aclient.lock("cart", in_atomic="allow", **SHARED):
            with pytest.raises(OpenTransaction):
                await lock.acquire()


async def test_one_that_may_end_in_the_order_takes_no_other_out_of_it_by_asyncio(
    aclient: AsyncClient,
) -> None:
    outer = await aclient.lock("cart", **SHARED).acquire()
    with order():
        inner = await aclient.lock("cart", in_atomic="allow", **SHARED).acquire()
        with pytest.raises(OpenTransaction):
            await outer.release()
        await inner.release()


async def test_where_that_is_allowed_the_last_one_ends_in_the_order(aclient: AsyncClient) -> None:
    lock = aclient.lock("cart", in_atomic="allow", **SHARED)
    first, second = await lock.acquire(), await lock.acquire()
    with order():
        await first.release()
        assert await second.release()
