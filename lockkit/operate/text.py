"""Text for people and their terminals: escapes, widths, durations.

Names, owners and error messages are hostile, because they may come from a request. They are
escaped before they reach a terminal.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator

UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION = re.compile(r"\d+(\.\d+)?|(\d+(\.\d+)?(ms|[smhd]))+", re.ASCII)
ESCAPE = r"\\(?:\\|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
ELLIPSIS = "…"


def escape(text: str) -> str:
    r"""Text as a cell of a table: unprintable characters, ``\`` and blanks at the ends are escaped.

    Two different texts never look alike: control characters, direction overrides and lone
    surrogates become visible, and cannot act on the terminal.
    """
    escaped = "".join(map(_escaped, text))
    rest = escaped.lstrip(" ")
    within = rest.rstrip(" ")
    before, after = len(escaped) - len(rest), len(rest) - len(within)
    return r"\x20" * before + within + r"\x20" * after


def unescape(text: str) -> str:
    """The inverse of ``escape``. A backslash that does not begin an escape stays."""
    return re.sub(ESCAPE, _unescaped, text)


def clipped(text: str, width: int, end: str = ELLIPSIS) -> str:
    """Escaped text in at most ``width`` columns. Cut text ends in ``end``, never within an escape.

    ``end``: ``…``, or its escape.
    """
    if columns(text) <= width:
        return text
    taken, used = "", columns(end)
    for part in re.findall(f"{ESCAPE}|.", text):
        used += columns(part)
        if used > width:
            break
        taken += part
    return taken + end


def wrapped(text: str, width: int) -> Iterator[str]:
    """Lines of escaped text, each in at most ``width`` columns, broken at blanks. A longer word is
    broken as well, but never within an escape."""
    line = ""
    for word in re.findall(r" *[^ ]+", text):
        if columns(line + word) > width:
            yield from filter(None, [line])
            line, word = "", word.lstrip()  # noqa: PLW2901  (blanks end with their line)
        for part in re.findall(f"{ESCAPE}|.", word):
            if columns(line + part) > width:
                yield line
                line = ""
            line += part
    yield from filter(None, [line])


def printable(text: str) -> str:
    """The text of an error, escaped except for its line breaks and backslashes."""
    return "".join(c if c in "\\\n" else _escaped(c) for c in text)


def duration(seconds: float | None) -> str:
    """``0.8s``, ``29.2s``, ``2m05s``, ``3h12m``, ``2d03h``; None is ``-``."""
    if seconds is None:
        return "-"
    sign, left = ("-", -seconds) if seconds < 0 else ("", seconds)
    if left < 59.95:  # noqa: PLR2004  (from here on it rounds to a minute)
        return f"{sign}{left:.1f}s"
    minutes, rest = divmod(round(left), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{sign}{days}d{hours:02}h"
    return f"{sign}{hours}h{minutes:02}m" if hours else f"{sign}{minutes}m{rest:02}s"


def seconds(text: str) -> float:
    """``90``, ``1.5h``, ``1h30m``, ``500ms`` as seconds. Raises ValueError."""
    if not DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 90, 5m or 1h30m")
    return sum(float(n) * UNITS[unit] for n, unit in re.findall(r"([\d.]+)([a-z]*)", text))


def bare_urls(text: str) -> str:
    """Typed text without the users, passwords and queries of its URLs. They may contain blanks, so
    this cuts too much rather than too little."""
    return re.sub(r"(://[^?]*)\?.*", r"\1?…", re.sub(r"://.*@", "://…@", text))


def pad(text: str, width: int, *, right: bool = False) -> str:
    blanks = " " * (width - columns(text))
    return blanks + text if right else text + blanks


def columns(text: str) -> int:
    """The number of columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _escaped(character: str) -> str:
    if character == "\\":
        return r"\\"
    if character.isprintable():
        return character
    if character.isascii():
        return f"\\x{ord(character):02x}"
    return character.encode("ascii", "backslashreplace").decode()


def _unescaped(match: re.Match[str]) -> str:
    digits = match[0][2:] or "5c"  # a backslash stands for itself
    code = int(digits, 16)
    return chr(code) if code <= sys.maxunicode else match[0]
