"""Conversions of values in name templates: ``{form.sku:int}``, ``:uuid``, ``:lower``, ``:str``.

A request sends text, and a database may read several texts as one value: an integer column finds
the same row for "1", "01" and " 1". Without a conversion they would be three locks. A conversion
gives them one name. It refuses a text that is not a value of its type, or that only some programs
read as one: "1_0" is 10 for Python and 1 for MySQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lockkit.model.errors import InvalidName

_INT = r"[ \t\n\v\f\r]*([+-]?[0-9]{1,255})[ \t\n\v\f\r]*"
_UUID = r"(urn:uuid:)?\{?[0-9A-Fa-f-]{32,36}\}?"


class ConversionError(InvalidName):
    """The value is not of the type that the template says. The message does not show it."""


def converted(conversion: str, shown: object, value: object) -> object:
    """The value that the text stands for. ``shown`` is the field, as the error shows it.

    Raises ConversionError. A type that cannot make a name is refused later, by the template.
    """
    try:
        return CONVERSIONS[conversion](value) if conversion else value
    except ValueError:
        raise ConversionError(f"{shown} is not {_MEANT[conversion]}") from None


def _int(value: object) -> object:
    if not isinstance(value, str):
        return _only(int, value)
    match = re.fullmatch(_INT, value)
    if match is None:
        raise ValueError
    return int(match[1])


def _uuid(value: object) -> object:
    from uuid import UUID

    if not isinstance(value, str):
        return _only(UUID, value)
    if re.fullmatch(_UUID, value) is None:
        raise ValueError
    return UUID(value)


def _lower(value: object) -> object:
    """Convert each character by itself, and only if Unicode 3.2 knows it: then all versions of
    Python do. Two versions may convert a newer letter differently, and so make two names."""
    if not isinstance(value, str) or value.isascii():
        return value.lower() if isinstance(value, str) else value
    from unicodedata import ucd_3_2_0

    return "".join(c.lower() if ucd_3_2_0.category(c) != "Cn" else c for c in value)


def _only(kind: type, value: object) -> object:
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise ValueError


CONVERSIONS: dict[str, Callable[[object], object]] = {
    "int": _int,
    "uuid": _uuid,
    "lower": _lower,
    "str": lambda value: value,
}
_MEANT = {"int": "a whole number", "uuid": "a UUID"}
