"""Lock names: which texts are names, and how a template makes one from the data of a request.

Names never collide by accident or by malice. A value is percent-encoded in a name, so it
cannot contain the separator ``:``. The same data gives the same name in a view and in a task.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lockkit.model.conversions import CONVERSIONS, converted
from lockkit.model.errors import InvalidName

LONGEST_NAME = 255
"""UTF-8 bytes."""

SEPARATOR = ":"
"""No encoded value contains it."""

ENCODED = f"%{SEPARATOR}\u00ad"
"""These are encoded, too, although Unicode 3.2 has them as printable. The last one is the soft
hyphen, which is punctuation there, but invisible."""

SOURCES = ("kwargs", "user", "json", "form", "query", "header")
# Compiled when they are first used.
_FIELD = r"\{([^{}]*)\}"
_PATH = r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*"
_LEFT = rf"\{{{_PATH}(:[a-z]+)?\}}"
_OTHERS = r"<(?:\w+:)?([A-Za-z_]\w*)>|%\(([A-Za-z_]\w*)\)s"
"""A field of a URL pattern, or of ``%``: a template would have it as it is, in all names."""


def name(template: str, /, **values: object) -> str:
    """A lock name from a template: ``name("stock:{sku}", sku="A:1")`` is ``"stock:A%3A1"``.

    Values are strings, ints or UUIDs. ``{sku:int}`` and ``{id:uuid}`` read a string as an int or as
    a UUID, ``{city:lower}`` makes it lower case, ``:str`` keeps it. An enum that is a string or an
    int counts as the value that it equals. Raises InvalidName, also for a value without a field.
    """
    parsed = Template(template, bare_only=True)
    if unused := values.keys() - {field.path[0] for field in parsed.fields}:
        raise InvalidName(
            f"the name template {template!r} has no field {{{min(unused)}}}. Only fields are "
            "encoded: an f-string has none left"
        )
    return parsed.fill(lambda field: values.get(field.path[0]))


def check_name(text: object) -> str:
    """Return the text if it is a lock name, else raise InvalidName.

    A name has 1 to 255 bytes of UTF-8, without control characters and lone surrogates. It is not
    normalised: two encodings of é are two names.
    """
    if not isinstance(text, str):
        raise InvalidName(f"a lock name is a string, not {type(text).__name__}")
    if type(text) is not str:
        text = str.__str__(text)
    if text.isascii() and text.isprintable() and 0 < len(text) <= LONGEST_NAME:
        return text
    return _check_unusual(text)


def warn_of_fields(text: str) -> None:
    """Warn if the name of a lock looks like a template. The warning shows the line from which the
    caller of this function's caller was called. It has no part of the name, so that names which
    come from outside cannot make it a new one each time."""
    import warnings

    if re.search(_LEFT, text):
        warnings.warn(
            "a lock's name is taken as it is, also with a {field} in it: only lock_view, @locked "
            "and lockkit.name() fill fields. Is this an f-string without its f? Write "
            "lockkit.name('stock:{sku}', sku=sku), as lock_view does",
            RuntimeWarning,
            stacklevel=4,
        )


def _check_unusual(text: str) -> str:
    if not text:
        raise InvalidName("a lock name must not be empty")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"the lock name {ascii(text)[:80]} has a lone surrogate") from None
    if length > LONGEST_NAME:
        raise InvalidName(
            f"the lock name {ascii(text)[:60]}… has {length} bytes; at most {LONGEST_NAME} fit"
        )
    if any(c < " " or "\x7f" <= c <= "\x9f" or c in "\u2028\u2029" for c in text):
        raise InvalidName(f"the lock name {ascii(text)[:80]} has a control character")
    return text


def repair_command(name: str, program: str = "locks", verb: str = "release --damaged") -> str:
    """The command that deletes a damaged record, or does what ``verb`` says. The name is quoted for
    a shell: a request may have chosen it. The command reads back the backslashes that are escaped
    in output."""
    from shlex import quote

    return f"{program} {verb} {'-- ' * name.startswith('-')}{quote(name)}"


class Field(NamedTuple):
    """One ``{…}`` of a template. Without a source, as in ``{sku}``, it is a URL parameter, and its
    source is ``kwargs``."""

    source: str
    path: tuple[str, ...]
    text: str  #: without its conversion
    conversion: str = ""  #: int, uuid, lower or str; empty if the template does not say

    def __str__(self) -> str:
        return f"{{{self.text}}}"


class Template:
    """A parsed name template. It is parsed when it is made, so a misspelt field raises early.

    Two fields must have a ``:`` between them, which no encoded value contains. Otherwise
    ``{a}-{b}`` would give "x-y", "z" and "x", "y-z" the same name.
    """

    def __init__(self, text: str, *, bare_only: bool = False) -> None:
        if not isinstance(text, str):
            raise InvalidName(f"a name template is a string, not {type(text).__name__}")
        self.text = text
        self.fields: tuple[Field, ...] = ()
        self._form = ""  #: with a %s for each field
        if other := re.search(_OTHERS, text):
            raise InvalidName(
                f"{other[0]} in the name template {text!r}: a field is written "
                f"{{{other[1] or other[2]}}}; a text like that must come from a function"
            )
        position = 0
        for match in re.finditer(_FIELD, text):
            between = text[position : match.start()]
            field = _field(text, match[1], bare_only=bare_only)
            if self.fields and SEPARATOR not in between:
                raise _not_separated(text, self.fields[-1], field)
            self._form += self._literal(between) + "%s"
            self.fields += (field,)
            position = match.end()
        self._form += self._literal(text[position:])
        if not self._form:
            raise InvalidName("a name template must not be empty")

    def fill(self, source: Callable[[Field], object]) -> str:
        """The name. Raises InvalidName if a value is missing or has a wrong type."""
        texts = [_encoded(field, source(field)) for field in self.fields]
        return check_name(self._form % tuple(texts))

    def _literal(self, text: str) -> str:
        if "{" in text or "}" in text:
            raise InvalidName(f"the name template {self.text!r} has an unmatched brace")
        return text.replace("%", "%%")


def _field(template: str, text: str, *, bare_only: bool) -> Field:
    text, colon, conversion = text.partition(":")
    if colon and conversion not in CONVERSIONS:
        raise InvalidName(
            f"{{{text}:{conversion}}} in {template!r}: there is no conversion {conversion!r}; "
            f"use one of {', '.join(CONVERSIONS)}"
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
            f"{{{text}}} in {template!r}: use a plain field, such as {{{path[-1]}}}; "
            f"fields with a source, such as {{user.pk}}, are for views"
        )
    if source not in SOURCES:
        raise InvalidName(
            f"{{{text}}} in {template!r}: there is no source {source!r}; "
            f"use {{name}} for a URL parameter, or one of {', '.join(SOURCES)}"
        )
    if source == "user" and path != ["pk"]:
        raise InvalidName(f"{{{text}}} in {template!r}: a user has only {{user.pk}}")
    if source != "json" and len(path) != 1:
        raise InvalidName(f"{{{text}}} in {template!r}: only json fields can be nested")
    if source == "header" and (sent := sent_header(path[0])):
        raise InvalidName(f"{{{text}}} in {template!r}: the header is called {{header.{sent}}}")
    return Field(source, tuple(path), text)


def sent_header(key: str) -> str:
    """The header that a key of Django's ``META`` stands for, as ``X-Shop`` for ``HTTP_X_SHOP``.
    Empty for other texts. No request has a header that is called as such a key."""
    is_key = key.upper().startswith("HTTP_")
    return key[len("HTTP_") :].replace("_", "-").title() if is_key else ""


def _not_separated(template: str, first: Field, second: Field) -> InvalidName:
    return InvalidName(
        f"the name template {template!r} needs a {SEPARATOR!r} between {first} and {second}, as in "
        f"'{first}{SEPARATOR}{second}': otherwise different values could make the same name"
    )


def _encoded(field: Field, value: object) -> str:
    text = _text(field, value)
    if not text:
        raise InvalidName(f"{field} has no value")
    if len(text) > LONGEST_NAME:  # encoding does not shorten it, so megabytes are not encoded
        raise InvalidName(f"{field} has {len(text)} characters; a name has {LONGEST_NAME} bytes")
    return percent_encoded(text)


def _text(field: Field, value: object) -> str:
    value = converted(field.conversion, field, value)
    if isinstance(value, str):
        return str.__str__(value)  # the value that it equals, even if an enum overrides str()
    if isinstance(value, int) and not isinstance(value, bool):
        return _digits(field, value)
    if value is None:
        return ""
    from uuid import UUID

    if isinstance(value, UUID):
        return UUID.__str__(value)
    raise InvalidName(f"{field} is a {type(value).__name__}; a string or int is needed")


def _digits(field: Field, value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:  # CPython refuses to write thousands of digits
        raise InvalidName(f"{field} is an int with too many digits") from None


def percent_encoded(text: str) -> str:
    """The text with ``%``, ``:`` and unprintable characters as ``%XX`` of their UTF-8 bytes.

    Beyond ASCII, a character is printable if Unicode 3.2 knows it as a letter, mark, number,
    punctuation or symbol. Python keeps that table for ever, for internationalized domain names.
    ``str.isprintable`` knows more characters in each version of Python: two versions would
    make two names from the same data, and both would hold the lock.
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
    """Parse a JSON document in which no object has a field twice.

    Parsers differ in which of the two fields counts, so the lock and the view could see different
    values. Raises ValueError or RecursionError.
    """
    import json

    return json.loads(text, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given more than once")
    return fields


def json_value(document: object, path: tuple[str, ...]) -> object:
    """The value at a path of a JSON document, or None if there is none."""
    for key in path:
        if not isinstance(document, Mapping) or key not in document:
            return None
        document = document[key]
    return document


def typed_json(field: Field, value: Any) -> object:
    """The value, if it is a string or int: 1, 1.0 and "1e0" must not be three names."""
    if value is None or (isinstance(value, (str, int)) and not isinstance(value, bool)):
        return value
    raise InvalidName(f"{field} is a {type(value).__name__}; a string or int is needed")
