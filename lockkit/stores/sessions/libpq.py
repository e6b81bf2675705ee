"""Connections to PostgreSQL: psycopg 3 makes them, and libpq sends without waiting.

A pooler is noticed because it tells its clients other session numbers than the server does.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, cast

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

from lockkit.model.clock import now
from lockkit.model.errors import BackendUnavailable, StoreRefused
from lockkit.runtime import native
from lockkit.stores.servers import (
    POSTGRESQL_REFUSED,
    cannot_connect,
    first_line,
    postgresql_refuses,
)
from lockkit.stores.sessions.connection import (
    Connection,
    Prepared,
    Refused,
    Rows,
    SessionEnded,
    Statement,
    pooled,
)
from lockkit.stores.sessions.dialects import YES
from lockkit.stores.sessions.session import ANSWER_SECONDS
from lockkit.stores.sessions.settings import Arguments

CANCEL_SECONDS = 2.0
OK, BAD = ConnStatus.OK, ConnStatus.BAD
FATAL_ERROR, TUPLES_OK = ExecStatus.FATAL_ERROR, ExecStatus.TUPLES_OK  # looked up once

HAS_TIMEOUTS: Final = 140000
"""The first version with idle_session_timeout and client_connection_check_interval."""

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

SET_UP = """
select pg_backend_pid()::text, backend_start::text, pg_is_in_recovery(),
    set_config('synchronous_commit', 'off', false),
    set_config('default_transaction_isolation', 'read committed', false),
    (select count(set_config(name, '0', false)) from pg_settings where name in (
        'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout',
        'transaction_timeout'))
from pg_stat_activity where pid = pg_backend_pid()
"""
"""Prepares a session. It switches off those time limits that the server's version has, because they
would end a lease or a wait. In a stricter isolation, one of two sessions that make the same row at
once would get an error."""

HEAR_OF_DEAD_WAITERS = "set client_connection_check_interval = '1s'"
"""Has the server look each second whether the client of a waiting statement is still there."""


class PostgresConnection(Connection):
    """One connection of psycopg's."""

    def __init__(
        self, arguments: Arguments, prepared: str = "", *, may_be_pooled: bool = False
    ) -> None:
        self._arguments, self.is_pooled = arguments, may_be_pooled
        self._results: list[PGresult] = []
        try:
            self._driver = psycopg.connect(**arguments(), autocommit=True)
        except psycopg.Error as error:
            raise no_connection(error) from error
        self._libpq = self._driver.pgconn
        self.reads_from(self._libpq.socket)
        try:
            self._set_up(may_be_pooled=may_be_pooled)
            if prepared:
                self._ask(prepared)
        except (Refused, SessionEnded) as error:
            self.close()
            raise no_connection(error) from error
        except BaseException:
            self.close()
            raise

    def _set_up(self, *, may_be_pooled: bool) -> None:
        identity, started, is_standby, *_ = self._ask(SET_UP)[0]
        self.identity, self.started = str(identity), str(started)
        if may_be_pooled:
            self._ask("begin")  # refused by PgBouncer if it gives each statement to another session
            self._ask("commit")
        elif self.identity != str(self._libpq.backend_pid):
            raise pooled()
        if is_standby in YES:
            raise StoreRefused(
                "the PostgreSQL server is a standby, whose locks do not exclude those of the "
                "primary: point the URL at the primary"
            )
        self.ends_silence = self._libpq.server_version >= HAS_TIMEOUTS
        if self.ends_silence:
            with suppress(Refused):  # not every operating system can
                self._ask(HEAR_OF_DEAD_WAITERS)

    def _ask(self, statement: str) -> Rows:
        """The reply to a statement. Raises BackendUnavailable if it does not come in time."""
        until = now() + ANSWER_SECONDS
        self.send(statement)
        try:
            while (rows := self.fetch()) is None:
                if (left := until - now()) <= 0:
                    raise BackendUnavailable("the PostgreSQL server did not answer in time")
                self.poll(left * 1000)
        finally:
            self.is_owed = False
        return rows

    @property
    def is_closed(self) -> bool:
        return self._libpq.status == BAD

    def send(self, statement: Statement) -> None:
        try:
            self.is_owed = True
            if type(statement) is Prepared:
                self._libpq.send_query_prepared(*statement)
            else:
                self._libpq.send_query(cast("str", statement).encode())
            if self._libpq.flush():
                raise SessionEnded("the PostgreSQL server does not read what it is sent")
        except psycopg.Error as error:
            raise self._ended(error) from error

    def fetch(self) -> Rows | None:
        try:
            self._libpq.flush()  # an interrupt may have kept something back
            self._libpq.consume_input()
            while not self._libpq.is_busy():
                result = self._libpq.get_result()
                if result is None:
                    results, self._results = self._results, []
                    return self._rows(results)
                self._results.append(result)
        except psycopg.Error as error:
            raise self._ended(error) from error
        return None

    def is_alive(self) -> bool:
        try:
            if self.poll(0):  # its end; or a notice, such as that of a changed setting
                self._libpq.consume_input()
        except psycopg.Error:
            return False
        return self._libpq.status == OK

    def cancel(self) -> None:
        try:
            known = getattr(psycopg, "capabilities", None)  # from psycopg 3.2 on
            if known is not None and known.has_cancel_safe():
                self._driver.cancel_safe(timeout=CANCEL_SECONDS)
            else:
                self._cancel_by_another()
        except psycopg.Error as error:
            raise no_connection(error) from error

    def _cancel_by_another(self) -> None:
        """Cancel the statement over another connection to the same server: the URL may name
        several. An older libpq's own way may wait without end, and hold up all threads of the
        process meanwhile."""
        info = self._driver.info
        here = {"host": info.host, "hostaddr": info.hostaddr, "port": info.port}
        this = f"(pid, backend_start) = ({self.identity}, '{self.started}')"
        cancel = f"select pg_cancel_backend(pid) from pg_stat_activity where {this}"  # noqa: S608
        with closing(psycopg.connect(**{**self._arguments(), **here})) as other:
            other.pgconn.send_query(cancel.encode())
            native.poll(other.pgconn.socket)(CANCEL_SECONDS * 1000)

    def close(self) -> None:
        with suppress(Exception):
            self._driver.close()

    def _rows(self, results: list[PGresult]) -> Rows:
        """The rows of the last statement that has any."""
        found = None
        for result in results:
            status = result.status
            if status == FATAL_ERROR:
                raise self._refusal(result)
            found = result if status == TUPLES_OK else found
        return [] if found is None else texts(found)

    def _refusal(self, result: PGresult) -> Refused | SessionEnded:
        code = _text(result.error_field(DiagnosticField.SQLSTATE)) or ""
        text = _text(result.error_field(DiagnosticField.MESSAGE_PRIMARY)) or "an error"
        if self._libpq.status != OK:
            self.said_end = bool(code)
            return SessionEnded(f"the PostgreSQL server has ended the session: {text}")
        return Refused(code, text, for_good=code.startswith(POSTGRESQL_REFUSED))

    def _ended(self, error: BaseException) -> SessionEnded:
        """The server may have sent a reason before it closed the connection: read it first."""
        with suppress(psycopg.Error):
            while (result := self._libpq.get_result()) is not None:
                self.said_end |= bool(result.error_field(DiagnosticField.SQLSTATE))
        return SessionEnded(f"the connection to the PostgreSQL server broke: {first_line(error)}")


def texts(result: PGresult) -> Rows:
    value, columns, rows = result.get_value, range(result.nfields), []
    for row in range(result.ntuples):
        texts: list[str | None] = []
        for column in columns:
            raw = value(row, column)
            texts.append(None if raw is None else raw.decode(errors="replace"))
        rows.append(texts)
    return rows


def no_connection(error: BaseException) -> BackendUnavailable:
    code = error.code if isinstance(error, Refused) else getattr(error, "sqlstate", None)
    refused = postgresql_refuses(code or "", error)
    return cannot_connect("PostgreSQL server", first_line(error), is_refusal=refused)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
