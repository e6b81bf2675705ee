"""Records of orders beside their locks: claimed under a lease, finished by its fence.

A record is in the slot of its order's lock, so a claim is one step with the proof that the lease
is held, and an operator's decision with the proof that it is not. Records expire by themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from lockkit.model.errors import DamagedRecord
from lockkit.model.types import Claimed, Entry
from lockkit.stores.base import Danger
from lockkit.stores.redis.aio_link import Link
from lockkit.stores.redis.connections import (
    Connections,
    call,
    exchange,
    load_and_run,
    look,
    pipeline,
)
from lockkit.stores.redis.health import capacity, persistence, server
from lockkit.stores.redis.layout import VERSION, Keys, bucket_of, encoded
from lockkit.stores.redis.protocol import ALL_BUCKETS, Command, evalsha, pack, script_of
from lockkit.stores.redis.replies import other_layout

__all__ = ["AsyncRedisRecords", "RedisRecords"]

PAGE = 100
STATE_AND_FENCE = 17
RUNNING, DONE = b"R", b"D"

_OCCUPY = script_of("layout", "whole", "record_layout")
_CLAIM = script_of("layout", "whole", "clock", "record", "record_claim")
_FINISH = script_of("layout", "whole", "clock", "record", "record_finish")
_DROP = script_of("layout", "whole", "clock", "record", "record_drop")
_RESOLVE = script_of("layout", "whole", "clock", "words", "record", "record_resolve")
_LIST = script_of("layout", "whole", "clock", "record_list")
_MARK = script_of("clock", "record_mark")
_REPAIR = script_of("layout", "whole", "clock", "record_repair")

_OF_ANOTHER_TYPE = Entry(b"", 0, running=True, left=1.0)


class _Commands:
    """What both twins say."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def versions(self) -> list[bytes]:
        """Of the layout of each bucket."""
        return [pack(b"HGET", self._keys.bucket(bucket), b"v") for bucket in ALL_BUCKETS]

    def occupy(self, versions: Sequence[bytes | None]) -> list[Command]:
        """Take all buckets before the first order is claimed in one. Raises LayoutMismatch.

        Another release keeps the same order in another bucket: there, too, it must meet us.
        """
        for version in versions:
            if version not in (None, VERSION) and version.isdigit():
                raise other_layout(version)
        unused = (bucket for bucket, version in enumerate(versions) if version is None)
        return [evalsha(_OCCUPY, [self._keys.bucket(bucket)], []) for bucket in unused]

    def read(self, name: str) -> list[bytes]:
        _, record, _ = self._keys.record(name)
        return [pack(b"GET", record), pack(b"PTTL", record)]

    def claim(
        self, name: str, fence: int, payload: bytes, ttl: float, *, running: bool, replaces: bool
    ) -> Command:
        state = RUNNING if running else DONE
        keys = self._keys.record(name)
        flag = b"1" if replaces else b"0"
        return evalsha(_CLAIM, keys, [*_claim(name, fence), state, _ms(ttl), flag, payload])

    def finish(self, name: str, fence: int, payload: bytes, ttl: float) -> Command:
        keys = self._keys.record(name)
        return evalsha(_FINISH, keys, [*_claim(name, fence), _ms(ttl), payload])

    def drop(self, name: str, fence: int) -> Command:
        return evalsha(_DROP, self._keys.record(name), _claim(name, fence))

    def resolve(
        self, name: str, fence: int, payload: bytes, ttl: float, *, by: str, owner: str
    ) -> Command:
        keys, said = self._keys.record(name), (encoded(by), encoded(owner))
        return evalsha(_RESOLVE, keys, [*_claim(name, fence), _ms(ttl), payload, *said])

    def count(self, bucket: int) -> bytes:
        return pack(b"ZCARD", self._keys.running(bucket))

    def page(self, bucket: int, cursor: bytes) -> bytes:
        return pack(b"ZSCAN", self._keys.running(bucket), cursor, b"COUNT", b"%d" % PAGE)

    def list(self, bucket: int, names: Sequence[bytes]) -> Command:
        records = [self._keys.record(name.decode(errors="surrogateescape"))[1] for name in names]
        keys = [self._keys.bucket(bucket), self._keys.running(bucket), *records]
        return evalsha(_LIST, keys, names)

    def mark(self, name: str) -> Command:
        return evalsha(_MARK, self._keys.record(name), [encoded(name)])

    def repair(self, name: str, digest: bytes) -> Command:
        return evalsha(_REPAIR, self._keys.record(name), [b"=" + encoded(name), digest])


class RedisRecords:
    """See ``lockkit.stores.base.Records``."""

    def __init__(self, connections: Connections, keys: Keys) -> None:
        self._connections = connections
        self._keys = keys
        self._commands = _Commands(keys)

    def read(self, name: str) -> Entry | None:
        packed = self._commands.read(name)
        try:
            return _entry(*look(lambda: pipeline(self._connections, packed)))
        except DamagedRecord:
            return _OF_ANOTHER_TYPE

    def claim(
        self, name: str, fence: int, payload: bytes, ttl: float, *, running: bool, replaces: bool
    ) -> Claimed:
        self._occupy()
        command = self._commands.claim(
            name, fence, payload, ttl, running=running, replaces=replaces
        )
        return Claimed(self._repeatable(command))

    def finish(self, name: str, fence: int, payload: bytes, ttl: float) -> bool:
        return bool(self._repeatable(self._commands.finish(name, fence, payload, ttl)))

    def drop(self, name: str, fence: int) -> bool:
        return bool(self._repeatable(self._commands.drop(name, fence)))

    def resolve(
        self, name: str, fence: int, payload: bytes, ttl: float, *, by: str = "", owner: str = ""
    ) -> bool:
        """Not repeated: the second answer to a removal would be another one."""
        command = self._commands.resolve(name, fence, payload, ttl, by=by, owner=owner)
        return bool(call(self._connections, command))

    def mark(self, name: str) -> None:
        self._repeatable(self._commands.mark(name))

    def repair(self, name: str, is_damaged: Callable[[Entry], bool]) -> bool:
        """Not repeated, as ``resolve`` is not."""
        try:
            value = self._ask(self._commands.read(name)[0])
            if value is None or not is_damaged(_read(value, 0.0)):
                return False
            digest = hashlib.sha1(value, usedforsecurity=False).hexdigest().encode()
        except DamagedRecord:  # it is of another type
            digest = b""
        return bool(call(self._connections, self._commands.repair(name, digest)))

    def orphans(self, name: str | None = None) -> Iterator[tuple[str, Entry]]:
        if name is not None:
            with suppress(DamagedRecord):  # the bucket has a row of its own
                yield from self._list(bucket_of(name), [encoded(name)])
            return
        packed = [self._commands.count(bucket) for bucket in ALL_BUCKETS]
        try:
            counts = look(lambda: pipeline(self._connections, packed))
        except DamagedRecord:  # one of them is of another type
            counts = [1] * len(packed)
        for bucket, count in zip(ALL_BUCKETS, counts, strict=True):
            if count:
                yield from self._bucket(bucket)

    def _occupy(self) -> None:
        if self._keys.are_occupied:
            return
        packed = self._commands.versions()
        with suppress(DamagedRecord):  # a bucket of another type is told where it is needed
            found = look(lambda: pipeline(self._connections, packed))
            if commands := self._commands.occupy(found):
                look(lambda: load_and_run(self._connections, commands))
            self._keys.are_occupied = True

    def _bucket(self, bucket: int) -> Iterator[tuple[str, Entry]]:
        """ZSCAN may return a name twice while names come and go."""
        seen: set[bytes] = set()
        cursor = b"0"
        while True:
            packed = self._commands.page(bucket, cursor)
            try:
                cursor, found = look(lambda: exchange(self._connections, packed))  # noqa: B023
            except DamagedRecord:
                yield self._keys.running(bucket).decode(), _OF_ANOTHER_TYPE
                return
            fresh = [name for name in found[::2] if name not in seen]
            seen.update(fresh)
            with suppress(DamagedRecord):
                yield from self._list(bucket, fresh)
            if cursor == b"0":
                return

    def health(self) -> Iterator[Danger]:
        return persistence(self._ask)

    def capacity(self) -> Iterator[Danger]:
        return capacity(self._ask)

    def server(self) -> str | None:
        return server(self._ask)

    def _ask(self, packed: bytes) -> Any:
        return look(lambda: exchange(self._connections, packed))

    def _list(self, bucket: int, names: Sequence[bytes]) -> Iterator[tuple[str, Entry]]:
        if not names:
            return
        command = self._commands.list(bucket, names)
        reply = look(lambda: call(self._connections, command))
        for position, name in enumerate(names):
            value, left = reply[2 * position : 2 * position + 2]
            entry = _entry(value or None, left)
            if entry is not None:
                yield name.decode(errors="surrogateescape"), entry

    def _repeatable(self, command: Command) -> Any:
        return look(lambda: call(self._connections, command))


class AsyncRedisRecords:
    """See ``lockkit.stores.base.AsyncRecords``."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._commands = _Commands(keys)

    async def read(self, name: str) -> Entry | None:
        packed = self._commands.read(name)
        try:
            return _entry(*await self._link.look(lambda: self._link.pipeline(packed)))
        except DamagedRecord:
            return _OF_ANOTHER_TYPE

    async def claim(
        self, name: str, fence: int, payload: bytes, ttl: float, *, running: bool, replaces: bool
    ) -> Claimed:
        await self._occupy()
        command = self._commands.claim(
            name, fence, payload, ttl, running=running, replaces=replaces
        )
        return Claimed(await self._repeatable(command))

    async def finish(self, name: str, fence: int, payload: bytes, ttl: float) -> bool:
        return bool(await self._repeatable(self._commands.finish(name, fence, payload, ttl)))

    async def drop(self, name: str, fence: int) -> bool:
        return bool(await self._repeatable(self._commands.drop(name, fence)))

    async def mark(self, name: str) -> None:
        await self._repeatable(self._commands.mark(name))

    async def _occupy(self) -> None:
        if self._keys.are_occupied:
            return
        packed = self._commands.versions()
        with suppress(DamagedRecord):
            found = await self._link.look(lambda: self._link.pipeline(packed))
            if commands := self._commands.occupy(found):
                await self._link.look(lambda: self._link.load_and_run(commands))
            self._keys.are_occupied = True

    async def _repeatable(self, command: Command) -> Any:
        return await self._link.look(lambda: self._link.call(command))


def _entry(value: bytes | None, left: int) -> Entry | None:
    """``left`` in milliseconds: -2 when it expired between the two replies."""
    if value is None or left == -2:  # noqa: PLR2004
        return None
    return _read(value, max(left, 0) / 1000)


def _read(value: bytes, seconds: float) -> Entry:
    state, fence = value[:1], value[1:STATE_AND_FENCE]
    if not (fence.isdigit() and len(value) >= STATE_AND_FENCE and state in {RUNNING, DONE}):
        return Entry(b"", 0, running=True, left=seconds)  # nothing can be read of it
    return Entry(value[STATE_AND_FENCE:], int(fence), state == RUNNING, seconds)


def _claim(name: str, fence: int) -> tuple[bytes, bytes, bytes]:
    return VERSION, b"=" + name.encode(), b"%016d" % fence


def _ms(seconds: float) -> bytes:
    return b"%d" % max(round(seconds * 1000), 1)
