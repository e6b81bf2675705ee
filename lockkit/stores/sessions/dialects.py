"""How a session is asked for a lock: the statements of each server and mode.

In each row that is read, the first value is the server's number of the session, and the second says
whether the session has the lock.
"""

# ruff: noqa: S608  what is put into a statement is a number or a hash of our own

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from hashlib import sha256
from typing import ClassVar

from lockkit.model.errors import BackendUnavailable, LockError, MissingTable, StoreRefused
from lockkit.model.types import Finding
from lockkit.stores.sessions.connection import Connection, Refused, Rows, Statement

KEPT_DAYS = 1
"""Days after which a row that nobody has locked is deleted, when another row is made."""

PRUNED = 100
"""The most rows that are deleted at once."""

YES = frozenset({"t", "1"})

ENDLESS = Finding(
    "no-session-timeout",
    "the server does not end a session that falls silent: a holder that is stopped, or whose "
    "network is cut, keeps its locks",
    "use PostgreSQL 14 or later, or mode=row",
)


class Dialect(ABC):
    """Statements of one server and mode. A ``key`` stands for a name; it is safe in a statement."""

    me: ClassVar[str]
    """The expression for the server's number of the session."""

    create: ClassVar[str] = ""
    """Makes its table."""

    before_create: ClassVar[str] = ""
    """The first statements of the transaction that makes the table."""

    prepared: ClassVar[str] = ""
    """The statements that each session runs first."""

    begins: ClassVar[bool] = False
    """Whether a take begins a transaction. If the take got nothing, the transaction must be ended.
    Every server can end a session whose transaction is idle."""

    @staticmethod
    @abstractmethod
    def key_of(name: str) -> str:
        """The key of a name, which includes the prefix. It is a hash of 64 bits or more, so no two
        names that are in use have the same key in practice."""

    @abstractmethod
    def take(self, key: str, silence: str) -> Statement:
        """Take the lock if it is free. It usually is, so nothing more is asked. ``silence``: what
        ``silence()`` has returned."""

    @abstractmethod
    def waiting(self, key: str) -> Statement:
        """Ask how many wait for it: the second value."""

    def is_undecided(self, rows: Rows) -> bool:
        """Whether the take was disturbed, so that its reply says nothing."""
        return False

    def is_missing(self, rows: Rows) -> bool:
        """Whether what is to be locked has to be made first."""
        return False

    def make(self, key: str, name: str) -> str:
        """Make what is to be locked. ``name``: for people, in printable ASCII without quotes."""
        raise NotImplementedError

    def prune(self) -> str:
        """Delete some rows that are old and that nobody else has locked. One statement: if the
        process stopped between two, nothing would end the transaction."""
        raise NotImplementedError

    @abstractmethod
    def join(self, key: str) -> str:
        """Wait for the lock, after a take that got nothing."""

    @abstractmethod
    def check(self, key: str) -> str:
        """Ask whether the session has the lock."""

    @abstractmethod
    def free(self, key: str, *, held: bool) -> Statement:
        """Give back all that the session has. ``held``: whether the claim was granted."""

    @abstractmethod
    def beat(self, silence: str) -> Statement:
        """Say something, so that the session is not silent."""

    @abstractmethod
    def silence(self, ttl: float, connection: Connection) -> str:
        """The part of a statement that has the server end the session when it is silent for ``ttl``
        seconds; empty if it does so already, or cannot."""

    def failure(self, refusal: Refused) -> LockError:
        """The error to raise for a refusal of the server."""
        kind = StoreRefused if refusal.for_good else BackendUnavailable
        return kind(f"the database server refused a statement: {refusal} ({refusal.code})")

    @abstractmethod
    def find(self, identity: str, started: str) -> str:
        """Ask whether this other session still exists."""

    @abstractmethod
    def end(self, identity: str, connection: Connection) -> str:
        """End that session."""


class OfRows(Dialect):
    """One row for each name, which is locked as long as a transaction is open."""

    begins: ClassVar[bool] = True

    missing: ClassVar[str]
    """The server's code for a table that is not there."""

    @staticmethod
    @functools.lru_cache(1024)
    def key_of(name: str) -> str:
        return digest(name).hex()

    def join(self, key: str) -> str:
        return f"select {self.me}, 1 from lockkit_row where id = '{key}' for update"

    def is_missing(self, rows: Rows) -> bool:
        return not is_taken(rows) and rows[0][2] in {"f", "0"}

    def failure(self, refusal: Refused) -> LockError:
        if refusal.code != self.missing:
            return super().failure(refusal)
        return MissingTable(
            "the database has no table lockkit_row: call locks.store.create_table() once, in Flask "
            f"LockKit.create_tables(), or run {self.create}"
        )


def is_taken(rows: Rows) -> bool:
    return bool(rows) and rows[0][1] in YES


def digest(name: str) -> bytes:
    return sha256(name.encode()).digest()
