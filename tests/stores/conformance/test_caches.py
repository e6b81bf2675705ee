"""django-redis:// and django-cache://: the pool of a cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import django
import pytest
from cache_settings import cache, caches
from django.test import override_settings
from over_a_wire import OverAWire, Reached
from places import KIT

from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer
from lockkit.testing.targets import Proxied, RedisTarget
from lockkit_django.stores import redis as over_caches

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()


class CacheStore(RedisTarget):
    """The Redis of a cache."""

    def __init__(self, server: RedisServer, scheme: str) -> None:
        self.scheme = scheme
        super().__init__(
            server,
            f"{scheme}://{scheme}",
            setup="django:setup",
            environment={
                "PYTHONPATH": str(KIT),
                "DJANGO_SETTINGS_MODULE": "cache_settings",
                "CONFORMANCE_REDIS_PORT": str(server.port),
            },
        )

    @contextmanager
    def proxied(self) -> Iterator[Proxied]:
        with FaultProxy("127.0.0.1", self.server.port) as proxy:
            made = {**caches(self.server.port), "proxied": cache(self.scheme, proxy.port)}
            with override_settings(CACHES=made):
                yield Proxied(f"{self.scheme}://proxied", proxy)


class TestDjangoRedis(OverAWire):
    schemes = ("django-redis",)
    tested = over_caches.CacheStore
    reached = RedisTarget

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[CacheStore]:
        with RedisServer() as server, override_settings(CACHES=caches(server.port)):
            yield CacheStore(server, "django-redis")


class TestDjangoCache(Reached):
    schemes = ("django-cache",)
    tested = over_caches.CacheStore
    reached = RedisTarget

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[CacheStore]:
        with RedisServer() as server, override_settings(CACHES=caches(server.port)):
            yield CacheStore(server, "django-cache")
