"""Through django-redis: over its connections, and in the calls that a project has already."""

from __future__ import annotations

import os
from typing import Any

import django
import pytest
from django.core.cache import cache, caches
from django.test import override_settings

import lockkit
from lockkit.compat.redis import Lock

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()

from django_redis import get_redis_connection  # noqa: E402  it reads the settings

LONG = 30.0


def settings(url: str, **options: Any) -> Any:
    backend = "django_redis.cache.RedisCache"
    return override_settings(
        CACHES={"default": {"BACKEND": backend, "LOCATION": url, "OPTIONS": options}}
    )


def test_over_a_connection_of_the_cache(redis_url: str) -> None:
    with settings(redis_url):
        connection = get_redis_connection("default")
        with connection.lock("stock:42", timeout=LONG, lock_class=Lock) as lock:
            assert lock.fencing_token
            assert connection.get("stock:42") == lock.local.token
        caches["default"].close()


@pytest.mark.parametrize("version", [1, 7])
def test_the_calls_of_a_project_get_it_by_one_line_of_settings(
    redis_url: str, version: int
) -> None:
    with settings(redis_url, REDIS_CLIENT_CLASS="lockkit.compat.redis.Redis"):
        lock = cache.lock("stock:42", timeout=LONG, version=version)
        assert isinstance(lock, Lock)
        prefix = f":{version}:"
        with lockkit.connect(f"{redis_url}?protocol=plain", key_prefix=prefix) as locks, lock:
            assert locks.lock("stock:42").try_acquire() is None
            info = locks.inspect("stock:42")
            assert info is not None
            assert info.fence == lock.fencing_token
        cache.set("page", "<html>")
        assert cache.get("page") == "<html>"
        caches["default"].close()
