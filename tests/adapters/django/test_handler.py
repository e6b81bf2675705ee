"""``locks`` and ``alocks``: who shares a client, and when there is another."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from cache_settings import BACKENDS
from django.test import override_settings
from django_project.spy import SpyBackend
from redis.cache import CacheConfig

import lockkit
from lockkit.model.errors import ConfigurationError, DriverMissing, UnknownBackend
from lockkit.model.settings import URL_VARIABLE, AliasSettings
from lockkit.stores.memory import MemoryStore
from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import RedisServer
from lockkit_django import alocks, locks

TWO = {"default": "memory://", "other": {"LOCATION": "memory://", "TTL": 5, "KEY_PREFIX": "shop"}}


class MeetingBackend(MemoryStore):
    """Takes long to make: long enough for a second thread to make another one."""

    meeting = threading.Barrier(2)

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> MemoryStore:
        with suppress(threading.BrokenBarrierError):
            cls.meeting.wait(0.2)
        return super().from_settings(settings)


def test_threads_share_one_client_also_when_they_come_at_once() -> None:
    found: list[Any] = []

    def look() -> None:
        found.append(locks["default"])

    backend = {"BACKEND": f"{__name__}.MeetingBackend", "LOCATION": "memory://"}
    with override_settings(LOCKKIT={"default": backend}):
        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({id(client) for client in found}) == 1


async def test_tasks_share_one_client() -> None:
    async def look(which: Any) -> Any:
        return which["default"]

    for which in (locks, alocks):
        found = await asyncio.gather(*(asyncio.create_task(look(which)) for _ in range(5)))
        assert len({id(client) for client in found}) == 1


@pytest.mark.parametrize("url", ["memory://", "django://"])  # one that nobody else can open
def test_they_have_one_store_also_when_a_loop_has_ended(url: str) -> None:
    async def is_free() -> bool:
        lease = await alocks["default"].lock("stock:42").try_acquire()
        return lease is not None and await lease.release()

    with override_settings(LOCKKIT={"default": url}):
        with locks["default"].lock("stock:42"):
            assert not asyncio.run(is_free())
            assert not asyncio.run(is_free())
        assert asyncio.run(is_free())


@override_settings(LOCKKIT=TWO)
def test_aliases() -> None:
    assert list(locks) == ["default", "other"]
    assert locks["other"].settings.ttl == 5
    assert locks["default"] is not locks["other"]
    with pytest.raises(ConfigurationError, match="did you mean 'other'"):
        locks["othr"]


def test_a_change_of_settings_makes_another_client() -> None:
    before = locks["default"]
    with override_settings(LOCKKIT=TWO):
        changed = locks["default"]
        assert changed is not before
        assert not isinstance(changed.store, SpyBackend)
    assert isinstance(locks["default"].store, SpyBackend)
    with override_settings(LOCKKIT_VIEWS={"TIMEOUT": 1}):
        assert locks["default"] is locks["default"]


@override_settings(LOCKKIT={"default": "mysterious://x"})
def test_an_unknown_backend() -> None:
    with pytest.raises(UnknownBackend, match="mysterious"):
        locks["default"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"default": {"LOCATION": "memory://", "TLL": 1}}, "did you mean 'TTL'"),
        ({"default": {"LOCATION": "memory://", "TTL": 0}}, r"LOCKKIT\['default'\]\['TTL'\] is 0"),
        (["memory://"], "LOCKKIT must map aliases"),
    ],
)
def test_wrong_settings_name_the_key(setting: object, message: str) -> None:
    with (
        override_settings(LOCKKIT=setting),
        pytest.raises(ConfigurationError, match=message),
    ):
        locks["default"]


def test_the_environment_overrides_the_default_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "memory://elsewhere")
    with override_settings(LOCKKIT=TWO):
        assert locks["default"].settings.location == "memory://elsewhere"
        assert locks["other"].settings.location == "memory://"


def test_with_nothing_configured_the_database_keeps_the_locks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with override_settings(LOCKKIT=None):
        assert locks["default"].settings.location == "django://default"


def test_a_forked_child_locks_with_the_same_client() -> None:
    with locks["default"].lock("mine") as lease:
        child = os.fork()
        if child == 0:
            free = locks["default"].lock("mine").try_acquire()
            os._exit(0 if lease.lost and free else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lease.check()


def test_an_async_client_is_closed_at_the_end_of_its_loop() -> None:
    """Under WSGI Django runs each async view in a loop of its own."""
    closed = []

    async def view() -> Any:
        client = alocks["default"]
        close = client._wire.close

        async def closing() -> None:
            closed.append(asyncio.get_running_loop())
            await close()

        client._wire.close = closing  # type: ignore[method-assign]
        async with client.lock("a"):
            return client

    first, second = async_to_sync(view)(), async_to_sync(view)()
    assert first is not second
    assert len(closed) == 2


async def test_a_reset_makes_another_async_client() -> None:
    before = alocks["default"]
    alocks.clear()
    assert alocks["default"] is not before


def test_async_clients_need_a_loop() -> None:
    with pytest.raises(RuntimeError, match="ask for it inside a coroutine"):
        alocks["default"]


def test_an_async_client_leaves_no_connection_behind(redis_server: RedisServer) -> None:
    redis_server.flush()

    async def use() -> None:
        holder = await alocks["default"].lock("a").acquire()
        waiter = asyncio.create_task(alocks["default"].lock("a", timeout=60).acquire())
        while (info := await alocks["default"].inspect("a")) is None or not info.waiters:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await holder.release()
        await (await waiter).release()

    with override_settings(LOCKKIT={"default": redis_server.url}), redis_server.client() as admin:
        before = {each["id"] for each in admin.client_list()}
        async_to_sync(use)()
        eventually(lambda: {each["id"] for each in admin.client_list()} <= before)


def test_importing_and_starting_does_no_io_and_starts_no_thread() -> None:
    """In a process of its own: a store that would answer to nobody, and no database file."""
    program = """
import sys, threading, socket
def refuse(*_): raise AssertionError("I/O")
socket.socket.connect = refuse
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "lockkit_django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nonexistent/db"}},
    LOCKKIT={"default": "redis://127.0.0.1:1/0"}, SECRET_KEY="x")
import django
django.setup()
from lockkit_django import locks
locks["default"]
assert threading.active_count() == 1
assert "rest_framework" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def cache(url: str, **options: Any) -> dict[str, Any]:
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}
    return {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}, "fast": entry}


def test_the_pool_of_a_django_redis_cache(redis_server: RedisServer) -> None:
    """One lock, through the cache's pool and through lockkit's own connections; waiters, too."""
    redis_server.flush()
    aliases = {"default": "django-redis://fast", "direct": redis_server.url}
    with override_settings(CACHES=cache(redis_server.url), LOCKKIT=aliases):
        from django.core.cache import caches

        pool = caches["fast"].client.get_client(write=True).connection_pool
        assert locks["default"].store._connections._pool is pool  # type: ignore[attr-defined]
        lease = locks["default"].lock("a").acquire()
        assert locks["direct"].lock("a").try_acquire() is None
        granted: list[int] = []
        waiter = threading.Thread(target=_wait_for_it, args=(granted,))
        waiter.start()
        while (info := locks["direct"].inspect("a")) is None or not info.waiters:
            threading.Event().wait(0.001)
        lease.release()
        waiter.join()
        assert granted[0] > lease.fencing_token
        locks["default"].close()
        caches["fast"].set("still", "open")
        pool.disconnect()


def _wait_for_it(granted: list[int]) -> None:
    with locks["default"].lock("a", timeout=60) as lease:
        granted.append(lease.fencing_token)


async def test_the_pool_of_a_cache_from_coroutines(redis_server: RedisServer) -> None:
    redis_server.flush()
    with override_settings(
        CACHES=cache(redis_server.url), LOCKKIT={"default": "django-redis://fast"}
    ):
        from django.core.cache import caches

        async with alocks["default"].lock("a"):
            assert await alocks["default"].lock("a").try_acquire() is None
        caches["fast"].client.get_client(write=True).connection_pool.disconnect()


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("django-redis://fats", "CACHES has no key 'fats': did you mean 'fast'"),
        ("django-redis://default", "is a django.core.cache.backends.dummy.DummyCache"),
    ],
)
def test_a_cache_that_has_no_pool(location: str, message: str) -> None:
    with (
        override_settings(CACHES=cache("redis://127.0.0.1:1/0"), LOCKKIT={"default": location}),
        pytest.raises(ConfigurationError, match=message),
    ):
        locks["default"]


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("django-cache", {"serializer": "nobodys.Serializer"}),
        ("django-cache", {"pool_class": "nobodys.Pool"}),
        ("django-redis", {"CLIENT_CLASS": "nobodys.Client"}),
        ("django-redis", {"PARSER_CLASS": "nobodys.Parser"}),
    ],
)
def test_a_cache_whose_client_cannot_be_made(scheme: str, options: dict[str, str]) -> None:
    url = "redis://127.0.0.1:1/6"  # of no other test: django-redis has one pool for each
    entry = {"BACKEND": BACKENDS[scheme], "LOCATION": url, "OPTIONS": options}
    with (
        override_settings(CACHES={"default": entry}, LOCKKIT={"default": f"{scheme}://default"}),
        pytest.raises(ConfigurationError, match="'default' cannot be used: it raises Module"),
    ):
        locks["default"]


def test_a_cache_whose_options_are_no_mapping() -> None:
    entry = {"BACKEND": BACKENDS["django-cache"], "LOCATION": "redis://127.0.0.1:1", "OPTIONS": "x"}
    with (
        override_settings(CACHES={"default": entry}, LOCKKIT={"default": "django-cache://default"}),
        pytest.raises(ConfigurationError, match="the cache 'default' cannot be "),
    ):
        locks["default"]


@pytest.mark.parametrize("scheme", BACKENDS)
def test_a_cache_whose_client_has_a_cache_of_its_own_is_refused(scheme: str) -> None:
    options: dict[str, Any] = {"protocol": 3, "cache_config": CacheConfig()}
    if scheme == "django-redis":
        options = {"CONNECTION_POOL_KWARGS": options}
    url = "redis://127.0.0.1:1/7"  # of no other test: django-redis has one pool for each
    entry = {"BACKEND": BACKENDS[scheme], "LOCATION": url, "OPTIONS": options}
    with (
        override_settings(CACHES={"default": entry}, LOCKKIT={"default": f"{scheme}://default"}),
        pytest.raises(ConfigurationError, match="cache_config"),
    ):
        locks["default"].lock("a").acquire()


def test_a_cache_that_is_divided_among_servers_has_no_pool() -> None:
    caches = cache("redis://127.0.0.1:1/0", CLIENT_CLASS="django_redis.client.ShardClient")
    with (
        override_settings(CACHES=caches, LOCKKIT={"default": "django-redis://fast"}),
        pytest.raises(ConfigurationError, match=r"no connection pool.*redis:// URL"),
    ):
        locks["default"]


def test_clearing_a_cache_loses_the_locks_in_its_database(redis_server: RedisServer) -> None:
    """Django's cache empties the database. The holder hears of it; the next fence is greater."""
    entry = {"BACKEND": "django.core.cache.backends.redis.RedisCache"}
    caches_ = {"default": {**entry, "LOCATION": redis_server.url}}
    with override_settings(CACHES=caches_, LOCKKIT={"default": "django-cache://default"}):
        from django.core.cache import caches

        lease = locks["default"].lock("a").acquire()
        caches["default"].clear()
        with locks["default"].lock("a").acquire() as other:
            assert other.fencing_token > lease.fencing_token
            with pytest.raises(lockkit.LeaseLost):
                lease.extend()
        assert lease.release() is False
        locks["default"].close()
        caches["default"]._cache.get_client(write=True).connection_pool.disconnect()


def test_a_cache_whose_server_is_down_fails_closed() -> None:
    """IGNORE_EXCEPTIONS is about the cache; a lock that cannot be taken is never 'free'."""
    caches = cache("redis://127.0.0.1:1/0", IGNORE_EXCEPTIONS=True, SOCKET_CONNECT_TIMEOUT=1)
    with (
        override_settings(CACHES=caches, LOCKKIT={"default": "django-redis://fast"}),
        pytest.raises(lockkit.BackendUnavailable),
    ):
        locks["default"].lock("a").acquire()


def test_without_django_redis_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "django_redis.cache", None)
    caches = cache("redis://127.0.0.1:1/0")
    with (
        override_settings(CACHES=caches, LOCKKIT={"default": "django-redis://fast"}),
        pytest.raises(DriverMissing, match=r"lockkit\[django-redis\]"),
    ):
        locks["default"]
