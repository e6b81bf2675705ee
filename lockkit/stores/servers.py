"""Database servers, for every driver: what they refuse, and how to shut a connection down."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from traceback import walk_tb
from typing import Any, Final

from lockkit.model.errors import BackendUnavailable, ConfigurationError, StoreRefused

POSTGRESQL_REFUSED: Final = ("28", "3D000", "42501", "25006")
"""Beginnings of the codes of refusals: authorization, a missing database or permission, a
read-only server."""

POOLERS: Final = "08P01"
"""The code of PgBouncer's own errors."""

STATEMENT_MODE: Final = "statement pooling mode"
"""Words of PgBouncer's errors in this mode, in which it allows no transactions."""

POSTGRESQL_REFUSALS: Final = (
    "authentication failed",
    "no pg_hba.conf entry",
    "no password",
    "does not exist",
    STATEMENT_MODE,
)
"""Words of libpq's errors of a refusal: before a session begins, they have no code."""

MYSQL_LOST: Final = frozenset({0, 1053, 1077, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013,
                               2014, 2027, 2055, 4031})  # fmt: skip
"""Codes of a lost connection: the drivers' own, and those of a server that shuts down, was
interrupted, or killed the session. 0 is PyMySQL's, of a connection that it has closed."""

MYSQL_REFUSED: Final = frozenset({1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1290, 1524, 1698,
                                  1792, 1836, 3118})  # fmt: skip
"""Access denied, an unknown database, a host that may not connect, a locked account, a server that
is read only."""


def postgresql_refuses(code: str, error: BaseException) -> bool:
    """Whether the server is up, but refuses. Limit: before a session begins, a refusal in another
    language than English counts as unavailable."""
    return code.startswith(POSTGRESQL_REFUSED) or (
        code in {"", POOLERS} and any(words in str(error) for words in POSTGRESQL_REFUSALS)
    )


def is_interrupt(error: BaseException) -> bool:
    """Whether the handler of a signal has raised it, to end a task. Limit: the handler must be a
    function or a method."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [getattr(handler, "__code__", None) for handler in handlers]
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def raise_unless_of_connecting(error: BaseException) -> None:
    """Raise an interrupt, and a RuntimeError, but not PyMySQL's about a missing ``cryptography``,
    which it needs for a password of MySQL's default kind."""
    is_of_rsa = "cryptography" in str(error)
    if is_interrupt(error) or (isinstance(error, RuntimeError) and not is_of_rsa):
        raise error


def cannot_connect(server: str, text: str, *, is_refusal: bool) -> BackendUnavailable:
    from lockkit.stores.tls import remedy  # SQLite does not need ssl, which takes long to import

    kind = StoreRefused if is_refusal else BackendUnavailable
    if STATEMENT_MODE in text:
        text += ": set its pool_mode to session or transaction, or point the URL at the server"
    return kind(f"cannot connect to the {server}: {text}{remedy(text)}")


def tls_remedy(text: str) -> str:
    """A hint to add to Python's words about a certificate that it does not trust."""
    if "self-signed" in text or "self signed" in text or "local issuer" in text:
        return "; OPTIONS['ssl_ca_certs'] names the file of the authority to trust"
    return ""


def current(password: object) -> Any:
    """The password to connect with now: the value itself, or what it returns if it is a function.

    Raises BackendUnavailable if the function fails, but an interrupt as it is.
    """
    if not callable(password):
        return password
    try:
        return password()
    except Exception as error:
        if is_interrupt(error):
            raise
        raise BackendUnavailable("the function in OPTIONS['password'] has failed") from error


def said_twice(place: str) -> ConfigurationError:
    """The error for a password in a URL that would be ignored, because OPTIONS has one too."""
    return ConfigurationError(f"{place} and its OPTIONS both say a password: say it in one of them")


def first_line(error: BaseException) -> str:
    """The error's text without its other lines, which can quote the statement."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def shut_down(descriptor: int, is_closed: Callable[[], bool] = lambda: False) -> None:
    """Shut a socket down, so that its user fails, and closes it. ``is_closed``: whether the user
    has closed it already, so that the descriptor may be another socket's by now."""
    with (
        suppress(OSError),
        socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as copy,
    ):
        if not is_closed():  # asked after the copy is made: its socket cannot change any more
            copy.shutdown(socket.SHUT_RDWR)
