"""Databases, locks and orders as ``crashing.configuration`` says."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import make_url

from crashing import locks
from crashing.configuration import configuration

wanted = configuration()


def _database() -> dict[str, Any]:
    url = make_url(wanted.database)
    if url.get_backend_name() == "sqlite":
        options: dict[str, Any] = {"transaction_mode": "IMMEDIATE", "timeout": 30}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database, "OPTIONS": options}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "USER": url.username,
        "HOST": url.host,
        "PORT": url.port,
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }


SECRET_KEY = "for-tests-only-" + "x" * 50
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "crashing.django_shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": _database()}
INSTALLED_APPS = ["django.contrib.contenttypes", "lockkit_django", "crashing.django_shop"]
MIDDLEWARE = ["lockkit_django.middleware.IdempotentOrderMiddleware"]
LOCKKIT = {"default": locks.settings(wanted.locks, wanted.ttl)}
LOCKKIT_VIEWS = {"TIMEOUT": wanted.wait, "MAX_WAITERS": 64}
LOCKKIT_ORDERS = {
    "PATHS": [r"^/orders/"] if wanted.guard == "lockkit" else [r"^/nothing/"],
    "WAIT": wanted.wait,
    "MAX_WAITERS": 64,
    **wanted.orders,
}
