"""The requests to Redis about plain keys, as bytes. The replies are those of ``redis://``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockkit.model.types import Request
from lockkit.stores.redis.plain.keys import PlainKeys
from lockkit.stores.redis.protocol import (
    DIGIT,
    Command,
    Packed,
    Script,
    microseconds,
    pack,
    script_of,
    terms,
)

FOREVER = 9.4e8
"""Seconds: the key of a claim with this TTL or a longer one has no TTL. See plain_value.lua."""

LONGEST = 8.9e8
"""Seconds, 28 years: the longest TTL of a key. A record has no room for one of a billion."""


class PlainLanguage(Packed):
    """Requests to bytes, for one key prefix. ``repairs``: a claim gives its own ttl to a key that
    has none and is not lockkit's."""

    def __init__(self, prefix: str, *, repairs: bool) -> None:
        self.keys = PlainKeys(prefix)
        self._repairs = DIGIT[repairs]
        first = "time", "clock", "layout", "plain_value"
        claim = "whole", "plain_claim", "store"
        granting = (*claim, "plain_install", "publish", "queue")
        looking = (*first, "whole", "looking")
        acquire = (*first, "plain_acquire_free", *granting, "plain_acquire")
        self._acquire = script_of("fair", *acquire)
        self._barge = script_of("unfair", *acquire)
        self._release = script_of(*first, "plain_release_free", *granting, "plain_release")
        self._extend = script_of(*first, *claim, "plain_extend")
        self._break = script_of(*first, *granting, "plain_break")
        self._list = script_of(*looking, "plain_list")
        self._repair = script_of(*looking, "plain_repair")

    def channel(self, instance: str) -> bytes:
        return b"lockkit:plain:wake:%b" % instance.encode()

    def acquire(self, request: Request, mode: int, channel: bytes) -> Command:
        script = self._acquire if request.fair else self._barge
        queue, hold = request.max_queue, request.max_hold
        asked = terms(DIGIT[mode], request.ttl, request.owner, queue, hold, channel)
        return self._claim(script, request, 6, asked + self._repairs)

    def release(self, request: Request) -> Command:
        rest = DIGIT[request.unsure] + DIGIT[request.queued]
        return self._claim(self._release, request, 3, rest)

    def extend(self, requests: Sequence[Request]) -> Iterator[tuple[Command, list[int]]]:
        for position, request in enumerate(requests):
            mine = request.token.encode(), microseconds(request.ttl), b"%d" % request.number
            yield self._command(self._extend, request.name, *mine), [position]

    def break_(self, name: str, fence: int, by: str) -> Command:
        return self._command(self._break, name, b"%d" % fence, by.encode(errors="replace"))

    def last_words(self, name: str) -> bytes:
        return pack(b"HMGET", self.keys.of_name(name)[0], b"w", b"W")

    def details(self, name: str) -> Command:
        return self._command(self._list, name)

    def repair(self, name: str, ttl: float, by: str, what: str) -> Command:
        who = by.encode(errors="replace")
        return self._command(self._repair, name, microseconds(ttl), who, what.encode())

    def scan(self, pattern: bytes, cursor: bytes, keys: int, *, strings: bool) -> bytes:
        kind = (b"TYPE", b"string") if strings else (b"TYPE", b"hash")
        return pack(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % keys, *kind)

    def _first(self, script: Script, name: str) -> Sequence[bytes]:
        keys = self.keys.of_name(name)
        return b"%d" % len(keys), *keys
