"""Connections to MySQL and MariaDB, by PyMySQL, which has no asyncio: it reads in worker threads.

Limit: PyMySQL's public API cannot send a statement now and read its reply later, so a private
method of its connection is called to send.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, cast

import pymysql  # type: ignore[import-untyped]
from pymysql.constants import CLIENT, COMMAND  # type: ignore[import-untyped]

from lockkit.model.errors import BackendUnavailable, ConfigurationError, StoreRefused
from lockkit.stores.servers import (
    MYSQL_LOST,
    MYSQL_REFUSED,
    cannot_connect,
    raise_unless_of_connecting,
)
from lockkit.stores.sessions.connection import (
    Connection,
    Refused,
    Rows,
    SessionEnded,
    Statement,
    pooled,
)
from lockkit.stores.sessions.mysql_dialects import WRITABLE, of_sessions
from lockkit.stores.sessions.settings import ASKING_SECONDS, IDLE_SECONDS, QUESTIONS, Arguments

A_YEAR = 365 * 24 * 3600

HOST = of_sessions("host", "id = connection_id()")
SET_UP = f"select connection_id(), {HOST}, {WRITABLE}"

SETTINGS = (
    "autocommit = 1",
    "transaction_isolation = 'READ-COMMITTED'",  # MySQL
    "tx_isolation = 'READ-COMMITTED'",  # MariaDB
    f"innodb_lock_wait_timeout = {A_YEAR}",
    "max_statement_time = 0",  # MariaDB
    "max_execution_time = 0",  # MySQL
    "idle_transaction_timeout = 0",  # MariaDB
    "idle_readonly_transaction_timeout = 0",  # MariaDB
    "idle_write_transaction_timeout = 0",  # MariaDB
)
"""Set for each session. A server that lacks one refuses it: neither vendor's has all of them."""

ASKING = [
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_SECONDS),
        ("TCP_KEEPINTVL", ASKING_SECONDS),
        ("TCP_KEEPCNT", QUESTIONS),
    )
    if hasattr(socket, name)
]
"""Options of TCP keep-alive, which PyMySQL has switched on. Not every system has all of them."""

SAID_END = frozenset({1053, 1927, 4031})
"""Codes of a session's end: shutdown, KILL, silence."""


class MySQLConnection(Connection):
    """One connection of PyMySQL's."""

    ends_silence = True
    reads_block = True

    def __init__(self, arguments: Arguments, *, may_be_pooled: bool = False) -> None:
        self._arguments, self.is_pooled = arguments, may_be_pooled
        self._driver = connected(arguments)
        try:
            self._set_up(may_be_pooled=may_be_pooled)
        except pymysql.MySQLError as error:
            self.close()
            raise no_connection(error) from error
        except BaseException:
            self.close()
            raise

    def _set_up(self, *, may_be_pooled: bool) -> None:
        self._socket = self._driver._sock
        self.reads_from(self._socket.fileno())
        with suppress(OSError):  # a unix socket does not need it
            for option, value in ASKING:
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
        with self._driver.cursor() as cursor:
            cursor.execute(SET_UP)
            identity, started, is_writable = cursor.fetchone()
            self.started = started or ""  # not every server knows
            for setting in SETTINGS:
                with suppress(pymysql.MySQLError):
                    cursor.execute(f"set session {setting}")
        self.identity = str(identity)
        if identity != self._driver.thread_id() and not may_be_pooled:
            raise pooled()
        if not is_writable:
            raise StoreRefused(
                "the database server is read only, and the locks of a replica do not exclude those "
                "of its primary: point the URL at the primary"
            )

    def is_same(self, other: Connection) -> bool:
        """False over a unix socket, where nobody can tell: ``started`` is the same for all, and
        after a restart the server counts its sessions anew."""
        return ":" in self.started and super().is_same(other)

    @property
    def is_closed(self) -> bool:
        """Asks the socket: PyMySQL closes that when it is interrupted in a reply, and notes it
        later."""
        return bool(self._socket.fileno() < 0)

    def send(self, statement: Statement) -> None:
        try:
            self.is_owed = True
            text = cast("str", statement).encode()
            self._driver._execute_command(COMMAND.COM_QUERY, text)
        except (pymysql.MySQLError, OSError) as error:
            raise self._ended(error) from error
        except BaseException:  # interrupted: nobody knows whether it was sent
            self.close()
            raise

    def fetch(self) -> Rows | None:
        if not self.poll(0):
            return None
        rows: Rows = []
        try:
            while True:
                self._driver.next_result()
                result = self._driver._result
                rows = rows if result.rows is None else [_texts(row) for row in result.rows]
                if not result.has_next:
                    return rows
        except (pymysql.MySQLError, OSError) as error:
            code = _code(error)
            if code in MYSQL_LOST:
                raise self._ended(error) from error
            raise Refused(str(code), _text(error), for_good=code in MYSQL_REFUSED) from error

    def is_alive(self) -> bool:
        """Unasked, the server says only that the session is over."""
        return not self.is_closed and not self.poll(0)

    def cancel(self) -> None:
        other = connected(self._arguments)
        try:
            with other, other.cursor() as cursor:
                cursor.execute(f"kill query {self.identity}")
        except pymysql.MySQLError as error:
            raise no_connection(error) from error

    def close(self) -> None:
        with suppress(Exception):
            self._driver.close()

    def _ended(self, error: BaseException) -> SessionEnded:
        self.said_end |= _code(error) in SAID_END
        return SessionEnded(f"the connection to the database server broke: {_text(error)}")


def connected(arguments: Arguments) -> Any:
    try:
        return pymysql.connect(**arguments(), client_flag=CLIENT.MULTI_STATEMENTS)
    except (TypeError, UnicodeError):  # their texts show the password
        raise ConfigurationError(
            "PyMySQL cannot send the user or the password: they must be texts of Latin-1 characters"
        ) from None
    except (pymysql.MySQLError, RuntimeError) as error:
        raise_unless_of_connecting(error)
        raise no_connection(error) from error


def no_connection(error: BaseException) -> BackendUnavailable:
    refused = _code(error) in MYSQL_REFUSED
    return cannot_connect("database server", _text(error), is_refusal=refused)


def _code(error: BaseException) -> int:
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) and isinstance(error, pymysql.MySQLError) else 0


def _text(error: BaseException) -> str:
    text = str(error.args[1] if len(error.args) > 1 else error)
    return (text.strip().splitlines() or [type(error).__name__])[0][:200]


def _texts(row: tuple[object, ...]) -> list[str | None]:
    return [None if value is None else str(value) for value in row]
