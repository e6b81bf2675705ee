"""Identifies the order of a request: its ID, its key, and the fingerprint of its content.

Header syntax follows draft-ietf-httpapi-idempotency-key-header-07: a structured-field string
(RFC 8941), and, as many clients send it, the bare value.

Keys and fingerprints are SHA-256 over length-prefixed parts, so that no two different lists of
parts ever look alike. Each has a version. Do not change either format: an order that was made
before is then not recognised and runs twice (another key), or is refused (another fingerprint).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from lockkit.model.errors import ConfigurationError
from lockkit.model.names import json_value, parse_json, sent_header
from lockkit.web.name_fields import FORM_TYPES

if TYPE_CHECKING:
    from lockkit.orders.record import Identity, OrderRequest

KEY_VERSION = "lockkit-order-2"  # if it changes, change VERSION in stores/redis/layout.py
FINGERPRINT_VERSION = "2"
CSRF_FIELD = "csrfmiddlewaretoken"  # Django's; Flask-WTF's is csrf_token
VOLATILE_FIELDS = frozenset({CSRF_FIELD, "csrf_token"})
LONGEST_ID = 255
KINDS = ("header", "json", "form", "kwargs")
BODY_KINDS = ("json", "form")
_SF_STRING = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_TOKEN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_CHANGING = re.compile(
    r"(digest|hawk|mac|negotiate|ntlm|signature|aws|aws4-\S+|oss|sharedkey(lite)?)\s"
    r"|(?=(\S*-)?hmac-\S)\S+\s"
    r"|oauth\s.*\boauth_nonce="
    r'|(\S+\s+)?(token=)?"?eyJ[\w-]+\.[\w-]*\.',
    re.IGNORECASE,
)
"""Headers that are new in each request, or, as a JSON web token, every few minutes: the repeat of
an order may have another one. So they cannot identify an owner."""


class MalformedOrderIdError(ValueError):
    """The order ID is not valid, or the body cannot be read. The client may see the message."""


class IdSource(NamedTuple):
    """Where to look for the order ID: ``header:X-Order-ID``, ``json:order.id``, ``form:order_id``.

    A dot may replace the colon, as in the templates of names: ``json.order.id``.
    """

    kind: str
    path: tuple[str, ...]

    @classmethod
    def parse(cls, text: object, *, where: str) -> IdSource:
        kind, separator, path = re.sub(r"^([a-z]+)\.", r"\1:", str(text)).partition(":")
        if kind not in KINDS or not separator or not _TOKEN.fullmatch(path):
            raise ConfigurationError(
                f"{where} has {text!r}; it must be one of "
                "'header:NAME', 'json:FIELD', 'form:FIELD', 'kwargs:NAME'"
            )
        if kind == "header" and (sent := sent_header(path)):
            raise ConfigurationError(f"{where} has {text!r}: the header is called {sent!r}")
        return cls(kind, tuple(path.split(".")) if kind == "json" else (path,))

    def __str__(self) -> str:
        return f"{self.kind}:{'.'.join(self.path)}"


def order_id_from(request: OrderRequest, source: IdSource) -> str | None:
    """The order ID at this source; None if there is none. Raises MalformedOrderIdError."""
    if source.kind in BODY_KINDS and not may_be_in_body(request, source):
        return None
    return _FINDERS[source.kind](request, source.path)


def may_be_in_body(request: OrderRequest, source: IdSource) -> bool:
    """Whether the body has a type that this source reads."""
    if source.kind == "json":
        return request.media_type == "application/json" or request.media_type.endswith("+json")
    return source.kind == "form" and request.media_type in FORM_TYPES


def parse_order_id(text: str) -> str:
    """The ID in a header: a quoted string or a bare value, 1 to 255 printable ASCII characters.

    Servers join repeated headers with a comma. So a bare value with a comma may be two IDs, and is
    refused. Raises MalformedOrderIdError.
    """
    text = text.strip(" \t")
    if text.startswith('"'):
        match = _SF_STRING.fullmatch(text)
        if match is None:
            raise MalformedOrderIdError(
                "the order ID begins with a quote, but is not a quoted string"
            )
        return _check(re.sub(r"\\(.)", r"\1", match[1]))
    if "," in text or '"' in text:
        raise MalformedOrderIdError("one order ID is allowed; commas and quotes only inside quotes")
    return _check(text)


def _check(text: str) -> str:
    if not 1 <= len(text) <= LONGEST_ID or not text.isascii() or not text.isprintable():
        raise MalformedOrderIdError(f"an order ID has 1 to {LONGEST_ID} printable ASCII characters")
    return text


def _from_header(request: OrderRequest, path: tuple[str, ...]) -> str | None:
    value = request.header(path[0])
    return None if value is None else parse_order_id(value)


def _from_json(request: OrderRequest, path: tuple[str, ...]) -> str | None:
    return _scalar(json_value(_document(request.payload().body), path))


def _from_form(request: OrderRequest, path: tuple[str, ...]) -> str | None:
    values = [value for field, value in request.payload().form if field == path[0]]
    if len(values) > 1:
        raise MalformedOrderIdError("the form has more than one order ID")
    return _scalar(values[0]) if values else None


def _from_kwargs(request: OrderRequest, path: tuple[str, ...]) -> str | None:
    value = request.kwargs.get(path[0])
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
        raise ConfigurationError(
            f"ORDER_ID has 'kwargs:{path[0]}', but its converter returns {type(value).__name__}: "
            f"an order ID is a string, an integer or a UUID"
        )
    return _check(str(value))


def _scalar(value: object) -> str | None:
    """An ID from a string or int. Other types are refused: a client may send 1 as 1.0 next time."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise MalformedOrderIdError("the order ID must be a string or a whole number")
    try:
        return _check(str(value))
    except ValueError as error:  # an int of thousands of digits
        raise MalformedOrderIdError(str(error)) from None


def _document(body: bytes) -> object:
    try:
        return parse_json(body) if body else None
    except (ValueError, RecursionError):
        raise MalformedOrderIdError("the body is not valid JSON, or has a field twice") from None


_FINDERS = {
    "header": _from_header,
    "json": _from_json,
    "form": _from_form,
    "kwargs": _from_kwargs,
}


class Order(NamedTuple):
    """One order of one client. ``key`` identifies the order, ``fingerprint`` its content."""

    order_id: str
    key: str
    fingerprint: str
    request: str  #: method and path, printable, for people
    also: tuple[str, ...] = ()  #: other fingerprints that count as the same: see ``forms``
    stale: bool = False  #: its form is older than a record lives, so its record may be gone
    guest: bool = False  #: no login has checked its owner: GUEST_TTL and GUEST_MAX_RESPONSE

    def __repr__(self) -> str:
        return f"Order(order_id={self.order_id!r}, request={self.request!r})"

    def same(self, fingerprint: str) -> bool:
        """Whether a record with this fingerprint belongs to the same request."""
        return fingerprint == self.fingerprint or fingerprint in self.also

    @property
    def lock_name(self) -> str:
        return lock_name_of(self.key)

    @property
    def tag(self) -> str:
        """A hash in the owner's label. Distinguishes two payloads of an order, and reveals none."""
        return _tag(self.key, self.fingerprint)

    @property
    def tags(self) -> frozenset[str]:
        """The tags of everything that counts as the same request."""
        return frozenset(_tag(self.key, each) for each in (self.fingerprint, *self.also))

    @property
    def label(self) -> str:
        """The label of the lease's owner, at most 200 characters; ``admission`` reads its tag."""
        return f"{self.request[:100]} order {self.order_id[:60]} #{self.tag}"


def lock_name_of(key: str) -> str:
    """The name that is locked for the order with this key."""
    return f"order:{key}"


def key_of(request: OrderRequest, identity: Identity, order_id: str, namespace: str) -> str | None:
    """SHA-256 of the owner, the route and the ID of an order; None if it has no owner.

    ``namespace``: separates applications that share a store.
    """
    owner = _owner(identity)
    return None if owner is None else _key(request, [namespace, identity.tenant, *owner], order_id)


def key_of_guest(request: OrderRequest, identity: Identity, order_id: str, namespace: str) -> str:
    """The key of an order that belongs to ``identity.guest``, also after a login."""
    owner = ("guest", identity.guest or "")
    return _key(request, [namespace, identity.tenant, *owner], order_id)


def sent_by(user: str, fingerprint: str) -> str:
    """The fingerprint of a request and its user: another user's equal request has another one."""
    return f"{FINGERPRINT_VERSION}:{_digest(['sent-by', user, fingerprint])}"


def _key(request: OrderRequest, scope: Sequence[str], order_id: str) -> str:
    return _digest([KEY_VERSION, *scope, request.route, order_id])


def _tag(key: str, fingerprint: str) -> str:
    return hashlib.sha256(f"{key}{fingerprint}".encode()).hexdigest()[:12]


def names_owner(authorization: str | None) -> bool:
    """Whether an order may belong to this ``Authorization`` header."""
    return bool(authorization) and not _CHANGING.match(authorization or "")


def _owner(identity: Identity) -> tuple[str, str] | None:
    if identity.scope:
        return "scope", identity.scope
    if identity.user:
        return "user", identity.user
    if identity.authorization and names_owner(identity.authorization):
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
    parts += [*_group(request.query), *_group(form), *_group(files), payload.body]
    return f"{FINGERPRINT_VERSION}:{_digest(parts)}"


def _group(rows: Sequence[Sequence[str]]) -> list[str]:
    """The number of rows, then the rows, which have equal lengths: so groups cannot be confused.

    Fields may come in any order, but the values of one field may not.
    """
    in_order = sorted(rows, key=itemgetter(0))
    return [str(len(in_order)), *(text for row in in_order for text in row)]


def _digest(parts: Iterable[str | bytes]) -> str:
    whole = bytearray()
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        whole += len(raw).to_bytes(8, "big") + raw
    return hashlib.sha256(whole).hexdigest()
