"""An order in plain values: its request, its response, and its stored record.

No pickle. A record that a newer release wrote is never interpreted: see ``admission.judge``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from lockkit.model.errors import BackendUnavailable
from lockkit.orders.kept_headers import FILE_HEADERS, KEPT_HEADERS
from lockkit.orders.order import FINGERPRINT_VERSION

REPLACED = "\ufffd"
MICROSECONDS = 1_000_000
"""The unit of the times in the tables."""

VERSION = 2
UNLIMITED = sys.maxsize

PLACEHOLDER = ":csrf-placeholder"
"""Stored as a header, never sent: its value replaces a token in the body. See ``forgery``."""

FRAMED = ":xframe-options-exempt"
"""Stored as a header, never sent: Django's mark of a response that any page may frame."""

POLICY, REPORTED_POLICY = ":csp", ":csp-report-only"
"""Stored as headers, never sent: the text of policies by Django's ``csp_override`` and its twin."""

_MARKS = (PLACEHOLDER, FRAMED, POLICY, REPORTED_POLICY)
_PROPER = {name.lower(): name for name in (*_MARKS, *KEPT_HEADERS)}

LONGEST_HEADERS = 8 * 1024
"""Most characters of the kept headers: a view may make a Location from what its client sent."""

STATUSES = frozenset({0, *range(100, 600)})
"""The statuses of a response; 0 if there is none yet."""

NOT_STORED = frozenset({401, 403, 408, 409, 423, 425, 429})
"""Refusals that another try may overcome. What the view has saved stays, but no record is kept."""


class SentFile(NamedTuple):
    """One uploaded file, as parsed: its raw multipart body has another boundary at each try."""

    field: str
    name: str
    size: int
    sha256: str
    content_type: str = ""  #: as it was sent


@dataclass(slots=True)
class Payload:
    """The body: raw bytes, or the fields and files of a form (then ``body`` is empty)."""

    body: bytes = field(default=b"", repr=False)
    form: Sequence[tuple[str, str]] = field(default=(), repr=False)
    files: Sequence[SentFile] = ()


@dataclass(slots=True)
class Identity:
    """The sender. The first of scope, user, authorization and session that is set is the owner."""

    scope: str | None = None  #: what the SCOPE hook says
    user: str | None = None  #: model and primary key of an authenticated user
    authorization: str | None = field(default=None, repr=False)  #: the header; only hashed
    session: str | None = field(default=None, repr=False)  #: key of a session the server knows
    tenant: str = ""  #: keeps the orders of tenants apart, whoever owns them
    guest: str | None = field(default=None, repr=False)  #: secret of a form's guest: see ``forms``


@dataclass
class OrderRequest:
    """One request. ``read_…`` are costly, so they are called only if needed, and only once."""

    method: str
    path: str  #: in which PATHS are searched; operators see it
    route: str  #: the URL pattern, not the path
    header: Callable[[str], str | None] = field(repr=False)
    read_payload: Callable[[], Payload] = field(default=Payload, repr=False)
    read_identity: Callable[[], Identity] = field(default=Identity, repr=False)
    kwargs: Mapping[str, object] = field(default_factory=dict)
    query: Sequence[tuple[str, str]] = field(default=(), repr=False)
    media_type: str = ""  #: lower case, without parameters
    content_length: int | None = None
    sent_path: str = ""  #: SCRIPT_NAME and PATH_INFO, before any converter
    unseen: bool = False  #: there is a body, but the framework gives nothing of it to the view
    _payload: Payload | None = field(default=None, init=False, repr=False)

    def payload(self) -> Payload:
        """The body. Reading it from the client may be slow, so no lock may be held meanwhile:
        ``functools.cached_property`` holds one for all instances on Python 3.11."""
        if self._payload is None:
            self._payload = self.read_payload()
        return self._payload


class OrderResponse(NamedTuple):
    """A rendered response; ``body`` is None when it streams."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes | None

    def __repr__(self) -> str:
        """The response without cookies and body, which belong to its client alone."""
        return f"OrderResponse(status={self.status})"


def as_sent(
    pairs: Sequence[tuple[str, str]], read_raw: Callable[[], bytes]
) -> Sequence[tuple[str, str]]:
    """The fields of a query or a URL-encoded form; fields that are not UTF-8 keep their own bytes.

    A framework turns each such byte into U+FFFD, so different requests would look the same. Fields
    in UTF-8 stay as they are, even with U+FFFD, because stored fingerprints must still match.
    """
    if not any(REPLACED in text for pair in pairs for text in pair):
        return pairs
    raw = read_raw().decode("utf-8", "surrogateescape")
    return parse_qsl(raw, keep_blank_values=True, errors="surrogateescape")


class DuplicateKeyError(Exception):
    """Another try has written a record with this key."""


class RecordChangedError(RuntimeError):
    """The record that this try has written is gone, or was changed, before its end."""

    def __init__(self) -> None:
        super().__init__("while its view was running, the record of this order was changed")


class StillRunningError(BackendUnavailable):
    """A duplicate has waited, and the transaction that has inserted its key has still not ended."""

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

    def __repr__(self) -> str:
        return f"Snapshot(status={self.status})"


NOTHING_YET = Snapshot(0)


class Record(NamedTuple):
    """One order in the store."""

    key: str
    order_id: str
    request: str
    fingerprint: str
    left: float  #: seconds until it expires, by the clock of the store alone
    state: RecordState | str = RecordState.RUNNING  #: another string if ``unreadable``
    snapshot: Snapshot = NOTHING_YET
    version: int = VERSION

    def __repr__(self) -> str:
        return f"Record(order_id={self.order_id!r}, request={self.request!r}, state='{self.state}')"


def unreadable(key: str, version: int = VERSION) -> Record:
    """A record that cannot be read: its order is neither run nor replayed."""
    return Record(key, "", "", "", 0.0, state="unreadable", version=version)


def recorded(row: Sequence[Any]) -> Record:
    """The record in a row of ``rows.find``; ``unreadable`` if the row has unexpected values."""
    key, order_id, request, fingerprint, version, state, status, headers, body, expires, now = row
    if type(version) is int and version > VERSION:
        return unreadable(str(key), version)
    texts, numbers = (order_id, request, fingerprint, state, headers), (version, status, expires)
    is_read = {*map(type, texts)} == {str} and {*map(type, numbers)} == {int}
    if not (is_read and status in STATUSES and isinstance(body, bytes | memoryview)):
        return unreadable(str(key))
    try:
        answer = Snapshot(status, load_headers(headers), bytes(body))
        known, seconds = RecordState(state), (expires - now) / MICROSECONDS
    except (ValueError, TypeError, OverflowError, RecursionError):
        return unreadable(str(key))
    if known == RecordState.DONE and status == NOTHING_YET.status:
        return unreadable(str(key))
    return Record(str(key), order_id, request, fingerprint, seconds, known, answer, version)


def is_damaged(record: Record) -> bool:
    """Whether no release can have written this record. One of a newer release is not damaged."""
    if record.version > VERSION:
        return False
    return not has_our_fingerprint(record) or record.state not in set(RecordState)


def has_our_fingerprint(record: Record) -> bool:
    return record.fingerprint.startswith(f"{FINGERPRINT_VERSION}:")


def is_unanswered(record: Record) -> bool:
    """Whether the effects of an order were committed, but its response was not stored yet."""
    return record.state == RecordState.TOMBSTONE and record.snapshot.status == NOTHING_YET.status


def refuses(status: int) -> bool:
    """Whether a response with this status is a temporary refusal."""
    return status in NOT_STORED


def storable(status: int) -> bool:
    """Whether a response with this status ends the order: not 5xx, and not a temporary refusal."""
    return HTTPStatus.OK <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in NOT_STORED


def snapshot_of(response: OrderResponse, max_body: int) -> tuple[RecordState, Snapshot]:
    """The stored form of a response: all of it, or a tombstone with its Location.

    A tombstone replaces a response that streams, whose body has more than ``max_body`` bytes, or
    whose headers are too long. It also replaces one with an encoded body: Content-Encoding is not
    kept, and the client of the next try may not accept the encoding. And it replaces one whose body
    the server in front sends.
    """
    headers = _kept(response.headers)
    body = response.body
    is_kept = body is not None and len(body) <= max_body and _are_short(headers)
    if is_kept and not _has_other_body(response.headers):
        return RecordState.DONE, Snapshot(response.status, headers, body or b"")
    location = tuple(pair for pair in headers if pair[0] == "Location")
    return RecordState.TOMBSTONE, Snapshot(
        response.status, location if _are_short(location) else ()
    )


def dump_headers(headers: Sequence[tuple[str, str]]) -> str:
    return json.dumps(headers) if headers else "[]"  # a shortcut: a claim has none


def load_headers(text: str) -> tuple[tuple[str, str], ...]:
    """The kept headers. Raises ValueError unless the text is a list of pairs of strings, each of
    one line."""
    document = json.loads(text)
    if not isinstance(document, list):
        raise ValueError("headers are not a list")  # noqa: TRY004  the data is wrong, not a caller
    kept = _kept([(str(name), str(value)) for name, value in document])
    if any("\r" in value or "\n" in value for _, value in kept):
        raise ValueError("a header has several lines")
    return kept


def _kept(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(
        [(_PROPER[low], value) for name, value in headers if (low := name.lower()) in _PROPER]
    )


def _are_short(headers: Iterable[tuple[str, str]]) -> bool:
    return sum(len(name) + len(value) for name, value in headers) <= LONGEST_HEADERS


def _has_other_body(headers: Iterable[tuple[str, str]]) -> bool:
    """Whether clients get another body than this one: an encoded one, or a file."""
    for name, value in headers:
        low = name.lower()
        if low == "content-encoding" and value.strip().lower() not in ("", "identity"):
            return True
        if low in FILE_HEADERS:
            return True
    return False
