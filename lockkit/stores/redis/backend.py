"""The blocking Redis backend."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from lockkit.model.errors import BackendError, DamagedRecord, LockError
from lockkit.model.settings import AliasSettings
from lockkit.model.types import (
    Busy,
    Capabilities,
    Gone,
    Grant,
    LockInfo,
    Mode,
    Release,
    Renewal,
    Request,
    alive_for,
)
from lockkit.runtime import process
from lockkit.stores.base import AsyncBackend, Backend, Danger
from lockkit.stores.redis.connections import (
    Connections,
    OwnConnections,
    PooledConnections,
    call,
    exchange,
    load_and_run,
    look,
    pipeline,
)
from lockkit.stores.redis.failures import refused
from lockkit.stores.redis.health import eviction
from lockkit.stores.redis.layout import encoded
from lockkit.stores.redis.mailbox import Mailbox
from lockkit.stores.redis.protocol import (
    ALL_BUCKETS,
    NO_CHANNEL,
    POLL,
    Command,
    Protocol,
    pack,
)
from lockkit.stores.redis.records import RedisRecords
from lockkit.stores.redis.replies import (
    count_details,
    damaged_bucket,
    read_acquire,
    read_details,
    read_extend,
    read_page,
    read_release,
    read_words,
)
from lockkit.stores.redis.settings import maker

__all__ = ["RedisBackend"]

PAGE = 250


class RedisBackend(Backend):
    """Locks in one Redis or Valkey server. See the package for guarantee and limits."""

    capabilities = Capabilities(push=True)

    def __init__(self, connections: Connections, prefix: str, *, listens: bool = True) -> None:
        """``listens=False``: its waiters poll, because nobody will call ``wait`` for them."""
        self._connections = connections
        self._listens = listens
        self._protocol = Protocol(prefix)
        self._is_announced = False
        self._start()
        process.after_fork(self._start)

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> RedisBackend:
        make = maker(settings, redis.ConnectionPool)
        return cls(OwnConnections(make), settings.key_prefix)

    @classmethod
    def from_pool(
        cls, pool: redis.ConnectionPool, prefix: str, *, listens: bool = True
    ) -> RedisBackend:
        """Over the pool of an existing client, whose limits and time-outs then apply."""
        return cls(PooledConnections(pool), prefix, listens=listens)

    @classmethod
    def async_from_settings(cls, settings: AliasSettings) -> AsyncBackend:
        from lockkit.stores.redis.aio import AsyncRedisBackend

        return AsyncRedisBackend.from_settings(settings)

    def _start(self) -> None:
        channel = self._protocol.keys.channel(secrets.token_hex(8))
        self._mail = Mailbox(self._connections, channel)
        self._mail.forbidden = not self._listens

    def acquire(self, request: Request) -> Grant | Busy | Gone:
        mail = self._mail
        if request.mode is not Mode.ENQUEUE:
            reply = self._ask(request, request.mode)
            if isinstance(reply, Gone):
                mail.doubt()
        elif not (mail.is_open or mail.forbidden):
            # Only somebody who listens may queue; somebody who finds it free need not listen.
            reply = self._ask(request, Mode.TRY)
            if not isinstance(reply, Busy):
                return reply
            mail.open()
            return self.acquire(request)
        else:
            mail.expect(request.token)
            try:
                reply = self._ask(request, Mode.ENQUEUE)
            except BaseException:  # nobody will wait for a message
                mail.forget(request.token)
                raise
        if not isinstance(reply, Busy) or reply.full:
            mail.forget(request.token)
        return reply

    def _ask(self, request: Request, mode: Mode) -> Grant | Busy | Gone:
        channel = NO_CHANNEL if self._mail.forbidden else self._mail.channel
        command = self._protocol.acquire(request, mode, channel)
        reply = read_acquire(request, call(self._connections, command))
        if not self._is_announced:
            self._announce()
        return reply

    def release(self, request: Request) -> Release:
        return read_release(call(self._connections, self._protocol.release(request)))

    def withdraw(self, request: Request) -> None:
        self._mail.forget(request.token)
        call(self._connections, self._protocol.withdraw(request))

    def extend(self, requests: Sequence[Request]) -> list[Renewal]:
        """One script per bucket, all in one pipeline; one by one if one of them is refused."""
        batches = list(self._protocol.extend(requests))
        renewals = [Renewal(None)] * len(requests)
        try:
            if len(batches) == 1:
                replies = [call(self._connections, batches[0][0])]
            else:
                replies = self._pipeline([command for command, _ in batches])
        except LockError as error:
            if not refused(error):
                raise
            replies = [self._extend_one(command) for command, _ in batches]
        for (_, positions), reply in zip(batches, replies, strict=True):
            if isinstance(reply, LockError):
                for position in positions:
                    renewals[position] = Renewal(None, reply)
            else:
                read_extend(requests, positions, reply, renewals)
        return renewals

    def _extend_one(self, command: Command) -> Any:
        """One bucket; that the server refuses it says nothing of the others."""
        try:
            return call(self._connections, command)
        except LockError as error:
            if not refused(error):
                raise
            return error

    def _pipeline(self, commands: Sequence[Command]) -> list[Any]:
        try:
            return pipeline(self._connections, [command.packed for command in commands])
        except redis.exceptions.NoScriptError:
            return load_and_run(self._connections, commands)

    def wait(self, request: Request, seconds: float, busy: Busy) -> Grant | None:
        """The ``left`` of a grant by message is what the waiter's last sign of life leaves it."""
        if self._mail.forbidden:
            time.sleep(min(seconds, POLL))
            return None
        fence = self._mail.wait(request.token, busy.ticket, seconds)
        if fence is None:
            return None
        self._mail.forget(request.token)
        return Grant(request.token, fence, min(request.ttl, alive_for(request.ttl)))

    def holders(self, name: str | None = None) -> Iterator[LockInfo]:
        buckets = ALL_BUCKETS if name is None else [self._protocol.bucket(name)]
        unreadable = None
        for bucket in buckets:
            try:
                if name is None:
                    yield from self._bucket(bucket)
                else:
                    yield from self._details(bucket, [encoded(name)])
            except DamagedRecord:
                yield damaged_bucket(self._protocol.keys.bucket(bucket))
            except LockError as error:  # after all the others
                if not refused(error):
                    raise
                unreadable = unreadable or error
        if unreadable is not None:
            raise unreadable

    def _bucket(self, bucket: int) -> Iterator[LockInfo]:
        """All of one bucket. HSCAN may return a name twice while the hash is being resized."""
        seen: set[bytes] = set()
        cursor = b"0"
        while True:
            packed = self._protocol.page(bucket, cursor, PAGE)
            cursor, names, damaged = read_page(
                self._protocol.keys.bucket(bucket), self._look(packed)
            )
            yield from damaged
            fresh = [name for name in names if name not in seen]
            seen.update(fresh)
            if fresh:
                yield from self._details(bucket, fresh)
            if cursor == b"0":
                return

    def _details(self, bucket: int, names: Sequence[bytes]) -> Iterator[LockInfo]:
        key = self._protocol.keys.bucket(bucket)
        while names:
            command = self._protocol.details(bucket, names)
            reply = look(lambda: call(self._connections, command))  # noqa: B023
            yield from read_details(key, names, reply)
            names = names[count_details(reply) :]

    def _look(self, packed: bytes) -> Any:
        return look(lambda: exchange(self._connections, packed))

    def break_(self, name: str, fence: int, by: str = "") -> bool:
        reply = call(self._connections, self._protocol.break_(name, fence, by))
        if reply < 0:
            reply = call(self._connections, self._protocol.break_shared(name, fence, by))
        return bool(reply)

    def last_words(self, name: str | None = None) -> Iterator[LockInfo]:
        buckets = ALL_BUCKETS if name is None else [self._protocol.bucket(name)]
        for bucket in buckets:
            told: set[tuple[str, int | None]] = set()
            with contextlib.suppress(DamagedRecord):  # the bucket has a row of its own
                for names in self._names(bucket) if name is None else [[encoded(name)]]:
                    command = self._protocol.last_words(bucket, names)
                    reply = look(lambda: call(self._connections, command))  # noqa: B023
                    for info in read_words(names, reply):
                        if (info.name, info.fence) not in told and name in (None, info.name):
                            told.add((info.name, info.fence))
                            yield info

    def _names(self, bucket: int) -> Iterator[list[bytes]]:
        """In pages, of which there is at least one."""
        cursor = b""
        while cursor != b"0":
            packed = self._protocol.page(bucket, cursor or b"0", PAGE)
            key = self._protocol.keys.bucket(bucket)
            cursor, names, _ = read_page(key, self._look(packed))
            yield names

    def repair(self, name: str) -> bool:
        return bool(call(self._connections, self._protocol.repair(name)))

    def records(self) -> RedisRecords:
        return RedisRecords(self._connections, self._protocol.keys)

    def database(self) -> str:
        return self._connections.fresh.described()

    def prefixes(self) -> dict[str, bool]:
        """What a client has noted at its first lock: no SCAN."""
        found = self._look(self._protocol.announced())
        names = [name.decode(errors="replace") for name in found]
        return {name: self._has_locks(name) for name in names if name != self._protocol.keys.prefix}

    def _has_locks(self, prefix: str) -> bool:
        return next(type(self)(self._connections, prefix).holders(), None) is not None

    def _announce(self) -> None:
        """Once: a user that may not write the note has none."""
        self._is_announced = True
        with contextlib.suppress(BackendError):
            call(self._connections, self._protocol.announce())

    def close(self) -> None:
        self._mail.close()
        self._connections.close()

    def check(self) -> None:
        self._look(pack(b"PING"))

    def health(self) -> Iterator[Danger]:
        return eviction(self._look)
