"""The part that the blocking and the asyncio lock of ``redis`` share: claims and their state."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

import redis
import redis.asyncio.lock
from redis.exceptions import LockError, LockNotOwnedError, RedisError

from lockkit.engine import holding, waiting
from lockkit.engine.effects import Made, Step
from lockkit.engine.times import alive_for
from lockkit.leases.aio_client import AsyncLockClient
from lockkit.leases.client import LockClient
from lockkit.model.clock import now
from lockkit.model.errors import BackendError, ConfigurationError, LeaseLost
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Granted, Mode, Request
from lockkit.runtime.hold import Hold
from lockkit.runtime.process import new_token
from lockkit.stores.contract import Waited
from lockkit.stores.redis.failures import as_of_redis
from lockkit.stores.redis.handed import LentStore, pool_of
from lockkit.stores.redis.plain.language import FOREVER, LONGEST

C = TypeVar("C", LockClient, AsyncLockClient)

OURS = "_lockkit"
"""The attribute of a pool that keeps lockkit's clients for it. They live as long as the pool."""

SHORTEST = 10
"""Milliseconds. A lock with a shorter timeout may have expired when the reply comes, each time that
lockkit asks for it. The server refuses timeouts below one millisecond."""

UNKNOWN = "0" * 32 + ":"
"""Begins the token of a claim of which only the key's value is known, and not when it expires. If
its release fails, that is not tried again later: by then, the user may have given this value to
another claim."""


class Acquisition:
    """An acquired lock. With ``renew``, it is renewed as long as something refers to this."""

    def __init__(self, hold: Hold, by: int) -> None:
        """``by``: the thread or task that acquired it. Tasks, and threads without ``thread_local``,
        may share a lock object, which then keeps only the last acquisition."""
        self.hold = hold
        self.by = by
        self._ended = False
        hold.share(self)

    @property
    def value(self) -> bytes:
        """The value of the key: see plain_value.lua."""
        _, colon, value = self.hold.token.partition(":")
        return bytes.fromhex(value) if colon else self.hold.token.encode()

    def end(self) -> None:
        self._ended = True


class AcquireCall(NamedTuple):
    request: Request
    wait: float | None  #: seconds; None: for ever
    suffix: str  #: of the token: the key's value, if the user gave one

    def new_token(self) -> str:
        return new_token() + self.suffix


OTHER_KIND = "Lock is for clients of redis, and AsyncLock for those of redis.asyncio"


class Queueing:
    """The additions of both classes to redis-py's locks: ``renew`` and ``fencing_token``."""

    redis: Any
    name: Any
    timeout: Any
    sleep: Any
    blocking: Any
    blocking_timeout: Any
    local: Any

    def __init__(self, *args: Any, renew: bool = False, **kwargs: Any) -> None:
        """Takes redis-py's arguments, and ``renew``. If that is true, an acquired lock is renewed
        until it is released or nothing refers to this object any more; this needs a ``timeout``.
        Default: the lock expires after ``timeout`` seconds, as redis-py's does."""
        super().__init__(*args, **kwargs)
        self.renew = renew

    def register_scripts(self) -> None:
        """Refuse a client of the other kind first: redis-py keeps the scripts of the first client
        for the whole class."""
        is_async = isinstance(self, redis.asyncio.lock.Lock)
        if isinstance(self.redis, redis.Redis if is_async else redis.asyncio.Redis):
            raise ConfigurationError(OTHER_KIND)
        super().register_scripts()  # type: ignore[misc]

    @property
    def fencing_token(self) -> int:
        """A number that grows with each grant of the key; with ``thread_local``, this thread's.

        Limit: redis-py's own locks have none. Raises LockError if the lock is not acquired."""
        acquisition = self._acquisition
        if acquisition is None or acquisition.hold.fence is None:
            raise LockError(
                "Cannot tell the fencing token of an unlocked lock", lock_name=self.name
            )
        return acquisition.hold.fence

    @abstractmethod
    def _client(self) -> LockClient | AsyncLockClient: ...

    @property
    def _acquisition(self) -> Acquisition | None:
        found: Acquisition | None = getattr(self.local, "acquisition", None)
        return found

    def _acquired_since(self, before: Acquisition | None, by: int) -> Acquisition | None:
        """The acquisition of this thread or task itself, if there is one after ``before``."""
        found = self._acquisition
        return None if found is None or found is before or found.by != by else found

    def _claim(
        self, sleep: Any, blocking: Any, blocking_timeout: Any, token: Any, owner: str
    ) -> AcquireCall | None:
        """The call to make. None: the timeout is so short that redis-py must make it."""
        milliseconds = int(self.timeout * 1000) if self.timeout else None
        if milliseconds is not None and milliseconds < SHORTEST:
            return None
        blocking = self.blocking if blocking is None else blocking
        most = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        wait = _seconds_of_tries(self.sleep if sleep is None else sleep, most) if blocking else 0
        request = Request(
            name=self._encoded(self.name).decode(errors="surrogateescape"),
            token="",
            ttl=FOREVER if milliseconds is None else min(milliseconds / 1000, LONGEST),
            owner=owner,
            mode=Mode.TRY if wait == 0 else Mode.ENQUEUE,
            max_hold=None if self.renew else 0.0,
        )
        call = AcquireCall(request, wait, "" if token is None else f":{self._encoded(token).hex()}")
        return call._replace(request=request._replace(token=call.new_token()))

    def _encoded(self, text: Any) -> bytes:
        return bytes(pool_of(self.redis).get_encoder().encode(text))

    def _taken(self, client: LockClient | AsyncLockClient, by: int, hold: Hold) -> None:
        self.local.acquisition = acquisition = Acquisition(hold, by)
        self.local.token = acquisition.value
        if self.renew and hold.ttl < FOREVER:
            client._watchdog.watch(hold)

    def _released(self, client: LockClient | AsyncLockClient, value: bytes) -> Hold:
        """End the acquisition, and return a hold to release: that of the key with this value.

        The acquisition is forgotten together with redis-py's token. While that is kept, the user
        may try again, after an error of which nobody knows whether it was released."""
        acquisition = self._acquisition
        token, deadline, ttl = UNKNOWN + value.hex(), -math.inf, self.timeout or FOREVER
        if acquisition is not None:
            hold = acquisition.hold
            acquisition.end()
            client._watchdog.unwatch(hold)
            if self.local.token is None:
                self.local.acquisition = None
            if value == acquisition.value:
                token, ttl = hold.token, max(hold.ttl, hold.latest - now())
                deadline = -math.inf if hold.lost(now()) else hold.deadline
        name = self._encoded(self.name).decode(errors="surrogateescape")
        request = Request(name, token, ttl, "")
        granted = Granted(request, None, deadline, now(), whole=False)  # the server decides
        return Hold(granted)

    @contextmanager
    def _extending(self, additional: Any, *, replaces: bool) -> Iterator[None]:
        """Note the requested time: no renewal may shorten it, and a release must know of it."""
        acquisition = self._acquisition
        if acquisition is None or acquisition.value != self._encoded(self.local.token):
            yield
            return
        hold, sent, additional = acquisition.hold, now(), float(additional)
        left = additional if replaces else additional + max(hold.deadline - sent, 0.0)
        number = hold.ask(left, sent).number
        try:
            yield
            hold.renewed(number, sent, left, now())
        finally:
            if self.renew:
                self._client()._watchdog.watch(hold)  # its renewal may be due sooner

    def _not_owned(self) -> LockNotOwnedError:
        text = "Cannot release a lock that's no longer owned"
        return LockNotOwnedError(text, lock_name=self.name)


def acquiring(
    store: Waited, call: AcquireCall, taken: Callable[[Hold], None], first: Made | None = None
) -> Step[None]:
    """Acquire. A grant by message lasts only as long as a waiter counts as alive, so it is extended
    to the whole ttl.

    ``taken`` is called with the hold, to keep it. If this is interrupted before that has returned,
    it leaves nothing behind. ``first``: the first attempt, if it was made already."""
    request, wait, _ = call
    until = None if wait is None else now() + wait
    while True:
        granted = yield from waiting.acquire(store, request, wait, call.new_token, first=first)
        first = None
        try:
            hold = Hold(granted)
            if not granted.whole or _may_be_short(granted.request):
                yield from holding.extend(store, hold, request.ttl)
            taken(hold)
        except GeneratorExit:
            raise
        except LeaseLost:  # gone before it was extended, as by an operator: try again
            wait = None if until is None else max(until - now(), 0.0)
            request = request._replace(token=call.new_token())
        except BaseException:
            yield from holding.abandon(store, granted.request)
            raise
        else:
            return


def _may_be_short(request: Request) -> bool:
    """Whether it may be a grant by message that lasts for less than the ttl. A grant does not show
    that itself if the ttl is half a second or less."""
    return request.mode is Mode.POLL and request.ttl <= alive_for(request.ttl)


def _seconds_of_tries(sleep: float, most: float | None) -> float | None:
    """The seconds for which redis-py tries; None: for ever. It tries at once and after each
    ``sleep``, and gives up if the next try would come after ``blocking_timeout``."""
    if most is None or most == math.inf:
        return None
    if sleep <= 0:
        return max(most, 0.0)
    return max(math.ceil(most / sleep) - 1, 0) * sleep


def client_for(handed: Any, kind: type[C], loop: asyncio.AbstractEventLoop | None = None) -> C:
    """The client of a pool, which lives as long as the pool. For asyncio, one per event loop."""
    pool = pool_of(handed)
    if isinstance(pool, redis.ConnectionPool) == issubclass(kind, AsyncLockClient):
        raise ConfigurationError(OTHER_KIND)
    clients: dict[asyncio.AbstractEventLoop | None, Any] = vars(pool).setdefault(OURS, {})
    known = clients.get(loop)
    if known is None:
        for other in list(clients):
            if other is not None and other.is_closed():
                clients.pop(other, None)
        settings = AliasSettings(
            "redis-py", "redis://", key_prefix="", max_queue=None, options={"client": pool},
            backend=f"{LentStore.__module__}:{LentStore.__name__}",
        )  # fmt: skip
        known = clients.setdefault(loop, kind(LentStore.from_settings(settings), settings))
    return cast(C, known)


@contextmanager
def errors_of_redis(pool: Any) -> Iterator[None]:
    """Raise errors of the store as those of redis-py that caused them, or that are like them."""
    try:
        yield
    except BackendError as error:
        cause = error.__cause__
        if isinstance(cause, RedisError):
            raise as_of_redis(cause, is_managed=hasattr(pool, "is_master")) from None
        timed_out = isinstance(cause, TimeoutError)
        raise (redis.TimeoutError if timed_out else redis.ConnectionError)(str(error)) from cause
