"""Lock names: what is one, and how templates make one from what a request brings.

Names never collide by accident or by malice: a value put into a template is percent-encoded, so it
cannot contain the separator ``:``, and the same data gives the same name in a view and in a task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from lockkit.model.conversions import CONVERSIONS, converted
from lockkit.model.errors import InvalidName

__all__ = ["Field", "Source", "Template", "check_name", "name"]

LONGEST_NAME = 255
"""UTF-8 bytes."""

SEPARATOR = ":"
"""No value has it in a name."""

ENCODED = f"%{SEPARATOR}\u00ad"
"""The last is the soft hyphen: punctuation in Unicode 3.2, and nobody sees it."""

SOURCES = ("kwargs", "user", "json", "form", "query", "header")
# Compiled when they are first used.
_FIELD = r"\{([^{}]*)\}"
_PATH = r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*"


def name(template: str, /, **values: object) -> str:
    """A lock name from a template: ``name("stock:{sku}", sku="A:1")`` is ``"stock:A%3A1"``.

    ``{sku:int}``, ``:uuid`` and ``:lower`` say what a text stands for, ``:str``: for itself.
    Values are strings, ints or UUIDs; an enum that is a string or an int counts as what it is
    equal to. Raises InvalidName.
    """
    return Template(template, bare_only=True).fill(lambda field: values.get(field.path[0]))


def check_name(text: object) -> str:
    """The name itself, if it is one.

    1 to 255 bytes of UTF-8, no control characters, no lone surrogates; it is not normalised: two
    spellings of é are two names. Raises InvalidName.
    """
    if not isinstance(text, str):
        raise InvalidName(f"a lock name is a string, not {type(text).__name__}")
    if type(text) is not str:
        text = str.__str__(text)
    if text.isascii() and text.isprintable() and 0 < len(text) <= LONGEST_NAME:
        return text
    return _check_unusual(text)


def _check_unusual(text: str) -> str:
    if not text:
        raise InvalidName("a lock name must not be empty")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"the lock name {ascii(text)[:80]} has a lone surrogate") from None
    if length > LONGEST_NAME:
        raise InvalidName(
            f"the lock name {ascii(text)[:60]}… has {length} bytes; {LONGEST_NAME} is the most"
        )
    if any(c < " " or "\x7f" <= c <= "\x9f" or c in "\u2028\u2029" for c in text):
        raise InvalidName(f"the lock name {ascii(text)[:80]} has a control character")
    return text


class Field(NamedTuple):
    """One ``{…}`` of a template. ``{sku}`` is an URL parameter: source ``kwargs``."""

    source: str
    path: tuple[str, ...]
    text: str  #: without its conversion
    conversion: str = ""  #: int, uuid, lower, str; empty: not said

    def __str__(self) -> str:
        return f"{{{self.text}}}"


class Source(Protocol):
    """Where the fields of a template get their values: an adapter's view of one request."""

    def __call__(self, field: Field, /) -> object:
        """The value, or None when the request does not have it."""


class Template:
    """A parsed name template. Parsed once, at import; a misspelt field is an error there.

    So are two fields without a ``:`` between them, the one character that no value brings:
    ``{a}-{b}`` would be one name for "x-y", "z" and "x", "y-z".
    """

    def __init__(self, text: str, *, bare_only: bool = False) -> None:
        if not isinstance(text, str):
            raise InvalidName(f"a name template is a string, not {type(text).__name__}")
        self.text = text
        self._parts: list[str | Field] = []
        position = 0
        for match in re.finditer(_FIELD, text):
            between = text[position : match.start()]
            self._literal(between)
            field = _field(text, match[1], bare_only=bare_only)
            if self.fields and SEPARATOR not in between:
                raise _not_separated(text, self.fields[-1], field)
            self._parts.append(field)
            position = match.end()
        self._literal(text[position:])
        if not self._parts:
            raise InvalidName("a name template must not be empty")

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(part for part in self._parts if isinstance(part, Field))

    def fill(self, source: Callable[[Field], object]) -> str:
        """The name. Raises InvalidName when a value is missing or of a wrong type."""
        return check_name(
            "".join(p if isinstance(p, str) else _encoded(p, source(p)) for p in self._parts)
        )

    def _literal(self, text: str) -> None:
        if "{" in text or "}" in text:
            raise InvalidName(f"the name template {self.text!r} has an unmatched brace")
        if text:
            self._parts.append(text)

    def __repr__(self) -> str:
        return f"Template({self.text!r})"


def _field(template: str, text: str, *, bare_only: bool) -> Field:
    text, colon, conversion = text.partition(":")
    if colon and conversion not in CONVERSIONS:
        raise InvalidName(
            f"{{{text}:{conversion}}} in {template!r}: there is no {conversion!r}; "
            f"a field is converted by one of {', '.join(CONVERSIONS)}"
        )
    return _plain_field(template, text, bare_only=bare_only)._replace(conversion=conversion)


def _plain_field(template: str, text: str, *, bare_only: bool) -> Field:
    if not re.fullmatch(_PATH, text):
        raise InvalidName(f"the name template {template!r} has a malformed field {{{text}}}")
    source, *path = text.split(".")
    if not path:
        return Field("kwargs", (source,), text)
    if bare_only:
        raise InvalidName(
            f"{{{text}}} in {template!r}: plain fields only, such as {{{path[-1]}}}; "
            f"those with a source, such as {{user.pk}}, are for views"
        )
    if source not in SOURCES:
        raise InvalidName(
            f"{{{text}}} in {template!r}: there is no {source!r}; "
            f"use {{name}} for an URL parameter, or one of {', '.join(SOURCES)}"
        )
    if source == "user" and path != ["pk"]:
        raise InvalidName(f"{{{text}}} in {template!r}: only {{user.pk}} is there")
    if source != "json" and len(path) != 1:
        raise InvalidName(f"{{{text}}} in {template!r}: only json fields nest")
    return Field(source, tuple(path), text)


def _not_separated(template: str, first: Field, second: Field) -> InvalidName:
    return InvalidName(
        f"the name template {template!r} needs a {SEPARATOR!r} between {first} and {second}, as in "
        f"'{first}{SEPARATOR}{second}': else different values could make the same name"
    )


def _encoded(field: Field, value: object) -> str:
    from uuid import UUID

    value = converted(field.conversion, str(field), value)
    if isinstance(value, str):
        text = str.__str__(value)  # what it is equal to, whatever an enum makes of str()
    elif isinstance(value, int) and not isinstance(value, bool):
        text = _digits(field, value)
    elif isinstance(value, UUID):
        text = UUID.__str__(value)
    elif value is None:
        text = ""
    else:
        raise InvalidName(f"{field} is a {type(value).__name__}; a string or int is needed")
    if not text:
        raise InvalidName(f"{field} has no value")
    if len(text) > LONGEST_NAME:  # encoded, it is no shorter: megabytes need not be looked at
        raise InvalidName(f"{field} has {len(text)} characters; a name has {LONGEST_NAME} bytes")
    return percent_encoded(text)


def _digits(field: Field, value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:  # CPython refuses to write thousands of digits
        raise InvalidName(f"{field} is an int with too many digits") from None


def percent_encoded(text: str) -> str:
    """``%``, ``:`` and what is not printable, as ``%XX`` of its UTF-8 bytes.

    Beyond ASCII, printable is what Unicode 3.2 knows as a letter, mark, number, punctuation or
    symbol. Python keeps that table for ever, for internationalized domain names. By
    ``str.isprintable``, which knows more characters in each version of Python, two versions would
    make two names of the same data, and two would hold the lock.
    """
    if text.isascii() and text.isprintable() and ":" not in text and "%" not in text:
        return text
    from unicodedata import ucd_3_2_0

    try:
        return "".join(c if _is_plain(c, ucd_3_2_0.category(c)) else _escape(c) for c in text)
    except UnicodeEncodeError:
        raise InvalidName(f"{ascii(text)[:80]} has a lone surrogate") from None


def _is_plain(character: str, category: str) -> bool:
    return character not in ENCODED and (category[0] in "LMNPS" or character == " ")


def _escape(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def parse_json(text: str | bytes) -> object:
    """A JSON document in which no object has a field twice.

    Parsers differ in which one counts: the lock and the view could see different values. Raises
    ValueError or RecursionError.
    """
    import json

    return json.loads(text, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given more than once")
    return fields


def json_value(document: object, path: tuple[str, ...]) -> object:
    """What a JSON document has at a path; None when it has nothing there."""
    for key in path:
        if not isinstance(document, Mapping) or key not in document:
            return None
        document = document[key]
    return document


def typed_json(field: Field, value: Any) -> object:
    """Only strings and ints: 1, 1.0 and "1e0" must not become different names for one thing."""
    if value is None or (isinstance(value, (str, int)) and not isinstance(value, bool)):
        return value
    raise InvalidName(f"{field} is a {type(value).__name__}; a string or int is needed")
