"""A drop-in for redis-py's locks that has a queue and fencing tokens.

::

    from lockkit.compat.redis import Lock

    with redis.Redis().lock("stock:42", timeout=5, lock_class=Lock) as lock:
        lock.fencing_token

Everything else is redis-py's: arguments, defaults, exceptions, the key and its value. So these
locks, those of redis-py, and lockkit's over ``?protocol=plain`` exclude one another. Guarantee and
limits are those of ``lockkit.stores.redis.plain``. Two faults of redis-py are avoided: if a reply
is lost, the request is repeated, and an ``acquire`` that is interrupted or cancelled leaves no key
behind.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any, Literal, Self, cast

from lockkit.model.errors import AcquireTimeout, DriverMissing

try:
    import redis
    import redis.asyncio
    import redis.asyncio.lock
    import redis.lock
    from redis.exceptions import RedisError
except ImportError as error:
    raise DriverMissing(
        f"lockkit.compat.redis needs redis-py: pip install 'lockkit[redis]' ({error})"
    ) from error

from lockkit.compat._claims import (
    UNKNOWN,
    Acquisition,
    Queueing,
    acquiring,
    client_for,
    errors_of_redis,
)
from lockkit.engine import holding
from lockkit.leases.aio_client import AsyncLockClient
from lockkit.leases.client import LockClient
from lockkit.model.clock import now
from lockkit.runtime import process
from lockkit.runtime.aio_run import arun
from lockkit.runtime.hold import Hold
from lockkit.runtime.run import run
from lockkit.stores.redis.aio_pool_wire import AsyncPoolWire
from lockkit.stores.redis.handed import LentStore

LOCK_CLASS = 4
"""The position of ``lock_class`` among the arguments of ``Redis.lock`` after the name."""


class Lock(Queueing, redis.lock.Lock):
    """``redis.lock.Lock``, whose waiters are served in the order in which they came."""

    def acquire(
        self, sleep: Any = None, blocking: Any = None, blocking_timeout: Any = None,
        token: Any = None,
    ) -> bool:  # fmt: skip
        """Like redis-py's. ``sleep`` only affects how long ``blocking_timeout`` lasts: waiters are
        woken, by a message or, if the holder's lock is redis-py's, within 50 ms."""
        claim = self._claim(sleep, blocking, blocking_timeout, token, process.owner_text(""))
        if claim is None:
            self.local.acquisition = None
            return bool(super().acquire(sleep, blocking, blocking_timeout, token))
        client, before = self._client(), self._acquisition
        try:
            taken = partial(self._taken, client, get_ident())
            with errors_of_redis(self.redis.connection_pool):
                client._acquire(
                    cast(LentStore, client.store),
                    claim.request,
                    lambda granted: taken(Hold(granted)),
                    lambda first: acquiring(client._queue, claim, taken, first),
                )
        except AcquireTimeout:
            return False
        except BaseException:
            self._let_go(before)
            raise
        return True

    def _client(self) -> LockClient:
        return client_for(self.redis, LockClient)

    def __enter__(self) -> Self:
        before = self._acquisition
        try:
            return super().__enter__()  # type: ignore[return-value]
        except BaseException:
            self._let_go(before)
            raise

    def _let_go(self, before: Acquisition | None) -> None:
        """Release after an interrupt that came after the acquisition: nobody else would."""
        acquisition = self._acquired_since(before, get_ident())
        if acquisition is not None:
            self.local.token = None
            with suppress(RedisError):  # the interrupt is raised next
                self.do_release(acquisition.value)

    def do_release(self, expected_token: Any) -> None:
        client = self._client()
        hold = self._released(client, self._encoded(expected_token))
        with errors_of_redis(self.redis.connection_pool):
            if hold.token.startswith(UNKNOWN):
                released = run(holding.release(client._queue, hold), client._wire)
            else:
                released = client._release(cast(LentStore, client.store), hold, now())
        if not released:
            raise self._not_owned()

    def do_extend(self, additional_time: Any, replace_ttl: bool) -> Literal[True]:
        with self._extending(additional_time, replaces=replace_ttl):
            return super().do_extend(additional_time, replace_ttl)

    def do_reacquire(self) -> Literal[True]:
        with self._extending(self.timeout, replaces=True):
            return super().do_reacquire()


class AsyncLock(Queueing, redis.asyncio.lock.Lock):
    """``redis.asyncio.lock.Lock``, whose waiters are served in the order in which they came."""

    async def acquire(
        self, blocking: Any = None, blocking_timeout: Any = None, token: Any = None
    ) -> bool:
        """Like redis-py's; see ``Lock.acquire``. If it is cancelled, it leaves no key or waiter."""
        claim = self._claim(None, blocking, blocking_timeout, token, process.owner_text(""))
        if claim is None:
            self.local.acquisition = None
            return bool(await super().acquire(blocking, blocking_timeout, token))
        client, before = self._client(), self._acquisition
        try:
            try:
                with errors_of_redis(self.redis.connection_pool):
                    taken = partial(self._taken, client, _this_task())
                    await client.perform(acquiring(client._queue, claim, taken))
            finally:
                if isinstance(client._wire, AsyncPoolWire):
                    await client._wire.hang_up()
        except AcquireTimeout:
            return False
        except BaseException:
            await self._let_go(before)
            raise
        return True

    def _client(self) -> AsyncLockClient:
        return client_for(self.redis, AsyncLockClient, asyncio.get_running_loop())

    async def _let_go(self, before: Acquisition | None) -> None:
        """Release after a cancellation that came after the acquisition: nobody else would."""
        acquisition = self._acquired_since(before, _this_task())
        if acquisition is not None:
            self.local.token = None
            with suppress(RedisError):  # the interrupt is raised next
                await self.do_release(acquisition.value)

    async def release(self) -> None:
        """Like redis-py's, which forgets the token when the server has replied. By then another
        task may have acquired the lock by the same object: its token is kept."""
        before = self._acquisition
        try:
            await super().release()
        finally:
            acquisition = self._acquisition
            if acquisition is not None and acquisition is not before:
                self.local.token = acquisition.value
            elif self.local.token is None:
                self.local.acquisition = None

    async def do_release(self, expected_token: Any) -> None:
        client = self._client()
        hold = self._released(client, self._encoded(expected_token))
        with errors_of_redis(self.redis.connection_pool):
            step = holding.release(client._queue, hold)
            if hold.token.startswith(UNKNOWN):
                released = await arun(step, client._wire)
            else:
                released = await client.perform(step)
        if not released:
            raise self._not_owned()

    async def do_extend(self, additional_time: Any, replace_ttl: bool) -> Literal[True]:
        with self._extending(additional_time, replaces=replace_ttl):
            return await super().do_extend(additional_time, replace_ttl)

    async def do_reacquire(self) -> Literal[True]:
        with self._extending(self.timeout, replaces=True):
            return await super().do_reacquire()


class Redis(redis.Redis):
    """A client whose ``lock`` makes locks of this module, unless ``lock_class`` is given.

    For django-redis: ``"OPTIONS": {"REDIS_CLIENT_CLASS": "lockkit.compat.redis.Redis"}``."""

    def lock(self, name: Any, *args: Any, **options: Any) -> Any:
        args, options = _with_class(Lock, args, options)
        return super().lock(name, *args, **options)


class AsyncRedis(redis.asyncio.Redis):
    """Like ``Redis``, for asyncio."""

    def lock(self, name: Any, *args: Any, **options: Any) -> Any:
        args, options = _with_class(AsyncLock, args, options)
        return super().lock(name, *args, **options)


def _this_task() -> int:
    return id(asyncio.current_task())


def _with_class(
    ours: type, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``lock`` after the name, with our class if they have no ``lock_class``."""
    if len(args) > LOCK_CLASS:
        return (*args[:LOCK_CLASS], args[LOCK_CLASS] or ours, *args[LOCK_CLASS + 1 :]), options
    return args, {**options, "lock_class": options.get("lock_class") or ours}
