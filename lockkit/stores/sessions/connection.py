"""A connection to a database server, and how it can end."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar, NamedTuple

from lockkit.model.errors import ConfigurationError, OutcomeUnknown
from lockkit.runtime import native, process
from lockkit.stores.servers import shut_down

CANCELLED = frozenset({"57014", "1317"})
"""The codes of a cancelled statement: PostgreSQL's; MySQL's and MariaDB's."""

DEADLOCKS = frozenset({"40P01", "1213"})
"""The codes of a statement that was undone so that a deadlock ends."""

Rows = Sequence[Sequence[str | None]]
"""The rows of a reply."""


class Prepared(NamedTuple):
    """A statement that the session knows by its name."""

    name: bytes
    values: list[bytes]


Statement = str | Prepared


class SessionEnded(OutcomeUnknown):
    """The session is over for this process, so its lock can no longer be relied on. At the server
    it may live on for a while: see ``pool.Remains``."""

    was_sent = False
    """Whether the statement was sent, so that the server may have applied it."""


class Refused(Exception):
    """The server's answer to a statement is an error; the session goes on."""

    def __init__(self, code: str, text: str, *, for_good: bool = False) -> None:
        """``for_good``: it will refuse the same statement again."""
        super().__init__(text)
        self.code = code
        self.for_good = for_good


class Connection(ABC):
    """An open connection of a driver, in autocommit mode."""

    descriptor: int
    poll: native.Poll
    """Says whether it can be read from. Called only by the step whose turn it is."""

    identity: str
    """The server's number of the session. The first value of each reply repeats it."""

    started: str
    """Distinguishes it from another session with the same identity."""

    reads_block: ClassVar[bool] = False
    """Whether ``fetch`` may wait for the rest of what can be read."""

    is_pooled: bool = False
    """Whether a pooler may give its session to somebody else as soon as this is closed."""

    ends_silence: bool
    """Whether the server can end it when it is silent."""

    said_end: bool = False
    """Whether the server has said that it has ended the session."""

    silence: float | None = None
    """Seconds of silence after which the server ends it, as it was last told; None: not known."""

    is_owed: bool = False
    """Whether a reply was not taken yet. Set by ``send``, just before it sends."""

    _generation: int | None = None  #: of the process that reads from it

    def __del__(self) -> None:
        """Close it, but not in a forked child: the driver's goodbye would end the session of the
        parent."""
        if self._generation is not None and process.is_generation(self._generation):
            self.close()

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether it was closed from this end."""

    def reads_from(self, descriptor: int) -> None:
        """Read from this socket."""
        self.descriptor, self.poll = descriptor, native.poll(descriptor)
        self._file = os.fstat(descriptor)
        self._generation = process.generation()
        process.after_fork(self._let_go)

    def _let_go(self) -> None:
        """Called in a forked child, which neither uses nor closes it. The server must notice when
        the parent dies, so the null device replaces the socket here; unless the descriptor is of
        another file by now, as in the child of a child that had closed all files."""
        with suppress(OSError), open(os.devnull, "rb") as nothing:
            if not self.is_closed and os.path.samestat(self._file, os.fstat(self.descriptor)):
                os.dup2(nothing.fileno(), self.descriptor, inheritable=False)

    def is_same(self, other: Connection) -> bool:
        """Whether both are one session of the server."""
        return (self.identity, self.started) == (other.identity, other.started)

    @abstractmethod
    def send(self, statement: Statement) -> None:
        """Send it, and do not wait. Raises SessionEnded, also if it is closed."""

    @abstractmethod
    def fetch(self) -> Rows | None:
        """The rows of the last of the statements sent. None: the reply is not complete.

        Raises Refused, SessionEnded. Does not wait, except as ``reads_block`` says.
        """

    @abstractmethod
    def is_alive(self) -> bool:
        """Whether the server has kept it open, as far as is known here; asks nothing."""

    @abstractmethod
    def cancel(self) -> None:
        """Have the server give up the statement under way. Blocks for a few seconds at most.
        Raises a LockError or an OSError."""

    def shut_down(self) -> None:
        """Make the step that reads from it fail, unless it is closed. That step closes it."""
        shut_down(self.descriptor, lambda: self.is_closed)

    @abstractmethod
    def close(self) -> None:
        """Raises nothing."""


def pooled() -> ConfigurationError:
    return ConfigurationError(
        "there is a pooler, such as PgBouncer, between lockkit and the database server. In "
        "transaction mode, or statement mode, it would give each statement to another session, and "
        "the lock would stay with the one that took it. Point the URL at the server itself; or "
        "leave mode out of the URL, for a table. If the pooler gives each client a session of its "
        "own (pool_mode = session), set OPTIONS {'session_pooler': True}"
    )
