"""Which keys Redis has, and where: decided for ever, as another layout would not see our locks.

All keys of a bucket share a hash tag and so a slot of a Cluster. A held lease is a field of the
bucket's one hash, next to the fence counter: a grant is one read and one write, is atomic with the
listing it appears in, leaves no key behind, and has no TTL, by which a server might choose what to
evict. Only a name that several may hold has a key of its own for its holders, which expires after
the last of them.
A change of this module or of a record's format needs a new VERSION.
"""

from __future__ import annotations

import binascii

VERSION = b"4"
BUCKETS = 64
SLOTS = 16384

PREFIXES = b"lockkit:prefixes"
"""The key of the prefixes that clients lock with in this database. An operator who looks with
another prefix is told of them."""


def encoded(name: str) -> bytes:
    """UTF-8, also for bytes that are not, which somebody else has written in place of a name."""
    return name.encode(errors="surrogateescape")


def bucket_of(name: str) -> int:
    """CRC-16/XMODEM of the UTF-8 bytes, modulo 64."""
    return binascii.crc_hqx(encoded(name), 0) % BUCKETS


def slot_of(key: bytes) -> int:
    """The slot of a Cluster: CRC-16/XMODEM of the hash tag, or of the key, modulo 16384."""
    tag = key.partition(b"{")[2].partition(b"}")
    return binascii.crc_hqx(tag[0] if tag[0] and tag[1] else key, 0) % SLOTS


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.are_occupied = False  #: all buckets are known to have this layout, for orders

    def bucket(self, bucket: int) -> bytes:
        return self._tag(bucket) + b"b"

    def tombs(self, bucket: int) -> bytes:
        return self._tag(bucket) + b"t"

    def holders(self, name: str) -> bytes:
        """The key for the holders of a name that several may hold."""
        return self._tag(bucket_of(name)) + b"h:" + encoded(name)

    def record(self, name: str) -> tuple[bytes, bytes, bytes]:
        """bucket, record, running: the KEYS of every script on the record of an order."""
        tag = self._tag(bucket_of(name))
        return tag + b"b", tag + b"o:" + encoded(name), tag + b"r"

    def running(self, bucket: int) -> bytes:
        """The names of one bucket whose records are running."""
        return self._tag(bucket) + b"r"

    def channel(self, instance: str) -> bytes:
        """Where the waiters of one process (or event loop) are told of their grants.

        The scripts separate fields by spaces, which a prefix may have."""
        prefix = self.prefix.replace(" ", "_").encode()
        return b"%b:wake:%b" % (prefix, instance.encode())

    def of_name(self, name: str) -> tuple[bytes, ...]:
        """bucket, queue, waiters, tombs, alive: the KEYS of every script on a name."""
        tag, text = self._tag(bucket_of(name)), encoded(name)
        return tag + b"b", tag + b"q:" + text, tag + b"w:" + text, tag + b"t", tag + b"a:" + text

    def _tag(self, bucket: int) -> bytes:
        return b"{%b:%d}:" % (self.prefix.encode(), bucket)
