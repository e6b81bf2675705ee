"""The backends of lockkit, with the points ``locked`` and ``committed`` at the locks of orders."""

from __future__ import annotations

from typing import Any, TypeVar

from crashing.points import at
from lockkit.model.types import Busy, Claimed, Gone, Grant, Release, Request
from lockkit.stores.base import Backend
from lockkit.stores.redis import RedisBackend
from lockkit.stores.redis.records import RedisRecords
from lockkit.stores.sql import SQLiteBackend

__all__ = ["StoppingRedis", "StoppingSQLite", "settings"]

A = TypeVar("A")


class Stopping(Backend):
    """The lock of an order is released after COMMIT or ROLLBACK."""

    def acquire(self, request: Request) -> Grant | Busy | Gone:
        return _granted(request, super().acquire(request))  # type: ignore[safe-super]

    def wait(self, request: Request, seconds: float, busy: Busy) -> Grant | None:
        return _granted(request, super().wait(request, seconds, busy))

    def release(self, request: Request) -> Release:
        if _is_order(request):
            at("committed")
        return super().release(request)  # type: ignore[safe-super]


class StoppingRedis(Stopping, RedisBackend):
    def records(self) -> StoppingRecords:
        return StoppingRecords(self._connections, self._protocol.keys)


class StoppingRecords(RedisRecords):
    """STORE = "redis": what is INSERT and COMMIT elsewhere."""

    def claim(self, *args: Any, **options: Any) -> Claimed:
        claimed = super().claim(*args, **options)
        at("recorded")
        return claimed

    def finish(self, *args: Any) -> bool:
        at("committing")
        return super().finish(*args)


class StoppingSQLite(Stopping, SQLiteBackend):
    pass


def settings(url: str, ttl: float) -> dict[str, object]:
    """An alias that stops."""
    name = "StoppingRedis" if url.startswith("redis") else "StoppingSQLite"
    return {"BACKEND": f"{__name__}.{name}", "LOCATION": url, "TTL": ttl}


def _granted(request: Request, answer: A) -> A:
    if isinstance(answer, Grant) and _is_order(request):
        at("locked")
    return answer


def _is_order(request: Request) -> bool:
    return request.name.startswith("order:")
