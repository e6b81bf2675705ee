"""Django's settings in the worker processes of test_django_redis."""

from __future__ import annotations

import os

SECRET_KEY = "for-tests-only"
INSTALLED_APPS = ["lockkit_django"]


def cache(port: int) -> dict[str, object]:
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"redis://127.0.0.1:{port}/0",
        "OPTIONS": {"SOCKET_TIMEOUT": 10, "SOCKET_CONNECT_TIMEOUT": 10},
    }


CACHES = {"default": cache(int(os.environ.get("CONFORMANCE_REDIS_PORT", "0")))}
