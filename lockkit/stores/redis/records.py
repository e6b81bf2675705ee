"""Records of orders beside their locks: claimed under a lease, finished by its fence.

A record is in the slot of its order's lock. So one script makes a claim and checks that the lease
is held; and one makes an operator's decision and checks that it is not. Records expire by
themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lockkit.engine.effects import Step
from lockkit.model.errors import (
    BackendUnavailable,
    DamagedRecord,
    OutcomeUnknown,
    StoreRefused,
)
from lockkit.model.types import ClaimReply, Finding, StoredRecord
from lockkit.stores.redis.failures import refused
from lockkit.stores.redis.health import capacity, persistence
from lockkit.stores.redis.layout import VERSION, bucket_of, encoded
from lockkit.stores.redis.protocol import ALL_BUCKETS, Script, evalsha, pack, script_of
from lockkit.stores.redis.replicas import Unconfirmed
from lockkit.stores.redis.replies import other_layout
from lockkit.stores.redis.scripts import call, call_all, look, look_by_script

if TYPE_CHECKING:
    from lockkit.stores.redis.store import RedisStore

_Page = tuple[list[tuple[str, StoredRecord]], Any]

PAGE = 100
STATE_AND_FENCE = 17
RUNNING, DONE = b"R", b"D"

_OCCUPY = script_of("time", "layout", "whole", "record_layout")
_CLAIM = script_of("time", "layout", "whole", "clock", "record", "record_claim")
_FINISH = script_of("time", "layout", "whole", "clock", "record", "record_finish")
_DROP = script_of("time", "layout", "whole", "clock", "record", "record_drop")
_RESOLVE = script_of("time", "layout", "whole", "clock", "words", "record", "record_resolve")
_LIST = script_of("time", "layout", "whole", "clock", "record_list")
_MARK = script_of("time", "clock", "record_mark")
_REPAIR = script_of("time", "layout", "whole", "clock", "words", "record_repair")

_OF_ANOTHER_TYPE = StoredRecord(b"", 0, running=True, left=1.0)


class RedisRecords:
    """See ``lockkit.stores.records.Records``."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._keys = store._protocol.keys

    def read(self, name: str) -> Step[StoredRecord | None]:
        _, record, _ = self._keys.record(name)
        try:
            value, left = yield from look([pack(b"GET", record), pack(b"PTTL", record)])
        except DamagedRecord:
            return _OF_ANOTHER_TYPE
        return _entry(value, left)

    def claim(
        self, name: str, fence: int, payload: bytes, ttl: float, *, running: bool, replaces: bool
    ) -> Step[ClaimReply]:
        yield from self._occupy()
        state = RUNNING if running else DONE
        flag = b"1" if replaces else b"0"
        arguments = [*_claim(name, fence), state, _ms(ttl), flag, payload]
        command = evalsha(_CLAIM, self._keys.record(name), arguments)
        try:
            (reply,) = yield from self._store._confirmed([command], counts=is_written)
        except Unconfirmed:
            raise
        except OutcomeUnknown:  # sent once more, as by ``look_by_script``
            (reply,) = yield from self._store._confirmed([command], counts=is_written)
        return ClaimReply(reply)

    def finish(self, name: str, fence: int, payload: bytes, ttl: float) -> Step[bool]:
        arguments = [*_claim(name, fence), _ms(ttl), payload]
        return bool((yield from self._repeatable(_FINISH, name, arguments)))

    def drop(self, name: str, fence: int) -> Step[bool]:
        return bool((yield from self._repeatable(_DROP, name, _claim(name, fence))))

    def resolve(
        self, name: str, fence: int, payload: bytes, ttl: float, *, by: str = "", owner: str = ""
    ) -> Step[bool]:
        """Not retried: a second removal would get another answer."""
        arguments = [*_claim(name, fence), _ms(ttl), payload, encoded(by), encoded(owner)]
        return bool((yield from call(evalsha(_RESOLVE, self._keys.record(name), arguments))))

    def mark(self, name: str) -> Step[None]:
        yield from self._repeatable(_MARK, name, [encoded(name)])

    def repair(
        self, name: str, is_damaged: Callable[[StoredRecord], bool], by: str = ""
    ) -> Step[bool]:
        """Not retried, like ``resolve``."""
        keys = self._keys.record(name)
        try:
            value = yield from look(pack(b"GET", keys[1]))
            if value is None or not is_damaged(_read(value, 0.0)):
                return False
            digest = hashlib.sha1(value, usedforsecurity=False).hexdigest().encode()
        except DamagedRecord:  # it is of another type
            digest = b""
        arguments = [b"=" + encoded(name), digest, encoded(by)]
        return bool((yield from call(evalsha(_REPAIR, keys, arguments))))

    def _occupy(self) -> Step[None]:
        """Take all buckets before the first order is claimed in one. Raises LayoutMismatch.

        Another version of lockkit may keep the same order in another bucket: our mark stops it. So
        none is passed over because its server is down.
        """
        if self._keys.are_occupied:
            return
        buckets = [self._keys.bucket(bucket) for bucket in ALL_BUCKETS]
        with suppress(DamagedRecord):  # a bucket of another type is reported where it is used
            versions = yield from look([pack(b"HGET", bucket, b"v") for bucket in buckets])
            for version in versions:
                if version not in (None, VERSION) and version.isdigit():
                    raise other_layout(version)
            unused = [b for b, version in zip(buckets, versions, strict=True) if version is None]
            yield from call_all([evalsha(_OCCUPY, [bucket], []) for bucket in unused])
            self._keys.are_occupied = True

    def orphans(self, name: str | None = None, cursor: Any = None) -> Step[_Page]:
        """``cursor``: the buckets still to read, where to go on in the first one, the names found
        in it so far (ZSCAN may return a name twice while names come and go), and the error of
        buckets that could not be read, which comes after all the others."""
        if name is not None:
            return (yield from self._list(bucket_of(name), [encoded(name)])), None
        if cursor is None:
            buckets, error = yield from self._in_use()
            cursor = (buckets, b"0", set(), error)
        buckets, scanned, seen, error = cursor
        if not buckets:
            if error is not None:
                raise error
            return [], None
        index = self._keys.running(buckets[0])
        try:
            packed = pack(b"ZSCAN", index, scanned, b"COUNT", b"%d" % PAGE)
            scanned, found = yield from look(packed)
        except DamagedRecord:
            return [(index.decode(), _OF_ANOTHER_TYPE)], (buckets[1:], b"0", set(), error)
        fresh = [one for one in found[::2] if one not in seen]
        entries = yield from self._list(buckets[0], fresh)
        if scanned == b"0":
            return entries, (buckets[1:], b"0", set(), error)
        return entries, (buckets, scanned, {*seen, *fresh}, error)

    def _in_use(self) -> Step[tuple[list[int], BackendUnavailable | None]]:
        """The buckets with running records, and the error of those that could not be asked."""
        try:
            counts = yield from look([pack(b"ZCARD", self._keys.running(b)) for b in ALL_BUCKETS])
        except DamagedRecord:  # one of them is of another type
            return list(ALL_BUCKETS), None
        return [bucket for bucket, count in zip(ALL_BUCKETS, counts, strict=True) if count], None

    def health(self) -> Step[list[Finding]]:
        return self._store.of_each(persistence)

    def capacity(self) -> Step[list[Finding]]:
        return self._store.of_each(capacity)

    def _list(self, bucket: int, names: Sequence[bytes]) -> Step[list[tuple[str, StoredRecord]]]:
        if not names:
            return []
        records = [self._keys.record(name.decode(errors="surrogateescape"))[1] for name in names]
        keys = [self._keys.bucket(bucket), self._keys.running(bucket), *records]
        try:
            reply = yield from look_by_script(evalsha(_LIST, keys, names))
        except DamagedRecord:  # the listing of locks shows the damaged bucket
            return []
        except OutcomeUnknown as error:
            if refused(error):  # the script writes nothing
                raise StoreRefused(str(error)) from error.__cause__
            raise
        entries = []
        for name, value, left in zip(names, reply[::2], reply[1::2], strict=True):
            entry = _entry(value or None, left)
            if entry is not None:
                entries.append((name.decode(errors="surrogateescape"), entry))
        return entries

    def _repeatable(self, script: Script, name: str, arguments: Sequence[bytes]) -> Step[Any]:
        return look_by_script(evalsha(script, self._keys.record(name), arguments))


def is_written(reply: Any) -> bool:
    """Whether a claim has been written. Only that needs replicas, if ``wait_replicas`` says so."""
    return bool(reply == ClaimReply.WRITTEN)


def _entry(value: bytes | None, left: int) -> StoredRecord | None:
    """``left`` in milliseconds: -2 when it expired between the two replies."""
    if value is None or left == -2:  # noqa: PLR2004
        return None
    return _read(value, max(left, 0) / 1000)


def _read(value: bytes, seconds: float) -> StoredRecord:
    state, fence = value[:1], value[1:STATE_AND_FENCE]
    if not (fence.isdigit() and len(value) >= STATE_AND_FENCE and state in {RUNNING, DONE}):
        return StoredRecord(b"", 0, running=True, left=seconds)  # it cannot be read
    return StoredRecord(value[STATE_AND_FENCE:], int(fence), state == RUNNING, seconds)


def _claim(name: str, fence: int) -> tuple[bytes, bytes, bytes]:
    return VERSION, b"=" + name.encode(), b"%016d" % fence


def _ms(seconds: float) -> bytes:
    return b"%d" % max(round(seconds * 1000), 1)
