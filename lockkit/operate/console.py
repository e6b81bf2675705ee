"""The streams of the command, and how it ends."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from enum import IntEnum
from typing import Any, Protocol

CLEAR = "\x1b[H\x1b[2J"


class Exit(IntEnum):
    """The exit statuses. Scripts may rely on them."""

    OK = 0
    ERROR = 1  #: it could not be done, or was declined
    USAGE = 2
    STUCK = 3  #: ``--fail-on-stuck`` or ``prune`` found something, even if another store is down
    STORE_DOWN = 69  #: sysexits' EX_UNAVAILABLE: at least one store did not answer
    NOT_ACQUIRED = 75  #: sysexits' EX_TEMPFAIL: ``run`` did not get the lock
    INTERRUPTED = 130


class UsageError(Exception):
    """The arguments are wrong or not sufficient. ``usage`` ends in a newline, or is empty."""

    def __init__(self, message: str, usage: str = "") -> None:
        super().__init__(message)
        self.usage = usage


class Writable(Protocol):
    """The methods of a text stream that writing needs."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class Readable(Protocol):
    """The methods of a text stream that reading an answer needs."""

    def readline(self) -> str: ...

    def isatty(self) -> bool: ...


class Closed(io.StringIO):
    """Replaces a stream that the process was started without, as some cron jobs are. It is empty,
    and keeps nothing."""

    def write(self, text: str, /) -> int:
        return len(text)


class Console:
    """The three streams. There is colour, and there are questions, only on a terminal."""

    def __init__(
        self,
        stdout: Writable,
        stderr: Writable,
        stdin: Readable,
        color: bool | None = None,
        program: str = "locks",
    ) -> None:
        """``program``: begins the commands for pasting, as in ``manage.py locks``."""
        self.program = program
        self._out = stdout
        self._err = stderr
        self._in = stdin
        self.is_terminal = _isatty(stdout)
        self.color = self.is_terminal and _color_wanted() if color is None else color
        self.has_reader = True
        self.interactive = _isatty(stdin) and _isatty(stderr)

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

    def report(self, text: str) -> None:
        """Write what a command changes. Unlike a listing, it goes on if nobody reads the output."""
        try:
            self.write(text)
            self.flush()
        except BrokenPipeError:
            self.forget_reader()

    def forget_reader(self) -> None:
        """The reader of the output has stopped reading, as ``head`` does. Write nothing more."""
        self.has_reader = False
        _discard(self._out)

    def encodable(self, text: str) -> str:
        """The text as ``write`` will write it, which may be longer."""
        return _encodable(text, self._out)

    def clear(self) -> None:
        """Clear the screen; in a pipe or a terminal that cannot, write an empty line."""
        self.write(CLEAR if self.is_terminal and not _is_dumb() else "\n")

    def complain(self, text: str) -> None:
        """One message on standard error, after what has been written so far."""
        with contextlib.suppress(OSError):  # a full disk, for example: the message is about it
            self.flush()
        self._tell(text + "\n")

    def confirm(self, question: str) -> bool:
        """Ask; only y and yes mean yes. Call it only if ``interactive``."""
        self._out.flush()
        self._tell(f"{question} [y/N] ")
        return self._in.readline().strip().lower() in ("y", "yes")

    def red(self, text: str) -> str:
        return f"\x1b[1;31m{text}\x1b[0m" if self.color else text

    def _tell(self, text: str) -> None:
        try:
            self._err.write(_encodable(text, self._err))
            self._err.flush()
        except OSError:  # nobody can be told, but the command goes on
            _discard(self._err)


def _discard(stream: Any) -> None:
    """Send all output of the stream to the null device. Otherwise the interpreter's flush at exit
    would fail, complain and change the exit status."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _encodable(text: str, stream: Writable) -> str:
    """Escape the characters that the stream's encoding lacks, instead of failing in mid-listing."""
    encoding = getattr(stream, "encoding", None)
    if text.isascii() or not isinstance(encoding, str):
        return text
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _isatty(stream: Writable | Readable) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # not a file, closed, or None
        return False


def _color_wanted() -> bool:
    return not os.environ.get("NO_COLOR") and not _is_dumb()


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"
