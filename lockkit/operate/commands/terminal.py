"""Text for people and their terminals: escaping, widths, durations, and the streams themselves.

Names, owners and error messages are hostile: they may come from a request. Nothing of them
reaches a terminal unescaped.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import unicodedata
from typing import Protocol

__all__ = [
    "Console",
    "Readable",
    "Writable",
    "clipped",
    "columns",
    "duration",
    "escape",
    "pad",
    "printable",
    "seconds",
    "unescape",
]

PLAIN = re.compile(r"\d+(\.\d+)?", re.ASCII)
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
CLEAR = "\x1b[H\x1b[2J"
ESCAPE = r"\\(?:\\|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
ELLIPSIS = "…"


class Writable(Protocol):
    """What is needed of a text stream to write to."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class Readable(Protocol):
    """What is needed of a text stream to read answers from."""

    def readline(self) -> str: ...

    def isatty(self) -> bool: ...


class Console:
    """The three streams. Colour and questions only where there is a terminal."""

    def __init__(
        self,
        stdout: Writable,
        stderr: Writable,
        stdin: Readable | None,
        color: bool | None = None,
    ) -> None:
        self._out = stdout
        self._err = stderr
        self._in = stdin
        self.is_terminal = _isatty(stdout)
        self.color = self.is_terminal and _color_wanted() if color is None else color
        self.has_reader = True
        self.interactive = stdin is not None and _isatty(stdin) and _isatty(stderr)

    @property
    def width(self) -> int | None:
        """Columns of the terminal, 80 if it does not say; None: it is not a terminal."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    def write(self, text: str) -> None:
        if self.has_reader:
            self._out.write(_encodable(text, self._out))

    def flush(self) -> None:
        if self.has_reader:
            self._out.flush()

    def forget_reader(self) -> None:
        """Whoever read our output has enough, as ``head`` does: nothing more is written, and the
        interpreter must not complain when it flushes at exit."""
        self.has_reader = False
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def clear(self) -> None:
        if self.is_terminal:
            self.write(CLEAR)

    def complain(self, text: str) -> None:
        """One message on standard error, after what has been written so far."""
        with contextlib.suppress(OSError):  # a full disk, say: that is what the message is about
            self.flush()
        self._err.write(_encodable(text, self._err) + "\n")
        self._err.flush()

    def confirm(self, question: str) -> bool:
        """Ask; only y and yes mean yes. Only where ``interactive``."""
        self._out.flush()
        self._err.write(_encodable(question, self._err) + " [y/N] ")
        self._err.flush()
        answer = self._in.readline() if self._in is not None else ""
        return answer.strip().lower() in ("y", "yes")

    def red(self, text: str) -> str:
        return f"\x1b[1;31m{text}\x1b[0m" if self.color else text


def escape(text: str) -> str:
    r"""Text as one cell of a table: what is not printable, ``\`` and blanks at the ends as escapes.

    Two distinct texts never look alike by this: control characters, direction overrides and lone
    surrogates are visible, and cannot act on the terminal.
    """
    if text.isprintable() and "\\" not in text and text == text.strip(" "):
        return text
    escaped = "".join(map(_escaped, text))
    stripped = escaped.strip(" ")
    start = len(escaped) - len(escaped.lstrip(" "))
    end = len(escaped) - len(stripped) - start
    return r"\x20" * start + stripped + r"\x20" * end


def unescape(text: str) -> str:
    """What ``escape`` was given, of what it returned. A backslash that begins no escape stays."""
    return re.sub(ESCAPE, _unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    found = match[0]
    digits = found[2:] or "5c"  # a backslash stands for itself
    code = int(digits, 16)
    return chr(code) if code <= sys.maxunicode else found


def clipped(text: str, width: int) -> str:
    """Escaped text in so many columns. Where it is cut it ends in ``…``, never within an escape."""
    if columns(text) <= width:
        return text
    taken, used = "", 1
    for part in re.findall(f"{ESCAPE}|.", text):
        used += columns(part)
        if used > width:
            break
        taken += part
    return taken + ELLIPSIS


def printable(text: str) -> str:
    """Sentences of an error: as ``escape``, but lines stay lines, and backslashes are let be."""
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def duration(seconds: float | None) -> str:
    """``0.8s``, ``29.2s``, ``2m05s``, ``3h12m``, ``2d03h``; None is ``-``."""
    if seconds is None:
        return "-"
    sign, left = ("-", -seconds) if seconds < 0 else ("", seconds)
    if left < 59.95:  # noqa: PLR2004  (what rounds to a minute is one)
        return f"{sign}{left:.1f}s"
    minutes, rest = divmod(round(left), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{sign}{days}d{hours:02}h"
    return f"{sign}{hours}h{minutes:02}m" if hours else f"{sign}{minutes}m{rest:02}s"


def seconds(text: str) -> float:
    """``90``, ``1.5h``, ``1h30m``, ``500ms`` as seconds. Raises ValueError."""
    if PLAIN.fullmatch(text):
        return float(text)
    parts = DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 90, 5m or 1h30m")
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def pad(text: str, width: int, *, right: bool = False) -> str:
    if text.isascii():
        return text.rjust(width) if right else text.ljust(width)
    blanks = " " * (width - columns(text))
    return blanks + text if right else text + blanks


def columns(text: str) -> int:
    """How many columns of a terminal it takes."""
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
    code = ord(character)
    if code < 0x100:  # noqa: PLR2004
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # noqa: PLR2004


def _encodable(text: str, stream: Writable) -> str:
    """What an ASCII terminal cannot show is escaped, not an error in mid-listing."""
    encoding = getattr(stream, "encoding", None)
    if text.isascii() or not isinstance(encoding, str):
        return text
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _isatty(stream: Writable | Readable) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # not a stream of a file, or closed
        return False


def _color_wanted() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
