"""What Redis answers, as values: shared by the sync and the async backend. See ``protocol``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lockkit.backends.redis.layout import VERSION
from lockkit.backends.redis.protocol import KINDS, NONE, SHARED
from lockkit.errors import ConfigurationError, KindMismatch, LayoutMismatch, UpgradeRefused
from lockkit.state import SECOND
from lockkit.types import (
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
)

__all__ = [
    "Message",
    "layout_error",
    "read_acquire",
    "read_details",
    "read_extend",
    "read_message",
    "read_page",
    "read_release",
]

KIND_OF = {code: kind for kind, code in KINDS.items()}


def read_acquire(request: Request, reply: bytes) -> Grant | Busy | Gone:
    kind = reply[:1]
    if kind == b"G":
        fence, _, left = reply[2:].partition(b" ")
        return Grant(request.token, int(fence), int(left) / SECOND if left else request.ttl)
    if kind == b"B":
        _, ticket, ahead, left, holder = reply.split(b" ", 4)
        return Busy(int(ticket), int(ahead), int(left) / SECOND, holder.decode(errors="replace"))
    if kind == b"F":
        _, ahead, left, holder = reply.split(b" ", 3)
        return Busy(0, int(ahead), int(left) / SECOND, holder.decode(errors="replace"), full=True)
    return Gone()


class Message(NamedTuple):
    """A grant by message."""

    token: str
    ticket: int
    fence: int


def read_message(reply: Sequence[Any]) -> Message | None:
    """What came over the subscription, if it is a grant: anybody with the right may publish."""
    if reply[0] != b"message":
        return None
    try:
        token, ticket, fence = reply[2].decode().split(" ")
        return Message(token, int(ticket), int(fence))
    except ValueError:
        return None


_RELEASES = tuple(Release)  # Release(reply) takes five times as long


def read_release(reply: int) -> Release:
    return _RELEASES[reply]


def read_extend(
    requests: Sequence[Request],
    positions: Sequence[int],
    replies: Sequence[int],
    into: list[Renewal],
) -> None:
    for position, reply in zip(positions, replies, strict=True):
        left = requests[position].ttl if reply > 0 else -reply / SECOND
        into[position] = Renewal(left or None)


def read_page(reply: Sequence[Any]) -> tuple[bytes, list[bytes]]:
    """The next cursor and the names of a page; the bucket's own fields are not names."""
    cursor, fields = reply
    return cursor, [field[1:] for field in fields[::2] if field[:1] == b"="]


def read_details(names: Sequence[bytes], reply: Sequence[Any]) -> Iterator[LockInfo]:
    now = int(reply[0])
    for index, text in enumerate(names):
        record, waiters, alive, entries = reply[1 + 4 * index : 5 + 4 * index]
        name = text.decode()
        if record[:1] == KINDS[Kind.MUTEX]:
            yield _info(name, record[2:], waiters, alive, now)
        elif record:
            kind, permits = KIND_OF[record[:1]], int(record[2:])
            for entry in sorted(entries, key=_fence_of):
                fixed, (_, rest) = entry[1:81], entry[81:].split(b" ", 1)
                info = _info(name, fixed + rest, waiters, alive, now)
                yield info._replace(kind=kind, permits=permits, shared=entry[:1] == SHARED)


def _fence_of(entry: bytes) -> bytes:
    return entry[17:33]


def _info(name: str, text: bytes, waiters: int, alive: int, now: int) -> LockInfo:
    """What a record says after its token, and an entry after its form: 16 digits each, then the
    rest."""
    until, fence, granted, renewed = (int(text[16 * i : 16 + 16 * i]) for i in range(4))
    ttl, max_hold, owner = text[80:].split(b" ", 2)
    return LockInfo(
        name=name,
        state=LockState.HELD if until > now else LockState.ABANDONED,
        owner=Owner.decode(owner.decode(errors="replace")),
        fence=fence,
        age=(now - granted) / SECOND,
        left=(until - now) / SECOND,
        renewed=(now - renewed) / SECOND,
        ttl=int(ttl) / SECOND,
        max_hold=None if max_hold == NONE else int(max_hold) / SECOND,
        waiters=waiters,
        waiters_alive=alive,
    )


def layout_error(message: str) -> ConfigurationError | None:
    """The scripts' own error replies."""
    if message.startswith("LAYOUT "):
        return LayoutMismatch(
            f"the store has lockkit's layout {message[7:]}, this release speaks "
            f"{VERSION.decode()}: use the same release everywhere, or another KEY_PREFIX"
        )
    if message.startswith("KIND "):
        kind, permits = message[5:].split(" ")
        used_as = KIND_OF[kind.encode()].described(int(permits))
        return KindMismatch(f"the name is in use as {used_as}")
    if message.startswith("UPGRADE"):
        return UpgradeRefused("a reader of the name asked to write it")
    return None
