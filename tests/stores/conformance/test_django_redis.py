"""django-redis://: the pool of a cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import django
import pytest
from cache_settings import cache
from django.test import override_settings
from over_a_wire import OverAWire
from places import KIT

from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer
from lockkit.testing.store import Proxied, RedisStore
from lockkit_django.stores.redis import DjangoRedisStore

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()


class CacheStore(RedisStore):
    """The Redis of a django-redis cache."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(
            server,
            "django-redis://default",
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
            caches = {"default": cache(self.server.port), "proxied": cache(proxy.port)}
            with override_settings(CACHES=caches):
                yield Proxied("django-redis://proxied", proxy)


class TestDjangoRedis(OverAWire):
    schemes = ("django-redis",)
    tested = DjangoRedisStore
    reached = RedisStore
    cycles = 800

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[CacheStore]:
        with (
            RedisServer() as server,
            override_settings(CACHES={"default": cache(server.port)}),
        ):
            yield CacheStore(server)
