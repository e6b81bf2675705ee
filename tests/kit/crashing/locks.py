"""The stores of lockkit, with the points ``locked`` and ``committed`` at the locks of orders."""

from __future__ import annotations

from typing import Any, TypeVar

from crashing.points import at
from lockkit.engine.effects import Exchange, Step
from lockkit.model.types import Busy, ClaimReply, Gone, Grant, Release, Request
from lockkit.stores.contract import Direct, Queued
from lockkit.stores.redis import RedisStore
from lockkit.stores.redis.records import RedisRecords
from lockkit.stores.sql.sqlite import SQLiteStore

__all__ = ["StoppingRedis", "StoppingSQLite", "settings"]

A = TypeVar("A")


class Stopping(Direct, Queued):
    """The lock of an order is released after COMMIT or ROLLBACK. It is most often granted and given
    back without a step."""

    def answered(self, request: Request, reply: Any) -> Grant | Busy | Gone | None:
        return _granted(request, super().answered(request, reply))

    def returned(self, request: Request) -> Exchange | None:
        if _is_order(request):
            at("committed")
        return super().returned(request)  # type: ignore[safe-super]

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        return _granted(request, (yield from super().acquire(request)))  # type: ignore[safe-super]

    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        answer = yield from super().wait(request, seconds, busy)  # type: ignore[safe-super]
        return _granted(request, answer)

    def release(self, request: Request) -> Step[Release]:
        if _is_order(request):
            at("committed")
        return (yield from super().release(request))  # type: ignore[safe-super]


class StoppingRedis(Stopping, RedisStore):
    def records(self) -> StoppingRecords:
        return StoppingRecords(self)


class StoppingRecords(RedisRecords):
    """STORE = "redis": what is INSERT and COMMIT elsewhere."""

    def claim(self, *args: Any, **options: Any) -> Step[ClaimReply]:
        claimed = yield from super().claim(*args, **options)
        at("recorded")
        return claimed

    def finish(self, *args: Any) -> Step[bool]:
        at("committing")
        return (yield from super().finish(*args))


class StoppingSQLite(Stopping, SQLiteStore):
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
