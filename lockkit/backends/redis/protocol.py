"""What is said to Redis and what it answers, as bytes: shared by the sync and the async backend.

Commands are packed here, in one go, because packing argument by argument costs as much as the
round trip on a local server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from lockkit.backends.redis.layout import BUCKETS, VERSION, Keys, bucket_of
from lockkit.errors import KindMismatch, LayoutMismatch
from lockkit.grant import SECOND
from lockkit.types import (
    Busy,
    Gone,
    Grant,
    LockInfo,
    LockState,
    Owner,
    Release,
    Renewal,
    Request,
    alive_for,
)

__all__ = ["Command", "Protocol", "Script", "evalsha", "pack", "script_of"]

NO_CHANNEL = b"-"
REMEMBERED_HEADS = 4096
POLL = 0.02
"""Seconds between the polls of a waiter whose user may not subscribe (an ACL forbids it)."""

NONE = b"-"


class Script(NamedTuple):
    sha: bytes
    source: bytes


class Command(NamedTuple):
    """A packed EVALSHA, and its script for the case that the server does not have it."""

    packed: bytes
    script: Script


def script_of(*names: str) -> Script:
    """Joined fragments: what most calls need comes first, and ends the script if it is enough."""
    folder = files("lockkit.backends.redis") / "lua"
    source = b"".join((folder / f"{name}.lua").read_bytes() for name in names)
    return Script(hashlib.sha1(source, usedforsecurity=False).hexdigest().encode(), source)


def pack(*parts: bytes) -> bytes:
    """A RESP command."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


class Protocol:
    """Requests to bytes and replies to values, for one key prefix."""

    def __init__(self, prefix: str) -> None:
        self.keys = Keys(prefix)
        self._acquire = script_of("clock", "acquire_free", "queue", "acquire")
        self._release = script_of("claim", "release_free", "clock", "queue", "release")
        self._withdraw = script_of("claim", "clock", "queue", "withdraw")
        self._break = script_of("claim", "clock", "queue", "break")
        self._extend = script_of("clock", "extend")
        self._list = script_of("clock", "list")
        self._terms = lru_cache(maxsize=256)(_terms)
        self._heads: dict[tuple[bytes, str], bytes] = {}

    def acquire(self, request: Request, mode: int, channel: bytes) -> Command:
        return self._command(
            self._acquire,
            request.name,
            request.token.encode(),
            b"%d" % mode,
            *self._terms(request.ttl, request.max_hold, request.owner, request.max_queue, channel),
        )

    def release(self, request: Request) -> Command:
        return self._command(self._release, request.name, *_claim(request))

    def withdraw(self, request: Request) -> Command:
        return self._command(self._withdraw, request.name, *_claim(request))

    def break_(self, name: str, fence: int) -> Command:
        return self._command(self._break, name, b"%d" % fence)

    def extend(self, requests: Sequence[Request]) -> Iterator[tuple[Command, list[int]]]:
        """A command per bucket, and which of the requests it is for."""
        buckets: dict[int, list[int]] = {}
        for position, request in enumerate(requests):
            buckets.setdefault(bucket_of(request.name), []).append(position)
        for bucket, positions in buckets.items():
            arguments: list[bytes] = []
            for position in positions:
                request = requests[position]
                arguments += (
                    request.name.encode(),
                    request.token.encode(),
                    _us(request.ttl),
                    b"%d" % request.number,
                )
            yield evalsha(self._extend, [self.keys.bucket(bucket)], arguments), positions

    @property
    def extending(self) -> Script:
        return self._extend

    def bucket(self, name: str) -> int:
        return bucket_of(name)

    def page(self, bucket: int, cursor: bytes, count: int) -> bytes:
        """Some more of a bucket's fields."""
        return pack(b"HSCAN", self.keys.bucket(bucket), cursor, b"COUNT", b"%d" % count)

    def details(self, bucket: int, names: Sequence[bytes]) -> Command:
        keys = [self.keys.bucket(bucket)]
        for name in names:
            keys += self.keys.of_name(name.decode())[1:3]
        return evalsha(self._list, keys, names)

    def _command(self, script: Script, name: str, *arguments: bytes) -> Command:
        """EVALSHA of a script on one name. What is the same for each name is packed once."""
        head = self._heads.get((script.sha, name))
        if head is None:
            head = self._head(script, name, len(arguments))
        tail = b"".join([b"$%d\r\n%b\r\n" % (len(a), a) for a in arguments])
        return Command(head + tail, script)

    def _head(self, script: Script, name: str, arguments: int) -> bytes:
        keys = self.keys.of_name(name)
        parts = [b"EVALSHA", script.sha, b"%d" % len(keys), *keys, b"=" + name.encode()]
        body = b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)
        head = b"*%d\r\n" % (len(parts) + arguments) + body
        if len(self._heads) >= REMEMBERED_HEADS:
            self._heads.clear()
        self._heads[script.sha, name] = head
        return head


def _terms(
    ttl: float, max_hold: float | None, owner: str, max_queue: int | None, channel: bytes
) -> tuple[bytes, bytes, bytes]:
    """The arguments that one process sends again and again."""
    us = _us(ttl)
    held = NONE if max_hold is None else _us(max_hold)
    queued = NONE if max_queue is None else b"%d" % max_queue
    return (
        us,
        b"%b %b %b" % (us, held, owner.encode(errors="replace")),
        b"%b %b %b" % (_us(alive_for(ttl)), queued, channel),
    )


def _us(seconds: float) -> bytes:
    return b"%d" % round(seconds * SECOND)


def _claim(request: Request) -> tuple[bytes, bytes]:
    return request.token.encode(), b"1" if request.unsure else b"0"


def evalsha(script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Command:
    return Command(pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *arguments), script)


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


def read_release(reply: int) -> Release:
    return Release(reply)


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
    for index, name in enumerate(names):
        record, waiters, alive = reply[1 + 3 * index : 4 + 3 * index]
        if record:
            yield _info(name.decode(), record, waiters, alive, now)


def _info(name: str, record: bytes, waiters: int, alive: int, now: int) -> LockInfo:
    """A record as the list script shows it: kind, queued, then 16 digits each, then the rest."""
    until, fence, granted, renewed = (int(record[2 + 16 * i : 18 + 16 * i]) for i in range(4))
    ttl, max_hold, owner = record[82:].split(b" ", 2)
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


def layout_error(message: str) -> LayoutMismatch | KindMismatch | None:
    """The scripts' own error replies."""
    if message.startswith("LAYOUT "):
        return LayoutMismatch(
            f"the store has lockkit's layout {message[7:]}, this release speaks "
            f"{VERSION.decode()}: use the same release everywhere, or another KEY_PREFIX"
        )
    if message.startswith("KIND "):
        return KindMismatch("the name is in use as another kind of lock")
    return None


ALL_BUCKETS = range(BUCKETS)
