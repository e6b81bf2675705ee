"""A record as bytes: a line of JSON, then the body of the response as it is. No pickle.

The version comes first. A record of a newer release is never interpreted. A checksum shows whether
a record was damaged.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

from lockkit.model.types import Owner
from lockkit.orders.record import (
    VERSION,
    Record,
    RecordState,
    Snapshot,
    dump_headers,
    load_headers,
)

CHECKSUM = 8  # characters


class Stored(NamedTuple):
    """A record that was read, and the owner that claimed it."""

    record: Record
    owner: Owner | None


def dump(record: Record, owner: Owner | None = None) -> bytes:
    """The record as bytes. ``owner``: for people; it says nothing about the client."""
    document = {
        "version": record.version,
        "order_id": record.order_id,
        "request": record.request,
        "fingerprint": record.fingerprint,
        "ttl": record.left,
        "state": str(record.state),
        "status": record.snapshot.status,
        "headers": dump_headers(record.snapshot.headers),
        "owner": None if owner is None else owner.encode(),
    }
    head, body = json.dumps(document).encode(), record.snapshot.body
    return b"%b\n%b%b" % (head, _checksum(head, body), body)


def load(payload: bytes) -> Stored | None:
    """The record, without its key; None if it is of another version, damaged, or not ours."""
    head, _, rest = payload.partition(b"\n")
    checksum, body = rest[:CHECKSUM], rest[CHECKSUM:]
    try:
        document: dict[str, Any] = json.loads(head)
        if document["version"] != VERSION or checksum != _checksum(head, body):
            return None
        return Stored(_record(document, body), _owner(document["owner"]))
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def is_newer(payload: bytes) -> bool:
    """Whether a newer release wrote what ``load`` cannot read. Otherwise it is damaged."""
    try:
        version = json.loads(payload.partition(b"\n")[0])["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return type(version) is int and version > VERSION


def _record(document: dict[str, Any], body: bytes) -> Record:
    headers = load_headers(document["headers"])
    return Record(
        key="",
        order_id=str(document["order_id"]),
        request=str(document["request"]),
        fingerprint=str(document["fingerprint"]),
        left=float(document["ttl"]),
        state=RecordState(document["state"]),
        snapshot=Snapshot(int(document["status"]), headers, body),
    )


def _checksum(head: bytes, body: bytes) -> bytes:
    return b"%08x" % zlib.crc32(body, zlib.crc32(head))


def _owner(text: object) -> Owner | None:
    return Owner.decode(text) if isinstance(text, str) else None
