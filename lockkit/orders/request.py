"""A request in plain values: whose order it is, which order, and what it asks for.

Keys and fingerprints are SHA-256 over length-prefixed parts, so that no two different lists of
parts ever look alike. Both formats are for ever: changing one makes retries run twice. The first
part of each is its version.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

KEY_VERSION = "lockkit-order-2"  # another one needs another VERSION in stores/redis/layout.py
FINGERPRINT_VERSION = "2"
CSRF_FIELD = "csrfmiddlewaretoken"  # Django's; Flask-WTF's is csrf_token
REPLACED = "\ufffd"
VOLATILE_FIELDS = frozenset({CSRF_FIELD, "csrf_token"})


class SentFile(NamedTuple):
    """One uploaded file, but not its raw multipart, whose boundary differs at each try."""

    field: str
    name: str
    size: int
    sha256: str
    content_type: str = ""  #: as it was sent


@dataclass(frozen=True, slots=True)
class Payload:
    """The body: raw bytes, or the fields and files of a form (then ``body`` is empty)."""

    body: bytes = field(default=b"", repr=False)
    form: Sequence[tuple[str, str]] = field(default=(), repr=False)
    files: Sequence[SentFile] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender. The first of these that is set owns the order."""

    scope: str | None = None  #: what the SCOPE hook says
    user: str | None = None  #: model and primary key of an authenticated user
    authorization: str | None = field(default=None, repr=False)  #: the header; only hashed
    session: str | None = field(default=None, repr=False)  #: key of a session the server knows
    tenant: str = ""  #: added to any of them
    guest: str | None = field(default=None, repr=False)  #: secret of a form's guest: see ``forms``

    @property
    def is_of_guest(self) -> bool:
        """Whether it has no login: anybody can make any number of such identities."""
        return not (self.scope or self.user)


def _nobody() -> Identity:
    return Identity()


@dataclass(frozen=True)
class OrderRequest:
    """One request. Costly values are callables, which are called at most once, and if needed."""

    method: str
    path: str  #: as PATHS match it; shown to operators
    route: str  #: the URL pattern, not the path
    header: Callable[[str], str | None] = field(repr=False)
    read_payload: Callable[[], Payload] = field(default=Payload, repr=False)
    read_identity: Callable[[], Identity] = field(default=_nobody, repr=False)
    kwargs: Mapping[str, object] = field(default_factory=dict)
    query: Sequence[tuple[str, str]] = field(default=(), repr=False)
    media_type: str = ""  #: lower case, without parameters
    content_length: int | None = None
    sent_path: str = ""  #: SCRIPT_NAME and PATH_INFO, before any converter
    unseen: bool = False  #: there is a body, and the framework gives nothing of it to the view

    def payload(self) -> Payload:
        """Reads from the client, which may be slow. So no lock may be held meanwhile, such as that
        of ``functools.cached_property`` on Python 3.11, which all instances share."""
        known = vars(self)
        if "_payload" not in known:
            known["_payload"] = self.read_payload()
        payload: Payload = known["_payload"]
        return payload


class OrderResponse(NamedTuple):
    """A rendered response; ``body`` is None when it streams."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes | None

    def __repr__(self) -> str:
        """The response without cookies and body, which belong to its client alone."""
        return f"OrderResponse(status={self.status})"


@dataclass(frozen=True, slots=True)
class Order:
    """One order of one client: ``key`` says which, ``fingerprint`` what it asks for."""

    order_id: str
    key: str
    fingerprint: str
    request: str  #: method and path, printable, for people
    also: tuple[str, ...] = ()  #: other fingerprints of the same request: see ``forms``
    stale: bool = False  #: its form is so old that its record may be gone
    guest: bool = False  #: no login vouches for its owner, so less is kept of it

    def same(self, fingerprint: str) -> bool:
        """Whether a record with this fingerprint is of the same request."""
        return fingerprint == self.fingerprint or fingerprint in self.also

    @property
    def lock_name(self) -> str:
        return lock_name_of(self.key)

    @property
    def tag(self) -> str:
        """Distinguishes two payloads of one order in the owner's label, and reveals neither."""
        return _tag(self.key, self.fingerprint)

    @property
    def tags(self) -> frozenset[str]:
        """The tags of everything that counts as the same request."""
        return frozenset(_tag(self.key, each) for each in (self.fingerprint, *self.also))

    @property
    def label(self) -> str:
        """At most 200 characters, the tag last: see ``engine``."""
        return f"{self.request[:100]} order {self.order_id[:60]} #{self.tag}"


def as_sent(
    pairs: Sequence[tuple[str, str]], read_raw: Callable[[], bytes]
) -> Sequence[tuple[str, str]]:
    """The fields of a query or a URL-encoded form; fields that are not UTF-8 keep their own bytes.

    A framework turns each such byte into U+FFFD, so different requests would look the same. Fields
    in UTF-8 stay as they are, even with U+FFFD, because fingerprints are for ever.
    """
    if not any(REPLACED in text for pair in pairs for text in pair):
        return pairs
    raw = read_raw().decode("utf-8", "surrogateescape")
    return parse_qsl(raw, keep_blank_values=True, errors="surrogateescape")


def lock_name_of(key: str) -> str:
    """The name that is locked for the order with this key."""
    return f"order:{key}"


def too_large(request: OrderRequest, limit: int) -> bool:
    """Whether the request exceeds ``limit`` bytes, by its Content-Length or by its content."""
    if request.content_length is not None and request.content_length > limit:
        return True
    payload = request.payload()
    files = sum(each.size for each in payload.files)
    return len(payload.body) + files + sum(len(v) for _, v in payload.form) > limit


def key_of(request: OrderRequest, identity: Identity, order_id: str, namespace: str) -> str | None:
    """SHA-256 of the owner, the route and the ID of an order; None if it has no owner.

    ``namespace``: tells applications apart that share a store.
    """
    owner = _owner(identity)
    return None if owner is None else _key(request, [namespace, identity.tenant, *owner], order_id)


def key_of_guest(request: OrderRequest, identity: Identity, order_id: str, namespace: str) -> str:
    """The key of an order that belongs to ``identity.guest``, also after a login."""
    owner = ("guest", identity.guest or "")
    return _key(request, [namespace, identity.tenant, *owner], order_id)


def sent_by(user: str, fingerprint: str) -> str:
    """The fingerprint of a request that is the same only if this user sends it."""
    return f"{FINGERPRINT_VERSION}:{_digest(['sent-by', user, fingerprint])}"


def _key(request: OrderRequest, scope: Sequence[str], order_id: str) -> str:
    return _digest([KEY_VERSION, *scope, request.route, order_id])


def _tag(key: str, fingerprint: str) -> str:
    return hashlib.sha256(f"{key}{fingerprint}".encode()).hexdigest()[:12]


def _owner(identity: Identity) -> tuple[str, str] | None:
    if identity.scope:
        return "scope", identity.scope
    if identity.user:
        return "user", identity.user
    if identity.authorization:
        return "authorization", identity.authorization  # hashed with the rest
    if identity.session:
        return "session", identity.session
    return None


def fingerprint_of(request: OrderRequest) -> str:
    """A hash of what must be equal in a retry: method, path, query, type and content.

    The path counts as it was sent: a converter may turn two paths into one value, or one path into
    two.
    """
    payload = request.payload()
    form = [pair for pair in payload.form if pair[0] not in VOLATILE_FIELDS]
    files = [(f.field, f.name, str(f.size), f.sha256, f.content_type) for f in payload.files]
    parts: list[str | bytes] = [
        request.method,
        request.sent_path or request.path,
        request.media_type,
    ]
    parts += _group(sorted(request.query, key=_name))
    parts += _group(sorted(form, key=_name))
    parts += _group(sorted(files, key=_name))
    parts.append(payload.body)
    return f"{FINGERPRINT_VERSION}:{_digest(parts)}"


def _name(pair: Sequence[str]) -> str:
    """The key for sorting: fields may come in any order, but the values of one field may not."""
    return pair[0]


def _group(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows of equal length after their number, so that no row looks like one of the next group."""
    flat = [list(row) for row in rows]
    return [str(len(flat)), *(text for row in flat for text in row)]


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()
