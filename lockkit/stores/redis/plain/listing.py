"""How operators look at plain keys, and release them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lockkit.engine.effects import Step
from lockkit.engine.state import GRACE_SECONDS, SECOND
from lockkit.model.errors import DamagedRecord, StoreRefused
from lockkit.model.names import repair_command
from lockkit.model.types import LockInfo, LockState, Page
from lockkit.stores.redis.plain.language import FOREVER, PlainLanguage
from lockkit.stores.redis.protocol import pack
from lockkit.stores.redis.replies import info_of, waiting_of
from lockkit.stores.redis.scripts import call, call_all, look

PAGE = 500
"""Keys of the database that one request looks at."""

SCANNED_MOST = 2_000_000
"""Keys of the database that each of the two scans of a listing looks at."""

NO_KEY, NO_TTL = -2, -1
MILLISECOND = 1000


class PlainListing:
    """The steps of ``Listed``. Only a listing scans the database; nothing else does."""

    _language: PlainLanguage
    _repair_ttl: float

    def page(self, name: str | None, cursor: _Cursor | None = None) -> Step[Page]:
        """First the names that lockkit has used. Then, if there is a prefix, the other keys with
        it, which may be locks of other clients."""
        if name is not None:
            return Page((yield from self._details([name])))
        at = cursor or _Cursor(set())
        if at.looked >= SCANNED_MOST:
            raise StoreRefused(
                f"the database has more than {SCANNED_MOST:,} keys, and a listing looks at no "
                "more: ask for one name, or give locks a database of their own"
            )
        keys = self._language.keys
        pattern = keys.all_keys() if at.others else keys.all_states()
        packed = self._language.scan(pattern, at.scanned, PAGE, strings=at.others)
        scanned, found = yield from look(packed)
        names = [keys.name(key if at.others else keys.key_beside(key)) for key in found]
        fresh = [each for each in dict.fromkeys(names) if each and each not in at.seen]
        at.seen.update(fresh)
        rows = yield from self._details(fresh)
        if scanned != b"0":
            return Page(rows, at._replace(scanned=scanned, looked=at.looked + PAGE))
        if at.others or not keys.prefix:
            return Page(rows)
        return Page(rows, _Cursor(at.seen, others=True))

    def _details(self, names: Sequence[str]) -> Step[list[LockInfo]]:
        replies = yield from call_all([self._language.details(name) for name in names])
        rows = (_read(name, reply) for name, reply in zip(names, replies, strict=True))
        return [row for row in rows if row is not None]

    def break_(self, name: str, fence: int, by: str = "") -> Step[bool]:
        return bool((yield from call(self._language.break_(name, fence, by))))

    def last_words(self, name: str | None = None) -> Step[list[LockInfo]]:
        """What an operator did with this name in the last ten minutes: released its lease, or
        repaired its key. Nothing else is kept of a lease, and names are not searched for it."""
        words = [] if name is None else (yield from self._words(name))
        return [info for info in words if -(info.left or 0.0) < GRACE_SECONDS]

    def ended(self, name: str, fence: int | None) -> Step[LockInfo | None]:
        words = yield from self._words(name)
        return next((info for info in words if info.fence == fence), None)

    def _words(self, name: str) -> Step[list[LockInfo]]:
        try:
            asked = [self._language.last_words(name), pack(b"TIME")]
            found, (second, microsecond) = yield from look(asked)
        except DamagedRecord:
            return []
        now = int(second) * SECOND + int(microsecond)
        words = [_words(name, said.decode(errors="replace"), now) for said in found if said]
        return [info for info in words if info is not None]

    def repair(self, name: str, by: str = "", shown: LockInfo | None = None) -> Step[bool]:
        """Give a key without a TTL that of the alias, too. ``shown``: only if it is a lease without
        a TTL, and is still that lease; if it is damage, no key gets a TTL."""
        what = "all"
        if shown is not None:
            what = "damage" if shown.state is LockState.DAMAGED else shown.mark
        command = self._language.repair(name, self._repair_ttl, by, what)
        return bool((yield from call(command)))


class _Cursor(NamedTuple):
    """Where a listing goes on. SCAN may return a key twice."""

    seen: set[str]
    scanned: bytes = b"0"
    others: bool = False  #: the scan is for other clients' keys
    looked: int = 0  #: keys of the database in this scan so far


def _read(name: str, reply: Sequence[Any]) -> LockInfo | None:
    """The info of one name; None: there is nothing to tell."""
    *known, damage, mark = reply
    if damage:
        return LockInfo(name, LockState.DAMAGED, damage=_damaged(name, damage.decode()))
    info = _info(name, known)
    return None if info is None else info._replace(mark=mark.decode())


def _info(name: str, known: Sequence[Any]) -> LockInfo | None:
    moment, left, ours, record, waiters, alive, first = known
    now = int(moment)
    if not record and (left != NO_KEY or waiters):
        queue = tuple(waiting_of(first, now))
        state = LockState.QUEUED if left == NO_KEY else LockState.HELD
        info = LockInfo(name, state, waiters=waiters, waiters_alive=alive, queue=queue)
        return info._replace(left=_seconds(left))
    if not record:
        return None
    info = info_of(name, record[34:], now, (waiters, alive, first))
    if (info.ttl or 0.0) >= FOREVER:
        info = info._replace(ttl=None)
    if left == NO_KEY:
        return _without_key(info)
    if ours:
        return info._replace(state=LockState.HELD, left=_seconds(left))
    return LockInfo(
        name, LockState.HELD, left=_seconds(left), waiters=waiters, waiters_alive=alive,
        queue=info.queue,
    )  # fmt: skip


def _words(name: str, said: str, now: int) -> LockInfo | None:
    """None: somebody else wrote it. It only informs."""
    try:
        fence, when, by = said.split(" ", 2)
        info = LockInfo(name, LockState.LOST, fence=int(fence) or None, broken_by=by)
        return info._replace(left=(int(when) - now) / SECOND)
    except (ValueError, OverflowError):
        return None


def _without_key(info: LockInfo) -> LockInfo:
    """Nobody holds the name: the lease expired, or somebody deleted the key, which ends a lease."""
    if info.fence is None:  # nobody had it, but somebody waits
        return info
    return info._replace(state=LockState.ABANDONED, left=min(info.left or 0.0, 0.0))


def _seconds(left: int) -> float | None:
    return left / MILLISECOND if left >= 0 else None


def _damaged(name: str, what: str) -> str:
    if what == "its key":
        return (
            "its key is of another type, so it belongs to another program: "
            "lock another name, or set another KEY_PREFIX"
        )
    return f"{what} cannot be read, so it may be held: {repair_command(name)}"
