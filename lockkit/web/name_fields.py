"""Values of a request for a name template, read by the same rules under every framework.

An adapter describes its request as a ``RequestView``; ``lock_name`` fills a template from it. The
rules are here so that Django and Flask make the same name from the same request. A field that is
given twice is refused, so the lock is always on the value on which the view acts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, unquote
from uuid import UUID

from lockkit.model.conversions import ConversionError
from lockkit.model.errors import InvalidName
from lockkit.model.names import Field, Template, json_value, parse_json, typed_json

if TYPE_CHECKING:
    from collections.abc import Sequence

BROKEN = "\ufffd"
"""Adapters put this in place of bytes that are not UTF-8. It is refused."""

_ESCAPES = re.compile(r"(?:%[0-9A-F]{2})+")
"""Escapes in a path. Django makes "%FF" of a byte that is not UTF-8, and of the text "%25FF" as
well. The two cannot be told apart, so neither makes a name under any framework."""

URL_ENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
FORM_TYPES = (URL_ENCODED, MULTIPART)
MEANT = {
    "user": "{user.pk}",
    "json": "{json.NAME}",
    "form": "{form.NAME}",
    "query": "{query.NAME}",
    "header": "{header.NAME}",
}
"""What ``{user}`` and the like should be: the error for a field that the URL lacks says so."""

FORM_CHARSETS = ("", "utf-8")
JSON_CHARSETS = ("", "utf-8", "utf8", "us-ascii", "ascii")


class FieldError(InvalidName):
    """The request has no valid value for a field of the template. The client's fault: 400."""


class AnonymousUser(FieldError):
    """``{user.pk}`` has no value in an anonymous request. 403, or the framework's own answer."""


class RequestView(Protocol):
    """One request, as an adapter reads it. A value is read only when a field asks for it."""

    def kwarg(self, key: str) -> object:
        """A URL parameter after conversion; None if the route has no such parameter."""

    def user_pk(self) -> object:
        """The primary key of the authenticated user; None for an anonymous request."""

    def content_type(self) -> str:
        """The Content-Type header; empty if there is none."""

    def body(self) -> bytes:
        """The raw body. Called only if the content type is not a form."""

    def form(self, key: str) -> Sequence[str]:
        """All values of a form field."""

    def query(self, key: str) -> Sequence[str]:
        """All values of a query parameter."""

    def header(self, name: str) -> str | None:
        """A header. Several headers of one name are joined by commas, as servers do."""


def lock_name(template: Template, request: RequestView) -> str:
    """The name that a template makes from a request.

    Raises FieldError (a field is missing, given twice, of a wrong type, or makes no valid name),
    AnonymousUser, or another ConfigurationError (the route does not have a ``{field}``).
    """
    values = _Reader(request).read(template.fields)
    try:
        return template.fill(values.__getitem__)
    except InvalidName as error:
        if not values:
            raise
        raise FieldError(_cause(error)) from None


def _cause(error: InvalidName) -> str:
    """The fault, without the value that was sent."""
    if isinstance(error, ConversionError):
        return str(error)
    cause = "a lone surrogate" if "surrogate" in str(error) else "it is empty or too long"
    return f"the request makes no valid name: {cause}"


class _Reader:
    """The fields of one request. A JSON body is parsed once, however many fields look into it."""

    def __init__(self, request: RequestView) -> None:
        self._request = request
        self._document: object = None
        self._parsed = False

    def read(self, fields: Sequence[Field]) -> dict[Field, object]:
        return {field: _READ[field.source](self, field) for field in fields}

    def _kwarg(self, field: Field) -> object:
        value = self._request.kwarg(field.path[0])
        if type(value) is str and value and value.isascii() and "%" not in value:
            return value
        if value is None:
            name = field.path[0]
            also = f"; did you mean {MEANT[name]}?" if name in MEANT else ""
            raise InvalidName(f"{field}: the URL of this view has no {name!r}{also}")
        if isinstance(value, str):
            _utf8(field, _ESCAPES.sub(lambda escapes: unquote(escapes[0]), value))
        return _given(field, _typed(field, value))

    def _form(self, field: Field) -> object:
        """UTF-8 only, as for JSON: Django refuses other charsets, Werkzeug ignores them."""
        if _charset(self._request.content_type()) not in FORM_CHARSETS:
            raise FieldError(f"{field} needs a form in UTF-8")
        return _single(field, self._request.form(field.path[0]))

    def _user(self, field: Field) -> object:
        value = self._request.user_pk()
        if value is None or value == "":
            raise AnonymousUser(f"{field} needs an authenticated user")
        return _typed(field, value)

    def _query(self, field: Field) -> object:
        return _single(field, self._request.query(field.path[0]))

    def _header(self, field: Field) -> object:
        return _given(field, self._request.header(field.path[0].replace("_", "-")))

    def _json(self, field: Field) -> object:
        value = json_value(self._json_document(field), field.path)
        try:
            return _given(field, typed_json(field, value))
        except InvalidName as error:
            raise FieldError(str(error)) from None

    def _json_document(self, field: Field) -> object:
        if not self._parsed:
            self._document = _parse(field, self._request)
            self._parsed = True
        return self._document


_READ = {
    "kwargs": _Reader._kwarg,
    "user": _Reader._user,
    "json": _Reader._json,
    "form": _Reader._form,
    "query": _Reader._query,
    "header": _Reader._header,
}
"""How to read a field, by its source."""


def _parse(field: Field, request: RequestView) -> object:
    """The body as JSON, unless its content type says that it is a form.

    An object that has a field twice is refused, as a form is: see ``parse_json``.
    UTF-8 only: a parser that used another charset would see another value than the lock.
    """
    content_type = request.content_type()
    if content_type.partition(";")[0].strip().lower() in FORM_TYPES:
        raise FieldError(f"{field} needs a JSON body; send it as application/json")
    if _charset(content_type) not in JSON_CHARSETS:
        raise FieldError(f"{field} needs a JSON body in UTF-8")
    body = request.body()
    if not body:
        raise FieldError(f"{field} needs a JSON body, and the body is empty")
    try:
        return parse_json(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise FieldError(f"{field} needs a valid JSON body without repeated fields") from None


def url_encoded(raw: bytes, key: str) -> list[str]:
    """The values of a field in a query string or a URL-encoded form, BROKEN if they are not UTF-8.

    Werkzeug turns such a byte into "%FF", which a client may also have sent as three characters.
    Django reads it as Latin 1, like all other bytes that were sent raw, so only ASCII is certain.
    """
    text = raw.decode("utf-8", "replace")
    is_utf8 = text.encode() == raw
    pairs = parse_qsl(text, keep_blank_values=True, errors="replace")
    values = [value for name, value in pairs if name == key]
    return [value if is_utf8 or value.isascii() else BROKEN for value in values]


def _charset(content_type: str) -> str:
    for parameter in content_type.lower().split(";")[1:]:
        key, _, value = parameter.partition("=")
        if key.strip() == "charset":
            return value.strip().strip('"')
    return ""


def _typed(field: Field, value: object) -> object:
    """A value from the project's code: a wrong type is the project's fault, not the client's."""
    if isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
        raise InvalidName(f"{field} is a {type(value).__name__}; a string or int is needed")
    return value


def _given(field: Field, value: object) -> object:
    if value is None or value == "":
        raise FieldError(f"{field} is missing")
    return value


def _single(field: Field, values: Sequence[str]) -> object:
    """The one value. Frameworks disagree on whether the first or the last of several counts."""
    if len(values) > 1:
        raise FieldError(f"{field} is given more than once")
    return _utf8(field, _given(field, values[0] if values else None))


def _utf8(field: Field, value: object) -> object:
    """Refuse bytes that are not UTF-8: frameworks disagree on what becomes of them."""
    if isinstance(value, str) and BROKEN in value:
        raise FieldError(f"{field} is not valid UTF-8")
    return value
