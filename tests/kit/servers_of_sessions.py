"""The servers and modes of session locks, and how a test sees and ends sessions there."""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple, Self

import psycopg
import pymysql
import pytest
from databases import administrator, empty_database

import lockkit
from lockkit.stores.sessions.dialects import Dialect
from lockkit.stores.sessions.mysql_dialects import FOREVER, GetLock, MySQLRow
from lockkit.stores.sessions.postgres_dialects import PostgresAdvisory, PostgresRow
from lockkit.testing.conformance.base import eventually


class SessionServer:
    """A database of its own on a server."""

    name: str
    takes: bytes  #: a part of what is sent to take a lock
    finds: bytes  #: and to look whether there is another session
    begins: bytes  #: and first in a session
    limit = 0.2  #: seconds, of statements
    hears_of_dead_waiters = True
    admin: Any  #: a connection that is kept: tests look at sessions again and again

    def __init__(self, server: Any, url: str) -> None:
        self.server = server
        self.bare = url

    @property
    def url(self) -> str:
        return f"{self.bare}?mode={self.name.rpartition(' ')[2]}"

    @property
    def port(self) -> int:
        return int(self.server.port)

    @property
    def database(self) -> str:
        return self.bare.rpartition("/")[2]

    def through(self, port: int) -> str:
        return self.url.replace(f":{self.port}", f":{port}")

    def of_database(self, name: str) -> str:
        return self.url.replace(self.database, name)

    def sessions(self) -> int:
        return len(self.pids())

    def pids(self) -> list[int]:
        raise NotImplementedError

    def limit_idling(self) -> None:
        """A transaction that is idle for a second is ended, in sessions that begin now."""
        raise NotImplementedError

    def outlast_a_transaction(self) -> None:
        """Leave a transaction idle until the server has ended it."""
        raise NotImplementedError

    def undo_two_inserts(self) -> None:
        """The next two inserts into the table, or the next of each session, end a deadlock."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the server's settings."""

    def _numbers(self, sql: str) -> list[int]:
        with self.admin.cursor() as cursor:
            cursor.execute(sql)
            return [number for (number,) in cursor]


class Postgres(SessionServer):
    finds = b"backend_start = '"
    begins = b"pg_is_in_recovery"
    waiting = "wait_event_type = 'Lock'"

    def pids(self, where: str = "true") -> list[int]:
        return self._numbers(
            f"select pid from pg_stat_activity where datname = '{self.database}' and {where}"
        )

    def waiters(self) -> list[int]:
        return self.pids(self.waiting)

    def cancel(self, *pids: int) -> None:
        for pid in pids:
            self._numbers(f"select pg_cancel_backend({pid})::int")

    def kill(self, *pids: int) -> None:
        for pid in pids:
            self._numbers(f"select pg_terminate_backend({pid}, 5000)::int")

    def limit_statements(self) -> None:
        for setting in ("statement_timeout", "lock_timeout"):
            milliseconds = round(self.limit * 1000)
            self.server.execute(f"alter database {self.database} set {setting} = {milliseconds}")

    def limit_idling(self) -> None:
        known = "'idle_in_transaction_session_timeout', 'transaction_timeout'"  # since 17
        names = self.execute(f"select name from pg_settings where name in ({known})")
        for setting in names.split():
            self.server.execute(f"alter database {self.database} set {setting} = '1s'")

    def outlast_a_transaction(self) -> None:
        with psycopg.connect(self.bare) as connection:
            connection.execute("select id from lockkit_row for update skip locked")
            eventually(lambda: connection.info.backend_pid not in self.pids())
            connection.close()  # else it would commit

    def undo_two_inserts(self) -> None:
        self.execute("create sequence inserts")
        self.execute(
            "create function undo() returns trigger language plpgsql as $$ begin "
            "if nextval('inserts') <= 2 then raise exception using errcode = '40P01'; end if; "
            "return new; end $$"
        )
        self.execute(
            "create trigger undo before insert on lockkit_row for each row execute function undo()"
        )

    def silence(self, ttl: float) -> float:
        return ttl

    def execute(self, sql: str) -> str:
        """In this database."""
        return str(self.server.execute(sql, self.bare))

    @contextmanager
    def deleting(self) -> Iterator[None]:
        """A transaction deletes all rows, and is committed at the end of the block."""
        with psycopg.connect(self.bare) as connection:
            connection.execute("delete from lockkit_row")
            yield

    def names(self) -> list[str]:
        return self.execute("select name from lockkit_row order by name").split()

    def make_old(self) -> None:
        """Make all rows old that are not locked."""
        self.execute(
            "update lockkit_row set made = now() - interval '2 days' "
            "where id in (select id from lockkit_row for update skip locked)"
        )

    def locked(self, names: list[str]) -> list[int]:
        """The sessions that have these names."""
        return self.holders() if names else []


class Advisory(Postgres):
    name = "PostgreSQL advisory"
    takes = b"lockkit_take"

    def dialect(self) -> Dialect:
        return PostgresAdvisory()

    def holders(self) -> list[int]:
        return self.pids(
            "pid in (select pid from pg_locks where locktype = 'advisory' and granted)"
        )

    def is_key(self, key: str) -> bool:
        return -(2**63) <= int(key) < 2**63


class Row(Postgres):
    name = "PostgreSQL row"
    takes = b"skip locked"

    def dialect(self) -> Dialect:
        return PostgresRow()

    def holders(self) -> list[int]:
        return self.pids("state = 'idle in transaction'")

    def is_key(self, key: str) -> bool:
        return len(key) == 64 and key.isalnum()


class MariaDB(SessionServer):
    finds = b"and host = '"
    begins = b"select connection_id(), "
    idling = (
        "idle_transaction_timeout",
        "idle_readonly_transaction_timeout",
        "idle_write_transaction_timeout",
    )

    def of_database(self, name: str) -> str:
        return self.url.replace(self.database, name)

    def pids(self, where: str = "true") -> list[int]:
        return self._numbers(
            f"select id from information_schema.processlist where db = '{self.database}' "
            f"and {where}"
        )

    def waiters(self) -> list[int]:
        return self.pids(self.waiting)

    def holders(self) -> list[int]:
        """The holders, if no other session is idle."""
        return self.pids("command = 'Sleep'")

    def cancel(self, *pids: int) -> None:
        for pid in pids:
            self.server.execute(f"kill query {pid}")

    def kill(self, *pids: int) -> None:
        for pid in pids:
            self.server.execute(f"kill {pid}")
        eventually(lambda: not {*pids} & {*self.pids()})

    def limit_statements(self) -> None:
        for setting in (f"max_statement_time = {self.limit}", "innodb_lock_wait_timeout = 1"):
            self.server.execute(f"set global {setting}")

    def limit_idling(self) -> None:
        for setting in self.idling:
            self.server.execute(f"set global {setting} = 1")

    def outlast_a_transaction(self) -> None:
        with suppress(pymysql.MySQLError), self._connected() as cursor:  # nothing to commit
            cursor.execute("select id from lockkit_row for update skip locked")
            eventually(lambda: cursor.connection.thread_id() not in self.pids())

    def undo_two_inserts(self) -> None:
        with self._connected() as cursor:
            cursor.execute(
                "create trigger undo_two before insert on lockkit_row for each row begin "
                "set @tried = coalesce(@tried, 0) + 1; if @tried <= 2 then "
                "signal sqlstate '40001' set mysql_errno = 1213; end if; end"
            )

    def restore(self) -> None:
        for setting in ("max_statement_time", "innodb_lock_wait_timeout", *self.idling):
            self.server.execute(f"set global {setting} = default")

    def silence(self, ttl: float) -> float:
        return math.ceil(ttl)

    def execute(self, sql: str) -> str:
        return str(self.server.execute(f"use {self.database}; {sql}"))

    def names(self) -> list[str]:
        return self.execute("select name from lockkit_row order by name").split()

    def make_old(self) -> None:
        with self._connected() as cursor:
            cursor.execute("select id from lockkit_row for update skip locked")
            for (key,) in cursor.fetchall():
                old = "made = now() - interval 2 day"
                cursor.execute(f"update lockkit_row set {old} where id = %s", (key,))

    @contextmanager
    def deleting(self) -> Iterator[None]:
        with self._connected() as cursor:
            cursor.execute("delete from lockkit_row")
            yield

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A transaction, committed at the end."""
        arguments = {"host": "127.0.0.1", "port": self.port, "user": "root"}
        with pymysql.connect(**arguments, database=self.database) as connection:
            with connection.cursor() as cursor:
                yield cursor
            connection.commit()


class GetLocks(MariaDB):
    name = "MariaDB advisory"
    takes = b"get_lock("
    waiting = f"command = 'Query' and info like '%get_lock(%, {FOREVER})'"

    def locked(self, names: list[str]) -> list[int]:
        """The sessions that have these names."""
        keys = (self.dialect().key_of(f"{self.database}\0lockkit\0{name}") for name in names)
        asked = (f"is_used_lock('{key}')" for key in keys)
        with self.admin.cursor() as cursor:
            cursor.execute(f"select {', '.join(asked)}")
            return [pid for pid in cursor.fetchone() if pid is not None]

    def dialect(self) -> Dialect:
        return GetLock()

    def is_key(self, key: str) -> bool:
        return len(key) <= 64 and key == key.lower()


class MariaDBRow(MariaDB):
    name = "MariaDB row"
    takes = b"skip locked"
    waiting = "command = 'Query' and info like '% for update'"
    hears_of_dead_waiters = False

    def dialect(self) -> Dialect:
        return MySQLRow()

    def locked(self, _: list[str]) -> list[int]:
        """The sessions that have any name: an idle one has no transaction. InnoDB shows its list of
        0.1 s ago to those who ask more often."""
        time.sleep(0.11)
        running = "select trx_mysql_thread_id from information_schema.innodb_trx"
        having = self._numbers(f"{running} where trx_rows_locked > 0")
        return sorted({*having} & {*self.pids()})

    def is_key(self, key: str) -> bool:
        return len(key) == 64 and key.isalnum()


class Kind(NamedTuple):
    """A parameter of tests."""

    name: str
    server: str  #: a fixture
    made: type[SessionServer]

    @contextmanager
    def of(self, request: pytest.FixtureRequest) -> Iterator[SessionServer]:
        server = request.getfixturevalue(self.server)
        with empty_database(server) as url, closing(administrator(server)) as admin:
            found = self.made(server, url)
            found.admin = admin
            with_table(found.url)
            eventually(lambda: not found.pids())
            try:
                yield found
            finally:
                found.restore()


ADVISORY = Kind(Advisory.name, "postgres_server", Advisory)
ROW = Kind(Row.name, "postgres_server", Row)
GET_LOCK = Kind(GetLocks.name, "mariadb_server", GetLocks)
MARIADB_ROW = Kind(MariaDBRow.name, "mariadb_server", MariaDBRow)
SERVERS = [ADVISORY, ROW, GET_LOCK, MARIADB_ROW]
ROWS = [ROW, MARIADB_ROW]


def with_table(url: str) -> None:
    """Make the table of ``mode=row``."""
    if "mode=row" in url:
        with lockkit.connect(url) as locks:
            locks.store.create_table()


class SilentNetwork:
    """A proxy whose connections can fall silent, while new ones are served."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._silent: set[socket.socket] = set()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._forward, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._thread.join()
        for each in [self._listener, *self._pairs]:
            each.close()

    def silence(self) -> None:
        """Nothing passes over the connections there are; nobody is told."""
        self._silent.update(self._pairs)

    def _forward(self) -> None:
        while not self._stopped:
            open_ones = [s for s in self._pairs if s not in self._silent]
            for ready in select.select([self._listener, *open_ones], [], [], 0.05)[0]:
                if ready is self._listener:
                    client = self._listener.accept()[0]
                    store = socket.create_connection(("127.0.0.1", self._target))
                    self._pairs |= {client: store, store: client}
                elif (
                    ready in self._pairs and ready not in self._silent
                ):  # the other end may be gone
                    self._pass_on(ready)

    def _pass_on(self, source: socket.socket) -> None:
        sink = self._pairs[source]
        data = b""
        with suppress(OSError):
            data = source.recv(65536)
            sink.sendall(data)
        if not data:
            for each in (source, sink):
                self._pairs.pop(each, None)
                each.close()
