"""The order ID: where a request may have one, and its syntax.

Header syntax follows draft-ietf-httpapi-idempotency-key-header-07: a structured-field string
(RFC 8941), and, as many clients send it, the bare value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from lockkit.model.errors import ConfigurationError
from lockkit.model.names import json_value, parse_json

if TYPE_CHECKING:
    from lockkit.orders.request import OrderRequest

LONGEST_ID = 255
KINDS = ("header", "json", "form", "kwargs")
BODY_KINDS = ("json", "form")
URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
FORMS = (URLENCODED, MULTIPART)
_SF_STRING = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_TOKEN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class MalformedOrderIdError(ValueError):
    """The request has something that is not an order ID. The message may be shown to the client."""


class IdSource(NamedTuple):
    """One link of the chain: ``header:Idempotency-Key``, ``json:order.id``, ``form:order_id``.

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
        return cls(kind, tuple(path.split(".")) if kind == "json" else (path,))

    def __str__(self) -> str:
        return f"{self.kind}:{'.'.join(self.path)}"


def order_id_from(request: OrderRequest, source: IdSource) -> str | None:
    """The order ID, if the source has one. Raises MalformedOrderIdError."""
    if source.kind in BODY_KINDS and not may_be_in_body(request, source):
        return None
    return _FINDERS[source.kind](request, source.path)


def may_be_in_body(request: OrderRequest, source: IdSource) -> bool:
    """Whether the body has a type that this source reads."""
    if source.kind == "json":
        return _is_json(request.media_type)
    return source.kind == "form" and request.media_type in FORMS


def parse_order_id(text: str) -> str:
    """The ID in a header's value: an sf-string or bare, 1 to 255 printable ASCII characters.

    Servers join repeated headers with a comma. So a bare value with a comma may be two, and is
    refused.
    Raises MalformedOrderIdError.
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
    if not isinstance(value, (str, int, UUID)):
        raise ConfigurationError(
            f"ORDER_ID has 'kwargs:{path[0]}', but its converter returns {type(value).__name__}: "
            f"an order ID is a string, an integer or a UUID"
        )
    return _check(str(value))


def _scalar(value: object) -> str | None:
    """An ID from a string or int. Other types are refused: is 1.0 the same ID as 1?"""
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


def _is_json(media_type: str) -> bool:
    return media_type == "application/json" or media_type.endswith("+json")


_FINDERS = {
    "header": _from_header,
    "json": _from_json,
    "form": _from_form,
    "kwargs": _from_kwargs,
}
