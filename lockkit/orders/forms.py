"""Order IDs in HTML forms: made when the page is shown, signed, and useful to one visitor only.

A form's value is ``lk1.ID.MAKER.SIGNATURE``:

- ``ID``: eight hex digits, the time in seconds, and 128 random bits. It is the order ID.
- ``MAKER``: ``u`` if the form was shown to a logged-in user; otherwise ``g`` and an HMAC of the
  guest's secret. It tells neither who that was, nor whether two forms are of one guest.
- ``SIGNATURE``: HMAC-SHA256 of both, with a key derived from the framework's SECRET_KEY; the keys
  of SECRET_KEY_FALLBACKS are accepted, too.

A *guest's secret* is random and lives in the guest's session (Django) or in a cookie of its own
(Flask). The adapter keeps it through a login. After the logout, no guest can use it.

``Orders`` decides whose order it is:

- *A form made for a user* follows the rules of any order ID: the order belongs to the user who
  sends it. Another user who has the value makes another order, and learns nothing of the first.
  A visitor without a login (after a logout, or when the session has expired) is refused. It may be
  the next person at this computer, who must not see the answer, or the same person, who must not
  order twice.
- *A form made for a guest* belongs to that guest, also after a login: the owner is the secret, not
  the user. Only the guest with the secret can send it. Everybody else is refused, logged in or not:
  the value alone (from the page's source, a log, a shared link) is worth nothing.
- *An answer that was made for a user is not shown to a guest*, with any secret. The user who sent a
  guest's form is part of its fingerprint, and a record counts as the same request only for that
  user. A visitor may have kept the cookies from before a login, or come after a logout that did not
  end the secret. Such a visitor gets 422, sees nothing and orders nothing. In the opposite case, an
  answer for the guest is replayed to the user who has logged in since.

A form is valid for as long as its record would live (TTL, 24 hours; for a guest's form GUEST_TTL,
an hour): an older one without a record is refused. So a tab that is opened again after a week does
not order again, although the record is gone. Limit: this depends on the clocks of the hosts.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

from lockkit.model.errors import ConfigurationError
from lockkit.model.log import log
from lockkit.orders import refusals
from lockkit.orders.order import (
    MalformedOrderIdError,
    Order,
    fingerprint_of,
    key_of,
    key_of_guest,
    sent_by,
)
from lockkit.orders.record import OrderRequest
from lockkit.orders.settings import OrderSettings
from lockkit.web.refusal import ORDER_ID, Refusal, request_label

if TYPE_CHECKING:
    from lockkit.orders.engine import Orders

PREFIX = "lk1."
PURPOSE = b"lockkit order id in a form, 1"
RANDOM_BYTES = 16
_VALUE = re.compile(r"lk1\.([0-9a-f]{8}[\w-]{22})\.(u|g[\w-]{43})\.([\w-]{43})", re.ASCII)

MOST_LOOKED_AT = 20
"""How many values of a request are checked: each costs a signature, and it may have a million."""

_LIKE_ONE = r"lk1\.[\w.-]{1,200}"
_IN_TEXT, _IN_BODY = re.compile(_LIKE_ONE, re.ASCII), re.compile(_LIKE_ONE.encode())
"""A body is searched undecoded: decoding is slow, and takes up to four times its size."""

Keys = Callable[[], Sequence[str | bytes]]
"""The framework's secret keys. The first one signs; all are accepted. Called for each form."""


@dataclass(frozen=True, slots=True)
class FormId:
    """A form's value whose signature is right."""

    order_id: str
    maker: str = field(repr=False)
    key: bytes = field(repr=False)  #: the key that signed it

    @property
    def for_guest(self) -> bool:
        return self.maker != "u"

    @property
    def made(self) -> int:
        """Seconds since the epoch, by the clock of the host that made it."""
        return int(self.order_id[:8], 16)

    def is_of(self, guest: str | None) -> bool:
        """Whether this is the secret of the guest for whom the form was made."""
        if guest is None or not self.for_guest:
            return False
        return hmac.compare_digest(_guest_mark(self.key, self.order_id, guest), self.maker)


class FormIds:
    """Makes and reads the values with the keys of one application. Thread-safe."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def issue(self, guest: str | None) -> str:
        """A new value; ``guest``: the visitor's secret, None for a user who is logged in.

        Raises ConfigurationError if there is no secret key.
        """
        key = self._signing_key()
        order_id = f"{int(time.time()):08x}{secrets.token_urlsafe(RANDOM_BYTES)}"
        maker = "u" if guest is None else _guest_mark(key, order_id, guest)
        return f"{PREFIX}{order_id}.{maker}.{_mac(key, 'form', order_id, maker)}"

    def read(self, text: str) -> FormId | None:
        """None if it is not a form's value. Raises MalformedOrderIdError if it was changed."""
        if not text.startswith(PREFIX):
            return None
        match = _VALUE.fullmatch(text)
        if match is not None:
            order_id, maker, signature = match.groups()
            for key in self._derived():
                if hmac.compare_digest(_mac(key, "form", order_id, maker), signature):
                    return FormId(order_id, maker, key)
        raise MalformedOrderIdError("the order ID of the form was changed; load the page again")

    def seal(self, text: str) -> str:
        """``text`` with a signature, for a cookie; not encrypted. Raises what ``issue`` raises."""
        return f"{text}.{_mac(self._signing_key(), 'cookie', text)}"

    def unseal(self, sealed: str) -> str | None:
        """The sealed text; None if it was not sealed with one of our keys."""
        text, _, signature = sealed.rpartition(".")
        given = signature.encode("utf-8", "replace")
        for key in self._derived():
            if hmac.compare_digest(_mac(key, "cookie", text).encode(), given):
                return text
        return None

    def _signing_key(self) -> bytes:
        keys = self._derived()
        if not keys:
            raise ConfigurationError("set SECRET_KEY: it signs the order IDs of forms")
        return keys[0]

    def _derived(self) -> list[bytes]:
        return [hmac.digest(_bytes(key), PURPOSE, "sha256") for key in self._keys() if key]


def form_order(form: FormId, request: OrderRequest, shown: str, orders: Orders) -> Order | Refusal:
    """The order of a form, by the rules at the head of this module."""
    identity, namespace = request.read_identity(), orders.settings.namespace
    stale = form.made + orders.ttl_for(guest=form.for_guest) < time.time()
    fingerprint = fingerprint_of(request)
    if form.is_of(identity.guest) and not identity.scope:
        key = key_of_guest(request, identity, form.order_id, namespace)
        if identity.user is None:
            return Order(form.order_id, key, fingerprint, shown, stale=stale, guest=True)
        mine = sent_by(identity.user, fingerprint)
        return Order(form.order_id, key, mine, shown, (fingerprint,), stale)
    known = identity.scope or (identity.user and not form.for_guest)
    key_or_none = key_of(request, identity, form.order_id, namespace) if known else None
    if key_or_none is None:
        return refusals.FORM_OF_ANOTHER
    return Order(form.order_id, key_or_none, fingerprint, shown, stale=stale)


def field_of(settings: OrderSettings, field: str | None = None) -> str:
    """The name of the hidden field: the field that ORDER_ID reads.

    ``field``: for a view that reads another field, by ``@idempotent(order_id="form:…")``.
    Raises ConfigurationError if no field is read.
    """
    name = field or settings.form_field
    if name is None:
        raise ConfigurationError(
            "nothing would read the order ID of this form, and two clicks would be two orders: "
            "LOCKKIT_ORDERS['ORDER_ID'] has no source 'form:…'. Add 'form:order_id', and PATHS. "
            "For a view with @idempotent(order_id='form:NAME') pass field='NAME'"
        )
    return name


def hidden_field(name: str, value: str) -> str:
    """The ``<input>``, escaped."""
    return f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'


def tell_uncovered(
    forms: FormIds, request: Any, form: str, body: str, parsed: Callable[[], bytes] = bytes
) -> None:
    """Log an error if the view has parsed a request with an order ID that we have signed, but
    nothing has looked for an order: two clicks would silently be two orders.

    ``form``, ``body``: the attributes in which the framework keeps what a view has read, as a
    multi-dictionary and as bytes. ``parsed`` returns what was made of a body that was not kept.
    Reads nothing from the client.
    """
    kept = vars(request)
    if ORDER_ID in kept:
        return
    text = kept.get(body) or (b"" if kept.get(form) else parsed())
    found = islice(_candidates(kept.get(form), text), MOST_LOOKED_AT)
    if any(_is_signed(forms, each) for each in found):
        log.error(
            "%s has run with the order ID of a form, and was not an order: PATHS and METHODS "
            "do not cover it, so two clicks are two orders. Correct LOCKKIT_ORDERS, or put "
            "@idempotent on the view, or @idempotent.exempt if you mean it",
            request_label(request),
        )


def _candidates(form: Any, body: bytes) -> Iterator[str]:
    for found in _IN_BODY.finditer(body):
        yield found[0].decode("ascii")
    for _, values in form.lists() if form else ():
        for value in values:
            yield from (found[0] for found in _IN_TEXT.finditer(value))


def _is_signed(forms: FormIds, text: str) -> bool:
    try:
        return forms.read(text) is not None
    except MalformedOrderIdError:
        return False


def new_secret() -> str:
    """A secret for a guest: 128 random bits."""
    return secrets.token_urlsafe(RANDOM_BYTES)


def _guest_mark(key: bytes, order_id: str, guest: str) -> str:
    return "g" + _mac(key, "guest", order_id, guest)


def _mac(key: bytes, *parts: str) -> str:
    """A signature of the parts. Only the last may contain a NUL, so two lists never look alike."""
    digest = hmac.digest(key, "\0".join(parts).encode("utf-8", "surrogatepass"), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _bytes(key: str | bytes) -> bytes:
    return key if isinstance(key, bytes) else key.encode()
