"""The stored record of an order: plain columns, with the version of their meaning.

No pickle. A record of an unknown, newer version is never interpreted: see ``judging``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from lockkit.model.errors import BackendUnavailable
from lockkit.orders.order import FINGERPRINT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lockkit.orders.request import OrderResponse

MICROSECONDS = 1_000_000
"""The unit of the times in the tables."""

VERSION = 2
UNLIMITED = sys.maxsize

PLACEHOLDER = ":csrf-placeholder"
"""Not a header: its value is the text that replaces a token in the body. See ``forgery``."""

KEPT_HEADERS = (
    PLACEHOLDER,
    "Content-Type",
    "Content-Language",
    "Content-Disposition",
    "Content-Security-Policy",
    "Cache-Control",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "Referrer-Policy",
    "Location",
    "ETag",
    "Link",
)
"""All other headers are made anew for each reply, or belong to one client (Set-Cookie)."""

_PROPER = {name.lower(): name for name in KEPT_HEADERS}

LONGEST_HEADERS = 8 * 1024
"""Characters of the kept headers: a view may make a Location from what its client sent."""

STATUSES = frozenset({0, *range(100, 600)})
"""The statuses of a response; 0 if there is none yet."""

NOT_STORED = frozenset({401, 403, 408, 409, 423, 425, 429})
"""Refusals that another try may overcome. The view's changes stay, without a record."""


class DuplicateKeyError(Exception):
    """Another try has written a record with this key."""


class StillRunningError(BackendUnavailable):
    """Another try still writes a record with this key after the time that a duplicate waits."""

    def __init__(self) -> None:
        super().__init__("another transaction has this order")


class RecordState(StrEnum):
    """The progress of an order."""

    RUNNING = "running"
    DONE = "done"
    TOMBSTONE = "tombstone"  #: done; the response is not kept


class Snapshot(NamedTuple):
    """A response that is given again byte for byte."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


NOTHING_YET = Snapshot(0)


@dataclass(frozen=True, slots=True)
class Record:
    """One order in the store."""

    key: str
    order_id: str
    request: str
    fingerprint: str
    left: float  #: seconds until it expires, by the clock of the store alone
    state: RecordState | str = (
        RecordState.RUNNING
    )  #: a string that is none: written by a newer release
    snapshot: Snapshot = NOTHING_YET
    version: int = VERSION


def unreadable(key: str) -> Record:
    """A record that cannot be read: its order is neither run nor replayed."""
    return Record(key, "", "", "", 0.0, state="unreadable")


def recorded(columns: Mapping[str, Any], left: int) -> Record:
    """A record from the columns of a table, with any values in them. ``left``: microseconds."""
    texts = [columns[name] for name in ("order_id", "request", "fingerprint", "state", "headers")]
    numbers = [columns[name] for name in ("status", "version", "expires")]
    is_read = {*map(type, texts)} == {str} and {*map(type, numbers)} == {int}
    if not (is_read and isinstance(columns["body"], bytes | memoryview)):
        return unreadable(str(columns["key"]))
    status, version, _ = numbers
    if status not in STATUSES:
        return unreadable(str(columns["key"]))
    try:
        return Record(
            str(columns["key"]),
            columns["order_id"],
            columns["request"],
            columns["fingerprint"],
            int(left) / MICROSECONDS,
            RecordState(columns["state"]),
            Snapshot(status, load_headers(columns["headers"]), bytes(columns["body"])),
            version,
        )
    except (ValueError, TypeError, OverflowError, RecursionError):
        return unreadable(str(columns["key"]))


def is_damaged(record: Record) -> bool:
    """Whether no release can have written the record so. A newer release's is not damaged."""
    if record.version > VERSION:
        return False
    return not has_our_fingerprint(record) or record.state not in set(RecordState)


def has_our_fingerprint(record: Record) -> bool:
    return record.fingerprint.startswith(f"{FINGERPRINT_VERSION}:")


def is_unanswered(record: Record) -> bool:
    """Whether the effects of an order were committed, but its response was not stored yet."""
    return record.state == RecordState.TOMBSTONE and record.snapshot.status == NOTHING_YET.status


def refuses(status: int) -> bool:
    """Whether a response is a temporary refusal."""
    return status in NOT_STORED


def storable(status: int) -> bool:
    """Whether a response ends the order. 5xx and temporary refusals do not."""
    return HTTPStatus.OK <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in NOT_STORED


def snapshot_of(response: OrderResponse, max_body: int) -> tuple[RecordState, Snapshot]:
    """The stored form of a response: all of it, or a tombstone with its Location.

    A response with an encoded body becomes a tombstone: its Content-Encoding is not kept, and the
    client of the next try may not accept it. So does a response with headers that are too long.
    """
    headers = _kept(response.headers)
    body = response.body
    is_kept = body is not None and len(body) <= max_body and _are_short(headers)
    if is_kept and not _encoded(response.headers):
        return RecordState.DONE, Snapshot(response.status, headers, body or b"")
    location = tuple(pair for pair in headers if pair[0] == "Location")
    return RecordState.TOMBSTONE, Snapshot(
        response.status, location if _are_short(location) else ()
    )


def dump_headers(headers: Iterable[tuple[str, str]]) -> str:
    return json.dumps(list(headers))


def load_headers(text: str) -> tuple[tuple[str, str], ...]:
    """The kept headers. Raises ValueError unless the text is a list of pairs of strings."""
    document = json.loads(text)
    if not isinstance(document, list):
        raise ValueError("headers are not a list")  # noqa: TRY004  the data is wrong, no caller
    pairs = [(str(name), str(value)) for name, value in document]
    return _kept(pairs)


def _kept(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(
        [(_PROPER[low], value) for name, value in headers if (low := name.lower()) in _PROPER]
    )


def _are_short(headers: Iterable[tuple[str, str]]) -> bool:
    return sum(len(name) + len(value) for name, value in headers) <= LONGEST_HEADERS


def _encoded(headers: Iterable[tuple[str, str]]) -> bool:
    for name, value in headers:
        if name.lower() == "content-encoding" and value.strip().lower() not in ("", "identity"):
            return True
    return False
