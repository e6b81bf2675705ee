"""How PostgreSQL is asked for locks of sessions."""

# ruff: noqa: S608  what is put into a statement is a number or a hash of our own

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from lockkit.stores.sessions.connection import Connection, Prepared, Statement
from lockkit.stores.sessions.dialects import KEPT_DAYS, PRUNED, Dialect, OfRows, digest

SILENCE = "case when {0} <> '' then set_config('idle_session_timeout', {0}, false) end"
"""Only done for a text that is not empty: setting it takes longer than taking a lock, and versions
before 14 have no such setting."""


class PostgresDialect(Dialect):
    """The common part of both modes of PostgreSQL."""

    me: ClassVar[str] = "pg_backend_pid()"

    def find(self, identity: str, started: str) -> str:
        return (
            "select pg_backend_pid(), count(*) from pg_stat_activity "
            f"where pid = {identity} and backend_start = '{started}'"
        )

    def end(self, identity: str, connection: Connection) -> str:
        """Since version 14, the server can wait until the session has ended: for a second here."""
        wait = ", 1000" if connection.ends_silence else ""
        return f"select pg_backend_pid(), pg_terminate_backend({identity}{wait})"


class PostgresAdvisory(PostgresDialect):
    """pg_advisory_lock, of the first 64 bits of the name's SHA-256. Planning the statements takes
    longer than running them, so each session prepares them once. ``silence`` is a number of
    milliseconds, or empty."""

    prepared: ClassVar[str] = (
        "deallocate all; "  # left by the former client, if the session is a pooler's
        "prepare lockkit_take(bigint, text) as "
        f"select pg_backend_pid(), pg_try_advisory_lock($1), {SILENCE.format('$2')}; "
        "prepare lockkit_free(bigint) as "
        "select pg_backend_pid(), pg_advisory_unlock($1), pg_advisory_unlock_all(); "
        f"prepare lockkit_beat(text) as select pg_backend_pid(), true, {SILENCE.format('$1')}"
    )

    @staticmethod
    @lru_cache(1024)
    def key_of(name: str) -> str:
        return str(int.from_bytes(digest(name)[:8], "big", signed=True))

    def take(self, key: str, silence: str) -> Statement:
        return Prepared(b"lockkit_take", [key.encode(), silence.encode()])

    def waiting(self, key: str) -> str:
        return (
            "select pg_backend_pid(), count(*) from pg_locks where locktype = 'advisory' and not "
            f"granted and (classid::bigint << 32 | objid::bigint) = {key} and objsubid = 1 and "
            "database = (select oid from pg_database where datname = current_database())"
        )

    def join(self, key: str) -> str:
        return f"select pg_backend_pid(), 't', pg_advisory_lock({key})"

    def check(self, key: str) -> str:
        return (
            "select pg_backend_pid(), exists (select from pg_locks where locktype = 'advisory' "
            "and granted and pid = pg_backend_pid())"
        )

    def free(self, key: str, *, held: bool) -> Statement:
        return Prepared(b"lockkit_free", [key.encode()])

    def beat(self, silence: str) -> Statement:
        return Prepared(b"lockkit_beat", [silence.encode()])

    def silence(self, ttl: float, connection: Connection) -> str:
        if connection.silence == ttl or not connection.ends_silence:
            return ""
        return str(milliseconds(ttl))


class PostgresRow(PostgresDialect, OfRows):
    """SELECT … FOR UPDATE. A ROLLBACK gives the row back, and writes nothing. ``silence`` is an
    expression."""

    missing: ClassVar[str] = "42P01"
    before_create: ClassVar[str] = (
        "SET LOCAL synchronous_commit = on; "  # after it, no crash of the server undoes that
        # IF NOT EXISTS does not see what another process is about to make, and fails then.
        "DO $$ BEGIN PERFORM pg_advisory_xact_lock(hashtext('lockkit_row'), 0); END $$; "
    )
    create: ClassVar[str] = (
        "CREATE TABLE IF NOT EXISTS lockkit_row (id varchar(64) PRIMARY KEY, "
        "name varchar(1024) NOT NULL, made timestamptz NOT NULL DEFAULT now()); "
        "CREATE INDEX IF NOT EXISTS lockkit_row_made ON lockkit_row (made)"
    )

    def take(self, key: str, silence: str) -> str:
        row = f"from lockkit_row where id = '{key}'"
        return (
            "begin isolation level read committed; "
            f"select pg_backend_pid(), (select true {row} for update skip locked), "
            f"exists (select {row}), {silence}"
        )

    def waiting(self, key: str) -> str:
        return (
            "select pg_backend_pid(), count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            f" and datname = current_database() and query like '%{key}%' and pid in "
            "(select pid from pg_locks where relation = 'lockkit_row'::regclass)"
        )

    def make(self, key: str, name: str) -> str:
        return (
            f"rollback; insert into lockkit_row (id, name) values ('{key}', '{name}') "
            "on conflict do nothing"
        )

    def prune(self) -> str:
        return (
            "delete from lockkit_row where id = any(array(select id from lockkit_row where "
            f"made < now() - interval '{KEPT_DAYS} day' limit {PRUNED} for update skip locked))"
        )

    def check(self, key: str) -> str:
        return (
            f"select pg_backend_pid(), true from lockkit_row where id = '{key}' "
            "and now() < statement_timestamp() for update skip locked"
        )

    def free(self, key: str, *, held: bool) -> str:
        """The row was held if the transaction began before this statement."""
        ours = "select pg_backend_pid(), now() < statement_timestamp()"
        return f"{ours}; rollback" if held else f"rollback; {ours}"

    def beat(self, silence: str) -> str:
        return f"select pg_backend_pid(), now() < statement_timestamp(), {silence}"

    def silence(self, ttl: float, connection: Connection) -> str:
        """The setting is for this transaction only: its ROLLBACK would undo any other as well."""
        return f"set_config('idle_in_transaction_session_timeout', '{milliseconds(ttl)}', true)"


def milliseconds(ttl: float) -> int:
    """As PostgreSQL's settings take them."""
    return max(round(ttl * 1000), 1)
