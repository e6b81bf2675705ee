"""How a session is asked for a lock: the statements of each server and mode.

The first value of each row that is read is what the server calls the session, and the second says
whether the session has the lock.
"""

# ruff: noqa: S608  what is put into a statement is a number or a hash of our own

from __future__ import annotations

from abc import ABC, abstractmethod
from hashlib import sha256

from lockkit.stores.sessions.connection import Connection, Rows

YES = frozenset({"t", "1"})


class Dialect(ABC):
    """Of one server and one mode. A ``key`` stands for a name and is safe in a statement."""

    @abstractmethod
    def key_of(self, name: str) -> str:
        """``name``: with the prefix. Two names have two keys."""

    @abstractmethod
    def take(self, key: str, silence: str) -> str:
        """Take the lock if it is free; else how many wait for it is the third value."""

    @abstractmethod
    def join(self, key: str) -> str:
        """Wait for the lock, after a take that got nothing."""

    @abstractmethod
    def check(self, key: str) -> str:
        """Whether the session has the lock."""

    @abstractmethod
    def free(self, key: str, *, held: bool) -> str:
        """Give back whatever the session has."""

    @abstractmethod
    def beat(self, silence: str) -> str:
        """Say something, so that the session is not silent."""

    @abstractmethod
    def silence(self, ttl: float, connection: Connection) -> str:
        """What has the server end the session when it is silent for so many seconds."""

    @abstractmethod
    def find(self, identity: str, started: str) -> str:
        """Whether there still is this other session."""

    @abstractmethod
    def end(self, identity: str, connection: Connection) -> str:
        """End it."""


def is_taken(rows: Rows) -> bool:
    return bool(rows) and rows[0][1] in YES


def waiting(rows: Rows) -> int:
    """In the reply to a take that got nothing."""
    return int(rows[0][2] or 0)


def digest(name: str) -> bytes:
    return sha256(name.encode()).digest()


def milliseconds(ttl: float) -> int:
    """As PostgreSQL's settings take them: for 24 days at most."""
    return min(max(round(ttl * 1000), 1), 2**31 - 1)


class Postgres(Dialect):
    """What its two modes have in common."""

    def find(self, identity: str, started: str) -> str:
        return (
            "select pg_backend_pid(), count(*) from pg_stat_activity "
            f"where pid = {identity} and backend_start = '{started}'"
        )

    def end(self, identity: str, connection: Connection) -> str:
        """Since version 14 it can wait for the end."""
        wait = ", 1000" if connection.ends_silence else ""
        return f"select pg_backend_pid(), pg_terminate_backend({identity}{wait})"


class PostgresAdvisory(Postgres):
    """pg_advisory_lock, of the first 64 bits of the name's SHA-256."""

    def key_of(self, name: str) -> str:
        return str(int.from_bytes(digest(name)[:8], "big", signed=True))

    def take(self, key: str, silence: str) -> str:
        high, low = int(key) >> 32 & 0xFFFFFFFF, int(key) & 0xFFFFFFFF
        return (
            "select pg_backend_pid(), taken, case when not taken then (select count(*) "
            "from pg_locks where locktype = 'advisory' and not granted "
            f"and classid = {high} and objid = {low} and objsubid = 1) end, {silence} "
            f"from (select pg_try_advisory_lock({key}) as taken offset 0) tried"
        )

    def join(self, key: str) -> str:
        return f"select pg_backend_pid(), 't', pg_advisory_lock({key})"

    def check(self, key: str) -> str:
        return (
            "select pg_backend_pid(), exists (select from pg_locks where locktype = 'advisory' "
            "and granted and pid = pg_backend_pid())"
        )

    def free(self, key: str, *, held: bool) -> str:
        return f"select pg_backend_pid(), pg_advisory_unlock({key}), pg_advisory_unlock_all()"

    def beat(self, silence: str) -> str:
        return f"select pg_backend_pid(), true, {silence}"

    def silence(self, ttl: float, connection: Connection) -> str:
        if not connection.ends_silence:
            return "null"
        return f"set_config('idle_session_timeout', '{milliseconds(ttl)}', false)"
