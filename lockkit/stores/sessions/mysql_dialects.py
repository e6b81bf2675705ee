"""How MySQL and MariaDB are asked for locks of sessions."""

# ruff: noqa: S608  what is put into a statement is a number or a hash of our own

from __future__ import annotations

import math
from functools import lru_cache
from typing import ClassVar

from lockkit.stores.sessions.connection import Connection, Rows
from lockkit.stores.sessions.dialects import KEPT_DAYS, PRUNED, Dialect, OfRows, digest

FOREVER = 365 * 24 * 3600
LONGEST = 64
"""Characters in a name of GET_LOCK, which ignores case."""


def of_sessions(what: str, where: str) -> str:
    """A query of the server's list of sessions. MySQL has two. That in information_schema cannot be
    read while the statement of any session has a character that utf8mb3 lacks; that in
    performance_schema is empty if the performance schema is off. MariaDB has only the first list,
    and skips the parts in ``/*!80022 … */``, which are for MySQL from version 8.0.22 on."""
    return (
        "/*!80022 if(@@performance_schema, "
        f"(select {what} from performance_schema.processlist where {where}), */"
        f"(select {what} from information_schema.processlist where {where})/*!80022 ) */"
    )


WRITABLE = "concat(@@global.read_only) in ('0', 'OFF')"
"""Asked each time, because a primary that becomes a replica goes on locking in open sessions."""


class MySQLDialect(Dialect):
    """The common part of both modes. ``silence`` is a statement to put before others, or empty."""

    me: ClassVar[str] = "connection_id()"

    def silence(self, ttl: float, connection: Connection) -> str:
        if connection.silence == ttl:
            return ""
        return f"set session wait_timeout = {max(math.ceil(ttl), 1)}; "

    def waiting(self, key: str) -> str:
        """Count the sessions of this database whose statement is exactly that of ``join``. Sessions
        that ask this question do not wait, although it contains that statement."""
        statement = self.join(key).replace("'", "''")
        waits = of_sessions("count(*)", f"db <=> database() and info = '{statement}'")
        return f"select connection_id(), {waits}"

    def find(self, identity: str, started: str) -> str:
        """``started``: where its client connected from. Over a unix socket that is the same for all
        sessions, so the session counts as gone: there, the server notices a client's end at once.
        """
        where = f"id = {identity} and host = '{started}'"
        there = of_sessions("count(*)", where) if ":" in started else "0"
        return f"select connection_id(), {there}"

    def end(self, identity: str, connection: Connection) -> str:
        return f"kill {identity}"


class GetLock(MySQLDialect):
    """GET_LOCK, of the first 244 bits of the name's SHA-256."""

    @staticmethod
    @lru_cache(1024)
    def key_of(name: str) -> str:
        return f"lk:{digest(name).hex()}"[:LONGEST]

    def take(self, key: str, silence: str) -> str:
        return f"{silence}select connection_id(), if({WRITABLE}, get_lock('{key}', 0), null)"

    def is_undecided(self, rows: Rows) -> bool:
        """GET_LOCK returns NULL if a KILL QUERY came, perhaps for the statement before it. On a
        server that is read only, it is not called, and the reply is NULL as well: a new connection
        is refused for that reason."""
        return rows[0][1] is None

    def join(self, key: str) -> str:
        return f"select connection_id(), get_lock('{key}', {FOREVER})"

    def check(self, key: str) -> str:
        return f"select connection_id(), is_used_lock('{key}') <=> connection_id()"

    def free(self, key: str, *, held: bool) -> str:
        return f"select connection_id(), release_lock('{key}'), release_all_locks()"

    def beat(self, silence: str) -> str:
        return f"{silence}select connection_id(), {WRITABLE}"


class MySQLRow(MySQLDialect, OfRows):
    """SELECT … FOR UPDATE, without autocommit: if an error has rolled back the transaction, the
    next statement begins another one, and ``check`` takes the row anew."""

    missing: ClassVar[str] = "1146"
    create: ClassVar[str] = (
        "CREATE TABLE IF NOT EXISTS lockkit_row ("
        "id char(64) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY, "
        "name varchar(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, "
        "made timestamp NOT NULL DEFAULT current_timestamp, KEY lockkit_row_made (made)"
        ") ENGINE=InnoDB"
    )

    def take(self, key: str, silence: str) -> str:
        row = f"from lockkit_row where id = '{key}'"
        return (
            f"{silence}set autocommit = 0; select connection_id(), "
            f"if({WRITABLE}, (select 1 {row} for update skip locked), -1), (select count(*) {row})"
        )

    def is_undecided(self, rows: Rows) -> bool:
        """The server is read only."""
        return rows[0][1] == "-1"

    def make(self, key: str, name: str) -> str:
        """Insert the row only if it is not there: even INSERT IGNORE would wait for a session that
        has locked it."""
        return (
            "rollback; set autocommit = 1; insert ignore into lockkit_row (id, name) "
            f"select '{key}', '{name}' from dual "
            f"where not exists (select 1 from lockkit_row where id = '{key}')"
        )

    def prune(self) -> str:
        """STRAIGHT_JOIN: in the other order it would wait for rows that are locked."""
        return (
            "delete old from (select id from lockkit_row where "
            f"made < now() - interval {KEPT_DAYS} day limit {PRUNED} for update skip locked) "
            "as found straight_join lockkit_row as old on old.id = found.id"
        )

    def check(self, key: str) -> str:
        row = f"select 1 from lockkit_row where id = '{key}' for update skip locked"
        return f"select connection_id(), if(@@autocommit, 0, ({row}))"

    def free(self, key: str, *, held: bool) -> str:
        return "select connection_id(), not @@autocommit; rollback; set autocommit = 1"

    def beat(self, silence: str) -> str:
        return f"{silence}select connection_id(), not @@autocommit and {WRITABLE}"
