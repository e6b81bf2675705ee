"""The locks of an application whose own database is SQLite: in a file beside it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path
from urllib.parse import unquote

from lockkit.runtime import process
from lockkit.stores.sql.sqlite import SQLiteConnector


def connector_beside(database: str) -> SQLiteConnector:
    """The connector for the locks of an application with this database, in memory or in a file.
    ``database``: its name in Django and SQLAlchemy."""
    given = _named(database)
    if given is None:
        return TemporaryConnector()
    path = os.path.realpath(given)
    beside = os.fspath(_beside(Path(path)))
    return SQLiteConnector(beside, path, is_relative=not os.path.isabs(given))


def path_beside(database: str) -> Path | None:
    """``shop.lockkit.sqlite3`` for ``shop.sqlite3``; None for a database in memory.

    It is the same however the database's path is spelled, and in any later working directory.
    """
    given = _named(database)
    return None if given is None else _beside(Path(os.path.realpath(given)))


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}.lockkit{path.suffix}")


def _named(database: str) -> str | None:
    """The path as it is given; None for a database in memory."""
    if not database or ":memory:" in database or "mode=memory" in database:
        return None
    return _path_in(database) if database.startswith("file:") else database


def _path_in(uri: str) -> str:
    """The path in a ``file:`` URI, as SQLite reads it."""
    path = re.split("[?#]", uri.removeprefix("file:"))[0]
    return unquote(re.sub("^//(localhost)?(?=/)", "", path), errors="surrogateescape")


class TemporaryConnector(SQLiteConnector):
    """A temporary file, for a database in memory. No other process uses either of them.

    The file is removed when the store is closed, or at the end of the process that made it.
    """

    def __init__(self) -> None:
        super().__init__("in memory")
        self._removal: weakref.finalize[[str, int], TemporaryConnector] | None = None
        self._generation = 0

    def is_within_process(self) -> bool:
        return True

    def check_place(self) -> None:
        """Its directory is made together with the file."""

    def _make_file(self) -> None:
        is_there = os.path.isdir(os.path.dirname(self._path))  # old files in /tmp may be removed
        if self._generation != process.generation() or not is_there:
            directory = tempfile.mkdtemp(prefix="lockkit-")
            self._generation = process.generation()
            self._path = os.path.join(directory, "locks.sqlite3")
            self._removal = weakref.finalize(self, _remove, directory, self._generation)
        super()._make_file()

    def forget(self) -> None:
        if self._removal is not None:
            self._removal()
        self._generation = 0


def _remove(directory: str, generation: int) -> None:
    """Remove the directory, but not in a forked child: it is the parent's."""
    if process.is_generation(generation):
        shutil.rmtree(directory, ignore_errors=True)
