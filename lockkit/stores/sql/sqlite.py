"""``sqlite:///path``: locks in an SQLite file of their own, for all processes of one host.

A file of its own, because a write transaction on the application's database would block renewals.
Nothing but the standard library is needed.

The path is relative with three slashes and absolute with four, as in SQLAlchemy; a relative one is
resolved once, when the store is made.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from lockkit.model.checks import check_flag, check_ttl, wrong
from lockkit.model.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    LayoutMismatch,
    StoreRefused,
)
from lockkit.model.settings import AliasSettings, state_directory
from lockkit.stores.contract import UNUSED, HostLocal, reject_unknown_options
from lockkit.stores.sql.connector import Connection, Connector, Missed, Parameters, Result
from lockkit.stores.sql.dialect import Dialect, load_dialect
from lockkit.stores.sql.files import check_mounts, path_of_url, why_none_opens
from lockkit.stores.sql.hinted import HintedTable
from lockkit.stores.sql.hints import HintSocket, send
from lockkit.stores.sql.store import BUSY_SECONDS, SQLStore

APPLICATION_ID: Final = 0x4C4B4954
"""'LKIT': marks a file as lockkit's, in its header."""

LAYOUT: Final = 1
"""The version of the table, also in the header."""

OPTIONS = ("timeout", "take_over_dead")
TAKES_OVER: Final = "OPTIONS['take_over_dead']"


class SQLiteStore(HintedTable, HostLocal):
    """Locks in an SQLite file. Limit: its clock is the host's wall clock, so setting that forward
    ends leases early.

    OPTIONS: ``timeout``, seconds a step waits for other writers; ``take_over_dead`` (True), whether
    the leases of a process that is known to be gone are free at once, and not after their TTL.
    """

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> SQLStore:
        reject_unknown_options(settings, OPTIONS)
        path = path_of_url(settings)
        connector = SQLiteConnector(os.path.realpath(path), is_relative=not os.path.isabs(path))
        return table_over(cls, connector, settings)

    def is_within_process(self) -> bool:
        return self.connector.is_within_process()

    def is_relative(self) -> bool:
        return self.connector.is_relative()


def table_over(kind: type[SQLStore], connector: Connector, settings: AliasSettings) -> SQLStore:
    """The store of an alias. Raises ConfigurationError for wrong OPTIONS."""
    options, is_local = settings.options, issubclass(kind, HostLocal)
    takes_over = check_flag(TAKES_OVER, options.get("take_over_dead", is_local))
    if takes_over and not is_local:
        raise wrong(TAKES_OVER, True, "False: a table on a server has leases of other hosts")
    return kind(
        connector,
        key_prefix=settings.key_prefix,
        busy_seconds=check_ttl("OPTIONS['timeout']", options.get("timeout", BUSY_SECONDS)),
        takes_over=takes_over,
    )


class SQLiteConnector(Connector):
    """Connections of the sqlite3 module to one file, which is made when it is needed.

    A file that was deleted or replaced is noticed at the next step: SQLite itself would go on
    with the deleted one, beside processes that have the new one. Until that step, others cannot
    open the new one if the ``-wal`` and ``-shm`` of the deleted one are still there.
    """

    def __init__(self, path: str, beside: str | None = None, *, is_relative: bool = False) -> None:
        """``path`` is absolute, so that a later change of the working directory does not matter.
        ``beside``: the database of the application whose locks are in this file. ``is_relative``:
        whether the settings named it by a relative path."""
        self._path = path
        self._beside = beside or path
        self._is_relative = is_relative
        self._ours: object = None  #: the identity of the file that was found to have a table

    @property
    def dialect(self) -> Dialect:
        return load_dialect("sqlite")

    def identity(self) -> object:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def is_relative(self) -> bool:
        return self._is_relative

    def described(self) -> str:
        return self._path if self.has_anything() else f"{self._path}{UNUSED}"

    def has_anything(self) -> bool:
        """Whether the file has a table. Nothing is written, and only SQLite opens the file: if
        lockkit closed it, the locks that SQLite has on it in this process would be gone."""
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # such as a directory that we may not search: ``connect`` reports it
            return True
        if self._ours != (identity := (found.st_dev, found.st_ino)):
            if not found.st_size or self._is_blank():
                return False
            self._ours = identity
        return True

    def check_place(self) -> None:
        directory = os.path.dirname(self._path)
        if not os.path.isdir(directory) and directory != state_directory():
            raise BackendUnavailable(
                f"the lock database {self._path} cannot be made: there is no directory {directory}"
            )

    def _is_blank(self) -> bool:
        """Whether it is an SQLite file with nothing in it. ``connect`` reports unreadable files."""
        try:
            with closing(
                sqlite3.connect(f"{Path(self._path).as_uri()}?mode=ro", uri=True)
            ) as found:
                return not found.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        except sqlite3.Error:
            return False

    def connect(self) -> SQLiteConnection:
        check_mounts(self._path, self._beside)
        try:
            self._make_file()
        except PermissionError as error:
            why = _REASONS[sqlite3.SQLITE_CANTOPEN]
            raise StoreRefused(f"the lock database {self._path} {why}") from error
        except OSError as error:
            raise BackendUnavailable(
                f"the lock database {self._path} cannot be made: {error.strerror}"
            ) from error
        connection = SQLiteConnection(self._path, self.identity())
        try:
            connection.prepare()
        except BaseException:  # nobody else would close it
            connection.close()
            raise
        return connection

    def listen(self, channel: str) -> HintSocket:
        return HintSocket(self._path, channel)

    def tell(self, channel: str, token: str) -> None:
        send(self._path, channel, token)

    def suspicion(self) -> str:
        return "Is its directory on a file system without sockets?"

    def _make_file(self) -> None:
        """Make the file, readable by its owner only, as it shows what users are doing.

        Only if it is not there: opening and closing an existing one would drop the locks that
        SQLite has on it in this process.
        """
        if os.path.exists(self._path):
            return
        directory = os.path.dirname(self._path)
        if directory == state_directory():
            os.makedirs(directory, mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


class SQLiteConnection(Connection):
    """One connection. It does not wait for other writers: the store tries again, after shorter
    pauses than SQLite's."""

    ends_alone = True  # and it must end: see ``OneConnection._before_fork``, which C does not call

    def __init__(self, path: str, identity: object) -> None:
        self.identity = identity
        self.dialect = load_dialect("sqlite")
        self._path = path
        try:
            self._connection = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
            self._connection.text_factory = _text
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def prepare(self) -> None:
        """Check the file, or make its table. Switch write-ahead logging on, so that readers and
        writers do not block one another."""
        self._check_application()
        self._pragma("journal_mode=WAL")
        self._pragma("synchronous=NORMAL")  # a crash of the host ends all holders, too

    def execute(self, statement: str, parameters: Parameters) -> Result:
        moment = time.time_ns() // 1000
        try:
            cursor = self._connection.execute(statement, {**parameters, "clock": moment})
            return Result(cursor.fetchall(), cursor.rowcount, moment)
        except sqlite3.Error as error:
            raise self._failure(error) from error
        except UnicodeEncodeError as error:  # an id that somebody else has written
            raise StoreRefused(f"{self._path} has a row whose id is not UTF-8") from error

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()

    def _check_application(self) -> None:
        mark = self._pragma("application_id"), self._pragma("user_version")
        if mark == (APPLICATION_ID, LAYOUT):
            return
        if mark[0] == APPLICATION_ID:
            raise LayoutMismatch(
                f"{self._path} has layout {mark[1]} and this lockkit has {LAYOUT}: run one release "
                "of lockkit in all processes, or delete the file while nothing uses it"
            )
        self.execute("BEGIN IMMEDIATE", {})
        self._initialize()
        self.execute("COMMIT", {})

    def _initialize(self) -> None:
        """Make the table, unless another process did just now or the file is not ours."""
        if self._pragma("application_id") == APPLICATION_ID:
            return
        if self.execute("SELECT count(*) FROM sqlite_master", {}).rows[0][0]:
            raise ConfigurationError(
                f"{self._path} is the database of something else; "
                "give lockkit a file of its own, beside it"
            )
        self.execute(self.dialect.create, {})
        self._pragma(f"application_id={APPLICATION_ID}")
        self._pragma(f"user_version={LAYOUT}")

    def _pragma(self, text: str) -> Any:
        rows = self.execute(f"PRAGMA {text}", {}).rows
        return rows[0][0] if rows else None

    def _failure(self, error: sqlite3.Error) -> Missed | BackendError:
        """SQLite undoes a statement that fails, so nothing of it was applied."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
            return Missed()
        if code == sqlite3.SQLITE_CANTOPEN and (why := why_none_opens()):
            return BackendUnavailable(f"the lock database {self._path} cannot be opened: {why}")
        kind = StoreRefused if code in _REFUSALS else BackendUnavailable
        return kind(f"the lock database {self._path} {_REASONS.get(code, str(error))}")


_text = functools.partial(str, encoding="utf-8", errors="surrogateescape")
"""Bytes that are not text damage only their own row, instead of failing the whole statement."""


_REASONS = {
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: is it this user's, and its directory writable?",
    sqlite3.SQLITE_READONLY: "or its directory is not writable by this process",
    sqlite3.SQLITE_PERM: "may not be accessed by this process",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database",
    sqlite3.SQLITE_CORRUPT: "is damaged; delete it while nothing uses it",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written",
}

_REFUSALS = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOTADB}
)
"""Codes of errors that do not pass by themselves."""
