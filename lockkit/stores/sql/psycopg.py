"""Connections of psycopg 3, which knows more than DB-API: messages, and statements that the server
has prepared.

A prepared statement is named by a hash of its text. Behind a transaction pooler, the next one may
go to another session of the server. That session has the same statement by this name, or none. If
it has none, nothing was done, and the connection goes on without prepared statements.
"""

from __future__ import annotations

import functools
import hashlib
import re
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from lockkit.model.clock import now
from lockkit.runtime import native
from lockkit.stores.sql import guard
from lockkit.stores.sql.connector import Parameters, Result
from lockkit.stores.sql.driver import PARAMETER, DriverConnection

NOT_PREPARED: Final = {"26000", "42P05", "0A000"}
"""Codes: the session has no statement of this name; or has one already, which this connection has
not prepared; or the table was replaced."""

CANCEL_SECONDS: Final = 2.0
"""Seconds by which a step may take longer, to cancel a statement that was not answered in time."""

MOST_PREPARED: Final = 50
"""The most statements that one connection prepares. ``read_many`` is a statement of its own for
each number of rows."""

WHOLE_NUMBERS: Final = {20, 21, 23}
"""The types bigint, smallint and integer."""

FATAL_ERROR: Final = ExecStatus.FATAL_ERROR  # looked up once

WRITING: Final = re.compile("INSERT|UPDATE|DELETE")


class _Numbered(NamedTuple):
    """A statement with ``$1``, ``$2`` and so on for its parameters, whose names are in this order.
    ``name``: its own, once it is prepared."""

    name: bytes
    text: bytes
    parameters: tuple[str, ...]


class PsycopgConnection(DriverConnection):
    """Calls libpq itself, without the cursors of psycopg."""

    ends_in_time = True
    brings_messages = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._libpq = self.driver.pgconn
        codec = self.driver.info.encoding
        self._codec = "utf-8" if codec == "ascii" else codec  # SQL_ASCII has any bytes
        self._read = functools.partial(str, encoding=self._codec, errors="surrogateescape")
        self._both = native.poll(self._libpq.socket, select.POLLIN | select.POLLOUT)
        self._prepared: set[bytes] = set()
        self._prepares = True

    def execute(self, statement: str, parameters: Parameters) -> Result:
        numbered = _numbered(statement)
        try:
            values = [str(parameters[name]).encode(self._codec) for name in numbered.parameters]
            result = self._executed(numbered, values)
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise self._vendor.failure(error, statement, self._remedy) from error
        return Result(rows_of(result, self._read), result.command_tuples or 0)

    def messages(self, seconds: float) -> list[str]:
        try:
            if not (found := self._messages()):
                self.poll(seconds * 1000)
                self._libpq.consume_input()
                found = self._messages()
        except psycopg.Error as error:
            raise self._vendor.failure(error, "SELECT", self._remedy) from error
        return found

    def _messages(self) -> list[str]:
        return [self._read(found.extra) for found in iter(self._libpq.notifies, None)]

    def _executed(self, numbered: _Numbered, values: list[bytes]) -> Any:
        name, text, parameters = numbered
        prepares = self._prepares and parameters and len(self._prepared) < MOST_PREPARED
        if not (prepares or name in self._prepared):
            self._libpq.send_query_params(text, values)
            return self._reply()
        try:
            if name not in self._prepared:
                self._libpq.send_prepare(name, text)
                self._reply()
                self._prepared.add(name)
            self._libpq.send_query_prepared(name, values)
            return self._reply()
        except psycopg.Error as error:
            if error.sqlstate not in NOT_PREPARED:
                raise
        self._prepares = False
        self._prepared.clear()
        return self._executed(numbered, values)

    def _reply(self) -> Any:
        """The result of the one statement that was sent."""
        libpq, deadline = self._libpq, now() + guard.STEP_SECONDS
        while libpq.flush():  # more than fits: the server may wait until it is read from
            self._wait(self._both, deadline, libpq.flush)
        result: Any = None
        while True:
            while libpq.is_busy():
                self._wait(self.poll, deadline, libpq.is_busy)
            if (more := libpq.get_result()) is None:
                break
            result = more  # a server that shuts down sends more than one
        if result.status == FATAL_ERROR:
            raise error_from_result(result, encoding=self._codec)
        return result

    def _wait(self, poll: native.Poll, deadline: float, waits: Callable[[], object]) -> None:
        """Wait for the socket. If nothing comes until the deadline, cancel the statement and raise.
        This process itself may have been paused: data that has come meanwhile is in time."""
        is_late = not poll(max(deadline - now(), 0.0) * 1000)
        self._libpq.consume_input()
        if is_late and waits():
            self._cancel()
            raise psycopg.OperationalError("the server did not answer in time")

    def _cancel(self) -> None:
        """Cancel the statement: a session that waits, for a lock say, does not notice that its
        client has gone. An older libpq is not used for this: it may wait without end itself."""
        known = getattr(psycopg, "capabilities", None)  # from psycopg 3.2 on
        if known is not None and known.has_cancel_safe():
            with suppress(psycopg.Error):
                self.driver.cancel_safe(timeout=CANCEL_SECONDS)


def rows_of(result: Any, read: Callable[[bytes], str]) -> list[list[int | str | None]]:
    """The rows of a result: whole numbers as int, and everything else as ``read`` decodes it."""
    value, rows = result.get_value, []
    readers = [int if result.ftype(c) in WHOLE_NUMBERS else read for c in range(result.nfields)]
    for row in range(result.ntuples):
        values: list[int | str | None] = []
        for column, reader in enumerate(readers):
            raw = value(row, column)
            values.append(None if raw is None else reader(raw))
        rows.append(values)
    return rows


@functools.cache
def _numbered(statement: str) -> _Numbered:
    names = tuple(dict.fromkeys(PARAMETER.findall(statement)))

    def number(match: re.Match[str]) -> str:
        return f"${names.index(match[1]) + 1}"

    text = PARAMETER.sub(number, statement).encode()
    does = "write" if WRITING.search(statement) else "read"
    digest = hashlib.sha256(text).hexdigest()[:16]
    return _Numbered(f"lockkit_{does}_{digest}".encode(), text, names)
