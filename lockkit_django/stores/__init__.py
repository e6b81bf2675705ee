"""Stores that a Django project has already: its database, and the Redis of its cache.

Loaded when they are asked for: a project without Redis needs no driver for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockkit_django.stores.database import DatabaseStore
    from lockkit_django.stores.redis import DjangoCacheStore, DjangoRedisStore

__all__ = ["DatabaseStore", "DjangoCacheStore", "DjangoRedisStore"]

_MODULES = {
    "DatabaseStore": "database",
    "DjangoCacheStore": "redis",
    "DjangoRedisStore": "redis",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
