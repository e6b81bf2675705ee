"""Where a plain key and what lies beside it are in Redis."""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache
from itertools import count

from lockkit.stores.redis.layout import SLOTS, encoded, slot_of

BESIDE = b"}:lockkit:plain:"
"""Between the hash tag and the key, in the name of what lies beside that key. A tag has no brace in
it, so the key begins after the first of these."""

STATE, QUEUE, WAITERS, TOMBS, ALIVE = b"s:", b"q:", b"w:", b"t:", b"a:"


def tag_of(key: bytes) -> bytes:
    """The hash tag that puts another key into the same slot of a Cluster."""
    _, brace, rest = key.partition(b"{")
    tag, end, _ = rest.partition(b"}")
    if brace and end and tag:
        return tag
    return key if b"}" not in key else _tag_of_slot(slot_of(key))


@lru_cache(maxsize=SLOTS)
def _tag_of_slot(slot: int) -> bytes:
    """A tag for a key that cannot stand in braces itself: the first number with this slot."""
    numbers = map(b"%d".__mod__, count())  # of thousands; without a brace, so quicker than slot_of
    return next(tag for tag in numbers if crc_hqx(tag, 0) % SLOTS == slot)


class PlainKeys:
    """The keys of names under one prefix, which may be empty."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode()
        self.of_name = lru_cache(maxsize=1024)(self._of_name)

    def key(self, name: str) -> bytes:
        return self.prefix + encoded(name)

    def name(self, key: bytes) -> str:
        return key.removeprefix(self.prefix).decode(errors="surrogateescape")

    def _of_name(self, name: str) -> tuple[bytes, ...]:
        """The KEYS of every script: see plain_value.lua."""
        key = self.key(name)
        beside = b"{" + tag_of(key) + BESIDE
        return (*(beside + kind + key for kind in (STATE, QUEUE, WAITERS, TOMBS, ALIVE)), key)

    def all_states(self) -> bytes:
        """A pattern for what lies beside the keys that lockkit uses."""
        return b"{*" + BESIDE + STATE + _literally(self.prefix) + b"*"

    def all_keys(self) -> bytes:
        return _literally(self.prefix) + b"*"

    @staticmethod
    def key_beside(state: bytes) -> bytes:
        """The key whose state this is."""
        return state.partition(BESIDE + STATE)[2]


def _literally(text: bytes) -> bytes:
    """Escaped, for a pattern."""
    return b"".join(b"\\%c" % byte if byte in b"*?[]\\^" else b"%c" % byte for byte in text)
