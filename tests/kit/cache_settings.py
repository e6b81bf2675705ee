"""Django's settings in the worker processes of test_caches: its own cache, and django-redis'."""

from __future__ import annotations

import os

SECRET_KEY = "for-tests-only"
INSTALLED_APPS = ["lockkit_django"]


BACKENDS = {
    "django-redis": "django_redis.cache.RedisCache",
    "django-cache": "django.core.cache.backends.redis.RedisCache",
}


def cache(scheme: str, port: int, login: str = "") -> dict[str, object]:
    django_redis = scheme == "django-redis"
    names = ("SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT")
    return {
        "BACKEND": BACKENDS[scheme],
        "LOCATION": f"redis://{login}127.0.0.1:{port}/0",
        "OPTIONS": {name if django_redis else name.lower(): 10 for name in names},
    }


def caches(port: int) -> dict[str, dict[str, object]]:
    """One of each; the first is the default because Django wants one."""
    made = {scheme: cache(scheme, port) for scheme in BACKENDS}
    return {**made, "default": made["django-redis"]}


CACHES = caches(int(os.environ.get("CONFORMANCE_REDIS_PORT", "0")))
