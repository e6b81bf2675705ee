"""The requests to Redis, as bytes. ``replies`` reads the answers.

Commands are packed here, in one go, because packing argument by argument costs as much as the
round trip on a local server.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple, TypeVar

from lockkit.engine.state import SECOND
from lockkit.engine.times import alive_for
from lockkit.model.types import Kind, Request
from lockkit.runtime.process import TOKEN_BYTES
from lockkit.stores.redis.layout import BUCKETS, PREFIXES, Keys, bucket_of, encoded

B = TypeVar("B")

NO_CHANNEL = b"-"
REMEMBERED_HEADS = 4096
EXTENDED_AT_ONCE = 100
POLL = 0.02
"""Seconds between the polls of a waiter whose user may not subscribe (an ACL forbids it)."""

NONE = b"-"

DIGIT = b"$1\r\n0\r\n", b"$1\r\n1\r\n", b"$1\r\n2\r\n"
"""Arguments, packed."""

TOKEN_LENGTH = 2 * TOKEN_BYTES
TOKEN_SIZE, END = b"$%d\r\n" % TOKEN_LENGTH, b"\r\n"

MUTEX = Kind.MUTEX  # looked up once: a look-up takes as long as packing an argument

EXCLUSIVE, SHARED = b"X", b"S"

KINDS = {Kind.MUTEX: b"M", Kind.SEMAPHORE: b"S", Kind.RW: b"R", Kind.REENTRANT: b"E"}
"""How a name is used: the first byte of its record."""


class Script:
    """``heads``: the beginnings of its calls, packed, by the names of locks."""

    __slots__ = ("heads", "sha", "source")

    def __init__(self, source: bytes) -> None:
        self.sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        self.source = source
        self.heads: dict[str, bytes] = {}


class Command(NamedTuple):
    """A packed EVALSHA, and its script for the case that the server does not have it."""

    packed: bytes
    script: Script


def script_of(*names: str) -> Script:
    """Join fragments into a script. The usual cases come first, and end it when they apply."""
    return Script(b"".join(_fragment(name) for name in names))


@cache
def _fragment(name: str) -> bytes:
    return (files("lockkit.stores.redis") / "lua" / f"{name}.lua").read_bytes()


def bulk(parts: Iterable[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def pack(*parts: bytes) -> bytes:
    """A RESP command."""
    return b"*%d\r\n" % len(parts) + bulk(parts)


def load_scripts(commands: Sequence[Command]) -> list[bytes]:
    """The requests that load the scripts of these commands."""
    return [pack(b"SCRIPT", b"LOAD", script.source) for script in {c.script for c in commands}]


class Packed(ABC):
    """Packs calls of scripts on one name. Their beginning stays the same, and is packed once."""

    @abstractmethod
    def _first(self, script: Script, name: str) -> Sequence[bytes]:
        """The number of its keys, the keys, and the arguments that depend on the name alone."""

    def _command(self, script: Script, name: str, *arguments: bytes) -> Command:
        head = script.heads.get(name) or self._head(script, name, len(arguments))
        return Command(head + bulk(arguments), script)

    def _claim(
        self, script: Script, request: Request, arguments: int, rest: bytes, first: bytes = b""
    ) -> Command:
        """``arguments``: the number of arguments in ``first``, the token and ``rest``, in this
        order. ``first`` and ``rest`` are packed already."""
        head = script.heads.get(request.name) or self._head(script, request.name, arguments)
        token = request.token.encode()
        size = TOKEN_SIZE if len(token) == TOKEN_LENGTH else b"$%d\r\n" % len(token)
        packed = b"".join((head, first, size, token, END, rest))
        return tuple.__new__(Command, (packed, script))

    def _head(self, script: Script, name: str, arguments: int) -> bytes:
        parts = [b"EVALSHA", script.sha, *self._first(script, name)]
        head = b"*%d\r\n" % (len(parts) + arguments) + bulk(parts)
        if len(script.heads) >= REMEMBERED_HEADS:
            script.heads.clear()
        script.heads[name] = head
        return head


class Protocol(Packed):
    """Requests to bytes, for one key prefix."""

    def __init__(self, prefix: str, publish: str = "publish") -> None:
        """``publish``: the fragment that tells a waiter of its grant."""
        self.keys = Keys(prefix)
        queue = "store", "install", "queue"
        look = "time", "layout", "whole", "clock"
        claim = *look, "claim"
        several = *claim, "hold_most"
        shared = "words", "sample", "store", publish, "shared"
        share = *several, "shared_free", *shared, "shared_acquire"
        free = "time", "acquire_free", *look[1:], "words", "sample", "acquire_first"
        acquire = (*free, publish, *queue, "acquire")
        self._acquire = script_of("fair", *acquire)
        self._barge = script_of("unfair", *acquire)
        release = "time", "release_now", publish, "release_free", *claim[1:], *queue, "release"
        self._release = script_of(*release)
        self._withdraw = script_of(*claim, publish, *queue, "withdraw")
        self._break = script_of(*claim, "words", publish, *queue, "break")
        self._extend = script_of(*look, "extend")
        self._acquire_shared = script_of("fair", *share)
        self._barge_shared = script_of("unfair", *share)
        self._release_shared = script_of(*several, "shared_release_free", *shared, "shared_release")
        self._withdraw_shared = script_of(*several, *shared, "shared_withdraw")
        self._break_shared = script_of(*several, *shared, "shared_break")
        self._extend_shared = script_of(*look, "shared_extend")
        self._announce = script_of("time", "clock", "announce")
        self._list = script_of(*look, "looking", "list")
        self._words = script_of(*look, "words", "looking", "last_words")
        self._repair = script_of(*look, "words", "looking", "repair")
        self._shared = {
            self._acquire_shared,
            self._barge_shared,
            self._release_shared,
            self._withdraw_shared,
            self._break_shared,
            self._repair,
        }

    def acquire(self, request: Request, mode: int, channel: bytes) -> Command:
        queue, hold = request.max_queue, request.max_hold
        asked = terms(DIGIT[mode], request.ttl, request.owner, queue, hold, channel)
        if request.kind is MUTEX:
            script = self._acquire if request.fair else self._barge
            return self._claim(script, request, 5, asked)
        form = SHARED if request.shared else EXCLUSIVE
        entrant = request.entrant.encode() or NONE
        script = self._acquire_shared if request.fair else self._barge_shared
        return self._claim(script, request, 8, asked + bulk((form, entrant)), _used(request))

    def release(self, request: Request) -> Command:
        """A request that is ``queued`` may have no more than a place in the queue."""
        unsure = DIGIT[request.unsure]
        if request.kind is MUTEX:
            script = self._withdraw if request.queued else self._release
            return self._claim(script, request, 2, unsure)
        script = self._withdraw_shared if request.queued else self._release_shared
        return self._claim(script, request, 3, unsure, _used(request))

    def break_(self, name: str, fence: int, by: str) -> Command:
        """For a mutex. The reply -1 says that the name is not one: use ``break_shared``."""
        return self._command(self._break, name, b"%d" % fence, by.encode(errors="replace"))

    def break_shared(self, name: str, fence: int, by: str) -> Command:
        who = by.encode(errors="replace")
        return self._command(self._break_shared, name, b"*", b"%d" % fence, who)

    def repair(self, name: str, by: str) -> Command:
        return self._command(self._repair, name, by.encode(errors="replace"))

    def extend(self, requests: Sequence[Request]) -> Iterator[tuple[Command, list[int]]]:
        """One or more commands per bucket, each with the positions of its requests.

        The mutexes that are renewed together mostly have the same ttl and number: sent only once.
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

    def page(self, bucket: int, cursor: bytes, count: int) -> bytes:
        """Asks for some more fields of a bucket."""
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

    def _first(self, script: Script, name: str) -> Sequence[bytes]:
        keys = list(self.keys.of_name(name))
        if script in self._shared:
            keys.append(self.keys.holders(name))
        return b"%d" % len(keys), *keys, b"=" + encoded(name)


_OF_EACH = 0.0, 0
"""Stands for the ttl and number of a batch in which each claim has its own."""


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
    """Split the batches, so that no script takes long: the server serves nobody else meanwhile."""
    for batch, positions in batches.items():
        for start in range(0, len(positions), EXTENDED_AT_ONCE):
            yield batch, positions[start : start + EXTENDED_AT_ONCE]


@lru_cache(maxsize=256)
def terms(  # noqa: PLR0917
    mode: bytes,
    ttl: float,
    owner: str,
    max_queue: int | None,
    max_hold: float | None,
    channel: bytes,
) -> bytes:
    """Four packed arguments of a claim. One thread sends the same ones again and again."""
    us = microseconds(ttl)
    held = NONE if max_hold is None else microseconds(max_hold)
    queued = NONE if max_queue is None else b"%d" % max_queue
    waiting = b"%b %b %b" % (microseconds(alive_for(ttl)), queued, channel)
    holder = b"%b %b %b" % (us, held, owner.encode(errors="replace"))
    return mode + bulk((us, holder, waiting))


def microseconds(seconds: float) -> bytes:
    return b"%d" % round(seconds * SECOND)


def _used(request: Request) -> bytes:
    """The kind and the permits, as one packed argument."""
    return bulk((b"%b%d" % (KINDS[request.kind], request.permits),))


def evalsha(script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Command:
    return Command(pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *arguments), script)


ALL_BUCKETS = range(BUCKETS)
