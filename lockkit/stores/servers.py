"""Database servers, whichever way they are asked: what they refuse, and how they are let go."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

from lockkit.model.errors import BackendUnavailable, StoreRefused

POSTGRESQL_REFUSED: Final = ("28", "3D000", "42501")
"""Authorization, a database that is not there, a missing permission."""

POSTGRESQL_REFUSALS: Final = (
    "authentication failed",
    "no pg_hba.conf entry",
    "no password",
    "does not exist",
)
"""The words of libpq, which tells no code of what the server says before a session begins."""


def cannot_connect(server: str, text: str, *, is_refusal: bool) -> BackendUnavailable:
    from lockkit.stores.tls import remedy  # a file needs no ssl, which takes long to import

    kind = StoreRefused if is_refusal else BackendUnavailable
    return kind(f"cannot connect to the {server}: {text}{remedy(text)}")


def first_line(error: BaseException) -> str:
    """What follows can quote the statement."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def shut_down(descriptor: int) -> None:
    """Have whoever uses this socket fail; not close it, which is theirs."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)
