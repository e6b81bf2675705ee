"""How operators look at the locks in a Redis server, and release them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from lockkit.engine.effects import Step
from lockkit.model.errors import DamagedRecord, LayoutMismatch, LockError
from lockkit.model.types import LockInfo, Page
from lockkit.stores.redis.failures import refused
from lockkit.stores.redis.layout import bucket_of, encoded
from lockkit.stores.redis.protocol import ALL_BUCKETS, Protocol, pack
from lockkit.stores.redis.replies import (
    count_details,
    damaged_bucket,
    read_details,
    read_page,
    read_words,
)
from lockkit.stores.redis.scripts import call, look, look_by_script

PAGE = 250


class RedisListing:
    """The steps of ``Listed``, for one key prefix."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol

    def page(self, name: str | None, cursor: Position | None = None) -> Step[Page]:
        """One bucket at a time, or some names of a large one. The error of a bucket that is
        refused, or of another layout, comes after all the others."""
        if name is not None:
            return (yield from self._one(name))
        at = cursor or Position()
        if at.bucket not in ALL_BUCKETS:
            if at.unreadable is not None:
                raise at.unreadable
            return Page([])
        key = self._protocol.keys.bucket(at.bucket)
        try:
            packed = self._protocol.page(at.bucket, at.scanned, PAGE)
            scanned, names, infos = read_page(key, (yield from look(packed)))
            fresh = [found for found in names if found not in at.seen]
            infos += yield from self._details(at.bucket, fresh)
        except DamagedRecord:
            return Page([damaged_bucket(key)], at.next_bucket())
        except LockError as error:
            if not (refused(error) or isinstance(error, LayoutMismatch)):
                raise
            return Page([], at.next_bucket(error))
        if scanned == b"0":
            return Page(infos, at.next_bucket())
        return Page(infos, at._replace(scanned=scanned, seen=at.seen | set(fresh)))

    def _one(self, name: str) -> Step[Page]:
        bucket = bucket_of(name)
        try:
            return Page((yield from self._details(bucket, [encoded(name)])))
        except DamagedRecord:
            return Page([damaged_bucket(self._protocol.keys.bucket(bucket))])

    def _details(self, bucket: int, names: Sequence[bytes]) -> Step[list[LockInfo]]:
        key = self._protocol.keys.bucket(bucket)
        infos: list[LockInfo] = []
        while names:
            reply = yield from look_by_script(self._protocol.details(bucket, names))
            infos += read_details(key, names, reply)
            names = names[count_details(reply) :]
        return infos

    def break_(self, name: str, fence: int, by: str = "") -> Step[bool]:
        reply = yield from call(self._protocol.break_(name, fence, by))
        if reply < 0:
            reply = yield from call(self._protocol.break_shared(name, fence, by))
        return bool(reply)

    def last_words(self, name: str | None = None) -> Step[list[LockInfo]]:
        found: list[LockInfo] = []
        for bucket in ALL_BUCKETS if name is None else [bucket_of(name)]:
            with contextlib.suppress(DamagedRecord):  # ``page`` shows the damaged bucket
                found += yield from self._words(bucket, name)
        return found

    def _words(self, bucket: int, name: str | None) -> Step[list[LockInfo]]:
        told: dict[tuple[str, int | None], LockInfo] = {}
        cursor = b""
        while cursor != b"0":
            cursor, names = yield from self._names(bucket, name, cursor)
            reply = yield from look_by_script(self._protocol.last_words(bucket, names))
            for info in read_words(names, reply):
                if name in (None, info.name):
                    told.setdefault((info.name, info.fence), info)
        return list(told.values())

    def _names(
        self, bucket: int, name: str | None, cursor: bytes
    ) -> Step[tuple[bytes, list[bytes]]]:
        """A page of a bucket's names, and the next cursor."""
        if name is not None:
            return b"0", [encoded(name)]
        reply = yield from look(self._protocol.page(bucket, cursor or b"0", PAGE))
        cursor, names, _ = read_page(self._protocol.keys.bucket(bucket), reply)
        return cursor, names

    def repair(self, name: str, by: str = "", shown: LockInfo | None = None) -> Step[bool]:
        return bool((yield from call(self._protocol.repair(name, by))))

    def prefixes(self) -> Step[dict[str, bool | None]]:
        """Each client notes its prefix at its first lock, so this needs no SCAN."""
        found = yield from look(self._protocol.announced())
        others: dict[str, bool | None] = {}
        for name in (text.decode(errors="replace") for text in found):
            if name != self._protocol.keys.prefix:
                others[name] = yield from RedisListing(Protocol(name)).has_locks()
        return others

    def has_locks(self) -> Step[bool | None]:
        """None: the server shows none, but refuses to show everything."""
        cursor = Position()
        for bucket in (yield from self._used()):
            cursor = cursor._replace(bucket=bucket)
            while cursor.bucket == bucket:
                infos, cursor = yield from self.page(None, cursor)
                if infos:
                    return True
        return None if cursor.unreadable else False

    def _used(self) -> Step[list[int]]:
        """The buckets with anything in them."""
        try:
            packed = [pack(b"HLEN", self._protocol.keys.bucket(b)) for b in ALL_BUCKETS]
            lengths = yield from look(packed)
        except LockError as error:  # one of them is of another type, or its user may not see it
            if not (refused(error) or isinstance(error, DamagedRecord)):
                raise
            return list(ALL_BUCKETS)
        return [bucket for bucket, length in zip(ALL_BUCKETS, lengths, strict=True) if length]


class Position(NamedTuple):
    """Where a listing goes on. HSCAN may return a name twice while the hash is being resized."""

    bucket: int = 0
    scanned: bytes = b"0"
    seen: frozenset[bytes] = frozenset()
    unreadable: LockError | None = None
    down: frozenset[object] = frozenset()  #: the servers that did not answer

    def next_bucket(self, error: LockError | None = None) -> Position:
        return Position(self.bucket + 1, unreadable=self.unreadable or error, down=self.down)
