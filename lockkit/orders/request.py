"""A request and a response in plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

REPLACED = "\ufffd"


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


def too_large(request: OrderRequest, limit: int) -> bool:
    """Whether the request exceeds ``limit`` bytes, by its Content-Length or by its content."""
    if request.content_length is not None and request.content_length > limit:
        return True
    payload = request.payload()
    if not (payload.form or payload.files):
        return len(payload.body) > limit
    files = sum(each.size for each in payload.files)
    return len(payload.body) + files + sum(len(v) for _, v in payload.form) > limit
