"""How the command ends."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Exit", "UsageError"]


class Exit(IntEnum):
    """The exit statuses, of which scripts may rely on each."""

    OK = 0
    ERROR = 1  #: it could not be done, or was declined
    USAGE = 2
    STUCK = 3  #: ``--fail-on-stuck`` found something, also if another store is down
    STORE_DOWN = 69  #: sysexits' EX_UNAVAILABLE: at least one store did not answer
    NOT_ACQUIRED = 75  #: sysexits' EX_TEMPFAIL: ``run`` did not get the lock
    INTERRUPTED = 130


class UsageError(Exception):
    """The arguments make no sense, or do not suffice. ``usage`` ends in a newline, or is empty."""

    def __init__(self, message: str, usage: str = "") -> None:
        super().__init__(message)
        self.usage = usage
