"""What the SQL store needs of a database driver, and how connections are shared and kept.

A connector is tiny, so that sqlite3, SQLAlchemy and Django each need only a page of code.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from lockkit.model.errors import (
    BackendUnavailable,
    DamagedRecord,
    KindMismatch,
    LayoutMismatch,
    UnsupportedCapability,
    UpgradeRefused,
)
from lockkit.runtime import native, process
from lockkit.runtime.wires import TURN_SECONDS
from lockkit.stores.sql.dialect import Dialect
from lockkit.stores.sql.guard import limited

T = TypeVar("T")

Parameters = Mapping[str, str | int]


class Missed(Exception):
    """Somebody else was faster, or the store is busy: nothing was applied, so try again."""


class Stale(Missed):
    """The connection was lost before anything was applied: try again with a new one."""


class Result(NamedTuple):
    rows: Sequence[Sequence[Any]]
    changed: int  #: rows
    last: int = 0  #: the new fence, if no row tells it: MySQL's LAST_INSERT_ID, SQLite's clock


class Connection(ABC):
    """One open connection in autocommit mode, used by one thread at a time.

    Errors: Missed; BackendUnavailable when the statement was certainly not applied;
    OutcomeUnknown when it was sent and no reply came; ConfigurationError.
    """

    identity: object
    """What its connector's ``identity()`` was when it was opened."""

    dialect: Dialect
    """The statements of the database that it leads to."""

    descriptor: int | None = None
    """The file descriptor of its socket, if it has one that is known."""

    poll: native.Poll
    """Says whether the socket can be read from."""

    ends_in_time = False
    """Whether it gives up a hanging server by itself. Otherwise ``guard`` ends its steps."""

    ends_alone = False
    """Whether a forked child may close it without ending it in the parent."""

    brings_messages = False
    """Whether it can receive messages: see ``Connector.listen``."""

    @abstractmethod
    def execute(self, statement: str, parameters: Parameters) -> Result:
        """Run one statement with ``:named`` parameters."""

    def is_stale(self) -> bool:
        """Whether there is something to read although nothing was asked. Usually it is the end of
        the connection, so no statement is sent over it any more."""
        return self.descriptor is not None and bool(self.poll(0))

    def reads_from(self, descriptor: int | None) -> None:
        """Read from this socket."""
        self.descriptor = descriptor
        if descriptor is not None:
            self.poll = native.poll(descriptor)

    def within_time(self, step: Callable[[Connection], T]) -> T:
        """Do a step. If the server hangs, the step fails after STEP_SECONDS: see ``guard``."""
        if self.descriptor is None or self.ends_in_time:
            return step(self)
        return limited(self.descriptor, functools.partial(step, self))

    def messages(self, seconds: float) -> list[str]:
        """See ``Ear.messages``."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """Close it. Raises nothing."""


class Ear(Protocol):
    """Hears the messages of one channel, in one thread."""

    descriptor: int | None

    def messages(self, seconds: float) -> list[str]:
        """The messages that come; waits for them for ``seconds`` at most. Raises like
        ``Connection.execute``."""

    def close(self) -> None:
        """Close it. Raises nothing."""


class Connector(ABC):
    """Opens connections to one database."""

    @property
    @abstractmethod
    def dialect(self) -> Dialect: ...

    @abstractmethod
    def connect(self) -> Connection:
        """Open one. Raises like Connection."""

    def identity(self) -> object:
        """Identifies the database to which a connection opened now would lead. When it changes, a
        new connection is opened. Default: it never changes.

        Asked before every step, so it must cost microseconds and do no network I/O.
        """
        return None

    def listen(self, channel: str) -> Ear:
        """Hear the messages of this channel. Raises like Connection; and UnsupportedCapability if
        the driver brings no messages."""
        connection = self.connect()
        try:
            _subscribe(connection, connection.dialect.hear.replace(":channel", channel))
        except BaseException:  # nobody else would close it
            connection.close()
            raise
        return connection

    def tell(self, channel: str, token: str) -> None:
        """Send a message, for a database whose statements cannot. Raises nothing: such a message
        is only a hint. Default: sends none."""
        return

    def suspicion(self) -> str:
        """A guess why messages do not come, for the log."""
        return "Is there a transaction pooler in between? Give locks a URL that leads past it"

    def has_anything(self) -> bool:
        """False: nobody has ever locked there, and connecting would make the file."""
        return True

    def check_place(self) -> None:
        """Raise BackendUnavailable if nobody could make what ``has_anything`` lacks. Makes nothing.
        Default: nothing is looked at."""
        return

    def is_within_process(self) -> bool:
        """Whether no other process can lock there. Default: others can."""
        return False

    def is_relative(self) -> bool:
        """Whether another working directory leads to another database. Default: False."""
        return False

    def described(self) -> str:
        """Which database it is, for people, where LOCATION does not say it; without passwords."""
        return ""

    def forget(self) -> None:
        """Called when all connections are closed, to remove temporary files. Default: none."""
        return


def _subscribe(connection: Connection, statement: str) -> None:
    if not connection.brings_messages:
        raise UnsupportedCapability("its driver brings no messages: psycopg 3 does")
    connection.within_time(lambda c: c.execute(statement, {}))


_inherited: list[Connection] = []
"""Connections of the parent process. Closing them here would end them there."""


REFUSALS = KindMismatch, UpgradeRefused, DamagedRecord, LayoutMismatch
"""Errors of a step that are ours, about what the database has answered."""


class OneConnection:
    """One connection, opened when it is needed and used by one thread at a time.

    A step takes it out and puts it back, so that a connection whose step was interrupted is never
    used again.
    """

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._keeps = True
        self._reset()
        process.after_fork(self._in_child)
        process.around_fork(self._before_fork, self._in_parent)

    def _reset(self) -> None:
        # An RLock knows which thread has it, so ``use`` can release it only if this thread does.
        self._mutex = threading.RLock()
        self._connection: Connection | None = None

    def use(self, step: Callable[[Connection], T]) -> T:
        """Do one step. After any error but a plain Missed and REFUSALS the connection is closed.

        Threads take turns. One that gets no turn in TURN_SECONDS raises BackendUnavailable. A step
        in a signal handler that has interrupted another step has a connection of its own.
        """
        try:
            if not self._mutex.acquire(timeout=TURN_SECONDS):
                raise BackendUnavailable(f"the lock database did not answer for {TURN_SECONDS:g} s")
            connection, is_sound = self._taken(), False
            try:
                result = connection.within_time(step)
                is_sound = True
                return result
            except Missed as missed:
                is_sound = type(missed) is Missed
                raise
            except REFUSALS:
                is_sound = True
                raise
            finally:  # if it is not sound, a reply may still be on its way, as after an interrupt
                if is_sound and self._keeps and self._connection is None:
                    self._connection = connection
                else:
                    connection.close()
        finally:  # only if this thread has it: an interrupt may have come first
            try:  # noqa: SIM105  it must be the first thing that is called here
                self._mutex.release()
            except RuntimeError:
                pass

    def close(self) -> None:
        """Close the connection. Each later step, such as a release, opens one of its own."""
        with self._mutex:
            self._keeps = False
            self._close()

    def _taken(self) -> Connection:
        """Take it out before checking it, because a signal handler may take a connection, too."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if connection.identity == self._connector.identity() and not connection.is_stale():
                return connection
            connection.close()
        return self._connector.connect()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _before_fork(self) -> None:
        """Before a fork: wait until no thread is in a step, for FORK_WAIT s at most, and close the
        connection. If the wait was in vain, the connection stays open.

        SQLite notes in memory which file locks its process has. A child inherits the notes but not
        the locks: if it opens the same file, it believes that it has them.
        """
        if self._mutex.acquire(timeout=FORK_WAIT):
            self._close()

    def _in_parent(self) -> None:
        with suppress(RuntimeError):  # ``_before_fork`` could not acquire it
            self._mutex.release()

    def _in_child(self) -> None:
        connection = self._connection
        self._reset()
        if connection is not None and connection.ends_alone:
            connection.close()
        elif connection is not None:
            _inherited.append(connection)


FORK_WAIT = 5.0
"""Seconds a fork waits for a step of another thread; only a defect would make it wait so long."""
