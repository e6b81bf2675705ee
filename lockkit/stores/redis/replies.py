"""The replies of Redis as values. ``protocol`` has the requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lockkit.engine.last_words import DAY
from lockkit.engine.state import SECOND
from lockkit.model.errors import (
    OTHER_KIND,
    UNNAMED,
    WRITE_FIRST,
    DamagedRecord,
    InvalidName,
    KindMismatch,
    LayoutMismatch,
    LockError,
    UpgradeRefused,
)
from lockkit.model.names import check_name, repair_command
from lockkit.model.types import (
    Busy,
    Gone,
    Grant,
    Kind,
    LockInfo,
    LockState,
    Owner,
    Release,
    Renewal,
    Request,
    Waiting,
)
from lockkit.stores.redis.layout import VERSION, encoded
from lockkit.stores.redis.protocol import KINDS, SHARED

DIGITS = 16  # no number of ours has more, but what is read may be anything
KIND_OF = {code: kind for kind, code in KINDS.items()}

Queue = tuple[int, int, Sequence[bytes]]


def read_acquire(request: Request, reply: bytes) -> Grant | Busy | Gone:
    """A reply with a damaged ticket is Gone: it is not ours, so the claim starts anew."""
    try:
        return _acquired(request, reply)
    except ValueError:
        return Gone()


def _acquired(request: Request, reply: bytes) -> Grant | Busy | Gone:
    kind = reply[:1]
    if kind == b"G":
        _, fence, left = reply.split(b" ")
        return Grant(request.token, int(fence), int(left) / SECOND)
    if kind not in b"BF":
        return Gone()
    full = kind == b"F"  # then the reply has no ticket
    *ticket, ahead, left, holder = reply[2:].split(b" ", 3 - full)
    return Busy(
        ticket=int(ticket[0]) if ticket else 0,
        ahead=int(ahead),
        left=None if left == b"-" else int(left) / SECOND,
        holder=holder.decode(errors="replace"),
        full=full,
    )


RELEASES = tuple(Release)  # Release(reply) takes five times as long


def read_extend(
    requests: Sequence[Request],
    positions: Sequence[int],
    replies: Sequence[int | None],
    into: list[Renewal],
) -> None:
    for position, reply in zip(positions, replies, strict=True):
        if reply is None:
            into[position] = Renewal(None, damaged_record("its record"))
            continue
        left = requests[position].ttl if reply > 0 else -reply / SECOND
        into[position] = Renewal(left or None)


def read_page(bucket: bytes, reply: Sequence[Any]) -> tuple[bytes, list[bytes], list[LockInfo]]:
    """The next cursor, the names of a page, and the damage to the bucket's own fields.

    Raises LayoutMismatch, as every step of a name in that bucket would.
    """
    cursor, fields = reply
    damaged = []
    for field, value in zip(fields[::2], fields[1::2], strict=True):
        if field == b"v" and value != VERSION:
            error = other_layout(value)
            if not isinstance(error, DamagedRecord):
                raise error
            damaged.append(damaged_bucket(bucket, "HSET {} v " + VERSION.decode()))
    return cursor, [field[1:] for field in fields[::2] if field[:1] == b"="], damaged


def read_details(bucket: bytes, names: Sequence[bytes], reply: Sequence[Any]) -> Iterator[LockInfo]:
    """The infos of as many names as the reply has: see ``count_details``."""
    now = int(reply[0])
    for index, text in enumerate(names[: count_details(reply)]):
        record, waiters, alive, entries, damage, first = reply[1 + 6 * index : 7 + 6 * index]
        name = text.decode(errors="surrogateescape")
        if damage:
            yield _damaged(bucket, name, damage.decode())
        if record[:1] == KINDS[Kind.MUTEX]:
            yield info_of(name, record[2:], now, (waiters, alive, first))
        elif record:
            kind = KIND_OF[record[:1]]
            for entry in sorted(entries, key=_fence_of):
                yield _holder(name, kind, entry, now, (waiters, alive, first))


def count_details(reply: Sequence[Any]) -> int:
    """How many names the reply has. It may leave out the last ones, if many claims share them."""
    return len(reply) // 6


def _fence_of(entry: bytes) -> bytes:
    return entry[17:33]


def other_layout(version: bytes) -> LockError:
    if not version.isdigit():
        return damaged_record("its bucket")
    return LayoutMismatch(
        f"the store has lockkit's layout {version.decode()[:9]}, this release speaks "
        f"{VERSION.decode()}: use the same release everywhere"
    )


def _holder(name: str, kind: Kind, entry: bytes, now: int, queue: Queue = (0, 0, ())) -> LockInfo:
    """One of those who share a name."""
    permits, _, rest = entry[81:].split(b" ", 2)
    info = info_of(name, entry[1:81] + rest, now, queue)
    return info._replace(kind=kind, permits=int(permits), shared=entry[:1] == SHARED)


def info_of(name: str, text: bytes, now: int, queue: Queue = (0, 0, ())) -> LockInfo:
    """Read a record after its token, or an entry after its form: numbers of 16 digits, then the
    rest. ``queue``: how many wait, how many of them are alive, and the first ones."""
    waiters, alive, first = queue
    waiting = tuple(waiting_of(first, now))
    until, fence, granted, renewed = (int(text[16 * i : 16 + 16 * i]) for i in range(4))
    ttl, max_hold, owner = text[80:].split(b" ", 2)
    if ttl == b"0":  # nobody holds it, and the next one that asks goes on with the queue
        return LockInfo(name, LockState.QUEUED, waiters=waiters, waiters_alive=alive, queue=waiting)
    return LockInfo(
        name=name,
        state=LockState.HELD if until > now else LockState.ABANDONED,
        owner=Owner.decode(owner.decode(errors="replace")),
        fence=fence or None,
        age=(now - granted) / SECOND,
        left=(until - now) / SECOND,
        renewed=(now - renewed) / SECOND,
        ttl=int(ttl) / SECOND,
        max_hold=int(max_hold) / SECOND if max_hold.isdigit() and len(max_hold) < DIGITS else None,
        waiters=waiters,
        waiters_alive=alive,
        queue=waiting,
    )


def waiting_of(first: Sequence[bytes], now: int) -> Iterator[Waiting]:
    """The waiters. A ticket is the moment at which it was drawn, or a little later; a damaged one
    may be any number."""
    for ticket, alive, says in zip(first[::3], first[1::3], first[2::3], strict=True):
        parts = says.split(b" ", 1)[-1]  # without the channel
        owner = parts.split(b" ", 5 if parts[:2] in (b"X ", b"S ") else 2)[-1]
        since = max((now - max(float(ticket), 0.0)) / SECOND, 0.0)
        yield Waiting(Owner.decode(owner.decode(errors="replace")), since, float(alive) > now)


def read_words(names: Sequence[bytes], reply: Sequence[Any]) -> Iterator[LockInfo]:
    """The words that were written down in a bucket, and those of names that are abandoned there."""
    now = int(reply[0])
    for words in reply[1]:
        if words and (info := _written(words, now)):
            yield info
    for index, text in enumerate(names):
        record, entries = reply[2 + 2 * index : 4 + 2 * index]
        name = text.decode(errors="surrogateescape")
        if record[:1] == KINDS[Kind.MUTEX]:
            yield from _lost(info_of(name, record[1:], now), None, "")
        for entry in entries:
            yield from _lost(_holder(name, KIND_OF[record[:1]], entry, now), None, "")


def _written(words: bytes, now: int) -> LockInfo | None:
    """See words.lua. Text that somebody else has written is skipped: it holds nothing."""
    try:
        at, kind, form = int(words[:16]), KIND_OF[words[16:17]], words[17:18]
        permits, length, said, rest = words[19:].split(b" ", 3)
        name, by, tail = (
            rest[: int(length)], rest[int(length) : int(length) + int(said)],
            rest[int(length) + int(said) :],
        )  # fmt: skip
        info = info_of(name.decode(), tail, now)
    except (ValueError, KeyError):
        return None
    if info.fence is None:  # a repair, so that nothing is known of a holder
        info = LockInfo(info.name, info.state)
    info = info._replace(kind=kind, permits=int(permits), shared=form == SHARED)
    return next(_lost(info, (at - now) / SECOND, by.decode(errors="replace")), None)


def _lost(info: LockInfo, left: float | None, by: str) -> Iterator[LockInfo]:
    left = info.left if left is None else left
    if left is not None and left > -DAY / SECOND:
        yield info._replace(state=LockState.LOST, left=left, broken_by=by)


def damaged_record(what: str) -> DamagedRecord:
    return DamagedRecord(f"what the store keeps of {UNNAMED} cannot be read: {what}")


def _damaged(bucket: bytes, name: str, what: str) -> LockInfo:
    try:
        repair = repair_command(check_name(name))
    except InvalidName:  # nobody can lock it
        escaped = "".join(f"\\x{byte:02x}" for byte in encoded(name))
        repair = f'HDEL "{bucket.decode()}" "={escaped}" in redis-cli'
    damage = f"{what} cannot be read, so it may be held: {repair}"
    return LockInfo(name, LockState.DAMAGED, damage=damage)


def damaged_bucket(key: bytes, repair: str = "DEL {}") -> LockInfo:
    """A damaged key that many names share. It may be somebody else's, so it is not deleted here."""
    name = key.decode()
    damage = f"it cannot be read, so its names may be held: {repair} in redis-cli"
    return LockInfo(name, LockState.DAMAGED, damage=damage.format(f'"{name}"'))


def _said(message: str, after: str) -> str:
    return re.split(r" ?script: |, on @", message.partition(after)[2])[0]


def script_error(message: str) -> LockError | None:
    """The error with which a script of ours replied; None for any other message. Redis puts words
    of its own around some of them."""
    if "LAYOUT " in message:
        return other_layout(_said(message, "LAYOUT ").encode())
    if "DAMAGED " in message:
        return damaged_record(_said(message, "DAMAGED "))
    if "WRONGTYPE" in message:
        return damaged_record("one of its keys is of another type")
    if message.startswith("KIND "):
        kind, permits = message[5:].split(" ")
        used_as = KIND_OF[kind.encode()].described(int(permits))
        return KindMismatch(f"{UNNAMED} is in use as {used_as}: {OTHER_KIND}")
    if message.startswith("UPGRADE"):
        return UpgradeRefused(f"a reader of {UNNAMED} asked to write it: {WRITE_FIRST}")
    return None
