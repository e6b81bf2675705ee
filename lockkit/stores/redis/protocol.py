"""The requests to Redis, as bytes, for both wires. ``replies`` reads the answers.

Commands are packed here, in one go, because packing argument by argument costs as much as the
round trip on a local server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple, TypeVar

from lockkit.engine.state import SECOND
from lockkit.model.types import Kind, Request, alive_for
from lockkit.stores.redis.layout import BUCKETS, PREFIXES, Keys, bucket_of, encoded

B = TypeVar("B")

NO_CHANNEL = b"-"
REMEMBERED_HEADS = 4096
EXTENDED_AT_ONCE = 100
POLL = 0.02
"""Seconds between the polls of a waiter whose user may not subscribe (an ACL forbids it)."""

NONE = b"-"

EXCLUSIVE, SHARED = b"X", b"S"

KINDS = {Kind.MUTEX: b"M", Kind.SEMAPHORE: b"S", Kind.RW: b"R", Kind.REENTRANT: b"E"}
"""As what a name is used: the first byte of its record."""


class Script(NamedTuple):
    sha: bytes
    source: bytes


class Command(NamedTuple):
    """A packed EVALSHA, and its script for the case that the server does not have it."""

    packed: bytes
    script: Script


def script_of(*names: str) -> Script:
    """Joined fragments: what most calls need comes first, and ends the script if it is enough."""
    folder = files("lockkit.stores.redis") / "lua"
    source = b"".join((folder / f"{name}.lua").read_bytes() for name in names)
    return Script(hashlib.sha1(source, usedforsecurity=False).hexdigest().encode(), source)


def pack(*parts: bytes) -> bytes:
    """A RESP command."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def load_scripts(commands: Sequence[Command]) -> list[bytes]:
    """The requests that load the scripts of these commands."""
    return [pack(b"SCRIPT", b"LOAD", script.source) for script in {c.script for c in commands}]


class Protocol:
    """Requests to bytes and replies to values, for one key prefix."""

    def __init__(self, prefix: str, publish: str = "publish") -> None:
        """``publish``: the fragment that tells a waiter of its grant."""
        self.keys = Keys(prefix)
        queue = "store", "install", publish, "queue"
        shared = "layout", "whole", "claim", "clock", "words", "sample", "store", publish, "shared"
        free = "layout", "clock", "acquire_free", "whole", "words", "sample", "acquire_first"
        acquire = (*free, *queue, "acquire")
        self._acquire = script_of("fair", *acquire)
        self._barge = script_of("unfair", *acquire)
        self._release = script_of(
            "layout", "claim", "release_free", "whole", "clock", *queue, "release"
        )
        self._withdraw = script_of("layout", "whole", "claim", "clock", *queue, "withdraw")
        self._break = script_of("layout", "whole", "claim", "clock", "words", *queue, "break")
        self._extend = script_of("layout", "whole", "clock", "extend")
        self._acquire_shared = script_of("fair", *shared, "shared_acquire")
        self._barge_shared = script_of("unfair", *shared, "shared_acquire")
        self._release_shared = script_of(*shared, "shared_release")
        self._withdraw_shared = script_of(*shared, "shared_withdraw")
        self._break_shared = script_of(*shared, "shared_break")
        self._extend_shared = script_of("layout", "whole", "clock", "shared_extend")
        self._announce = script_of("clock", "announce")
        self._list = script_of("layout", "whole", "clock", "looking", "list")
        self._words = script_of("layout", "whole", "clock", "words", "looking", "last_words")
        self._repair = script_of("layout", "whole", "clock", "looking", "repair")
        self._shared = {
            self._acquire_shared,
            self._barge_shared,
            self._release_shared,
            self._withdraw_shared,
            self._break_shared,
            self._repair,
        }
        self._terms = lru_cache(maxsize=256)(terms)
        self._heads: dict[tuple[bytes, str], bytes] = {}

    def acquire(self, request: Request, mode: int, channel: bytes) -> Command:
        ttl, held, waiting = self._terms(request.ttl, request.max_hold, request.max_queue, channel)
        owner = held + request.owner.encode(errors="replace")
        claim = request.token.encode(), b"%d" % mode, ttl, owner, waiting
        if request.kind is Kind.MUTEX:
            script = self._acquire if request.fair else self._barge
            return self._command(script, request.name, *claim)
        form = SHARED if request.shared else EXCLUSIVE
        entrant = request.entrant.encode() or NONE
        script = self._acquire_shared if request.fair else self._barge_shared
        return self._command(script, request.name, _used(request), *claim, form, entrant)

    def release(self, request: Request) -> Command:
        if request.kind is Kind.MUTEX:
            return self._command(self._release, request.name, *_claim(request))
        return self._command(self._release_shared, request.name, _used(request), *_claim(request))

    def withdraw(self, request: Request) -> Command:
        if request.kind is Kind.MUTEX:
            return self._command(self._withdraw, request.name, *_claim(request))
        return self._command(self._withdraw_shared, request.name, _used(request), *_claim(request))

    def break_(self, name: str, fence: int, by: str) -> Command:
        """For a mutex; the reply -1 says that the name is none."""
        return self._command(self._break, name, b"%d" % fence, by.encode(errors="replace"))

    def break_shared(self, name: str, fence: int, by: str) -> Command:
        who = by.encode(errors="replace")
        return self._command(self._break_shared, name, b"*", b"%d" % fence, who)

    def repair(self, name: str) -> Command:
        return self._command(self._repair, name)

    def extend(self, requests: Sequence[Request]) -> Iterator[tuple[Command, list[int]]]:
        """One or more commands per bucket, and which of the requests it is for.

        What a pass extends has one ttl and one number, most often: they are said once.
        """
        batches: dict[tuple[int, float, int], list[int]] = {}
        for position, request in enumerate(requests):
            terms = (request.ttl, request.number) if request.kind is Kind.MUTEX else _OF_EACH
            batches.setdefault((bucket_of(request.name), *terms), []).append(position)
        for (bucket, ttl, _), positions in _limited(batches):
            keys, asked = [self.keys.bucket(bucket)], [requests[position] for position in positions]
            if ttl:
                yield evalsha(self._extend, keys, _alike(asked)), positions
            else:
                keys += (self.keys.holders(request.name) for request in asked)
                yield evalsha(self._extend_shared, keys, _each(asked)), positions

    def channel(self, instance: str) -> bytes:
        return self.keys.channel(instance)

    def announce(self) -> Command:
        return evalsha(self._announce, [PREFIXES], [self.keys.prefix.encode()])

    def announced(self) -> bytes:
        return pack(b"ZRANGE", PREFIXES, b"0", b"-1")

    def bucket(self, name: str) -> int:
        return bucket_of(name)

    def page(self, bucket: int, cursor: bytes, count: int) -> bytes:
        """Some more of a bucket's fields."""
        return pack(b"HSCAN", self.keys.bucket(bucket), cursor, b"COUNT", b"%d" % count)

    def details(self, bucket: int, names: Sequence[bytes]) -> Command:
        keys = [self.keys.bucket(bucket), self.keys.tombs(bucket)]
        for name in names:
            text = name.decode(errors="surrogateescape")
            _, queue, waiters, _, alive = self.keys.of_name(text)
            keys += (queue, waiters, alive, self.keys.holders(text))
        return evalsha(self._list, keys, names)

    def last_words(self, bucket: int, names: Sequence[bytes]) -> Command:
        keys = [self.keys.bucket(bucket)]
        keys += (self.keys.holders(name.decode(errors="surrogateescape")) for name in names)
        return evalsha(self._words, keys, names)

    def _command(self, script: Script, name: str, *arguments: bytes) -> Command:
        """EVALSHA of a script on one name. The part that is the same each time is packed once."""
        head = self._heads.get((script.sha, name))
        if head is None:
            head = self._head(script, name, len(arguments))
        tail = b"".join([b"$%d\r\n%b\r\n" % (len(a), a) for a in arguments])
        return Command(head + tail, script)

    def _head(self, script: Script, name: str, arguments: int) -> bytes:
        keys = list(self.keys.of_name(name))
        if script in self._shared:
            keys.append(self.keys.holders(name))
        parts = [b"EVALSHA", script.sha, b"%d" % len(keys), *keys, b"=" + encoded(name)]
        body = b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)
        head = b"*%d\r\n" % (len(parts) + arguments) + body
        if len(self._heads) >= REMEMBERED_HEADS:
            self._heads.clear()
        self._heads[script.sha, name] = head
        return head


_OF_EACH = 0.0, 0
"""The terms of a batch in which each claim says its own."""


def _alike(requests: Sequence[Request]) -> list[bytes]:
    first = requests[0]
    tokens = [request.token.encode() for request in requests]
    fields = [b"=" + request.name.encode() for request in requests]
    return [microseconds(first.ttl), b"%d" % first.number, *tokens, *fields]


def _each(requests: Sequence[Request]) -> list[bytes]:
    arguments = list[bytes]()
    for name, token, ttl, number in ((r.name, r.token, r.ttl, r.number) for r in requests):
        arguments += name.encode(), token.encode(), microseconds(ttl), b"%d" % number
    return arguments


def _limited(batches: dict[B, list[int]]) -> Iterator[tuple[B, list[int]]]:
    """In parts, so that no script takes long: nobody else is served meanwhile."""
    for batch, positions in batches.items():
        for start in range(0, len(positions), EXTENDED_AT_ONCE):
            yield batch, positions[start : start + EXTENDED_AT_ONCE]


def terms(
    ttl: float, max_hold: float | None, max_queue: int | None, channel: bytes
) -> tuple[bytes, bytes, bytes]:
    """The arguments that one process sends again and again. The owner follows the second: tasks
    have names of their own."""
    us = microseconds(ttl)
    held = NONE if max_hold is None else microseconds(max_hold)
    queued = NONE if max_queue is None else b"%d" % max_queue
    return (
        us,
        b"%b %b " % (us, held),
        b"%b %b %b" % (microseconds(alive_for(ttl)), queued, channel),
    )


def microseconds(seconds: float) -> bytes:
    return b"%d" % round(seconds * SECOND)


def _claim(request: Request) -> tuple[bytes, bytes]:
    return request.token.encode(), b"1" if request.unsure else b"0"


def _used(request: Request) -> bytes:
    return b"%b%d" % (KINDS[request.kind], request.permits)


def evalsha(script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Command:
    return Command(pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *arguments), script)


ALL_BUCKETS = range(BUCKETS)
