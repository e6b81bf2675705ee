"""Stores in tests: whether there is a test database, and closing stores before it is destroyed.

A test without ``django_db``, and a ``SimpleTestCase``, may run before there is a test database, or
without one. Its locks must not be in the project's own store: a killed test run leaves them there.

PostgreSQL does not drop a database that somebody is connected to, and Django sends no signal before
it drops one. So, when the first lock store is made, the one method that all test runners call is
wrapped.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.backends.base.creation import BaseDatabaseCreation

from lockkit.stores.sql.beside import path_beside

if TYPE_CHECKING:
    from lockkit.stores.sql.store import SQLStore

_names: dict[str, str] = {}
"""The names of the databases by alias, before any test runner has replaced them."""

_stores: weakref.WeakKeyDictionary[SQLStore, str] = weakref.WeakKeyDictionary()
_under_way: set[str] = set()
"""Names of databases being destroyed. A second alias of one, such as a MIRROR, has the same."""


def remember() -> None:
    """Note the names of the databases. Called when the applications are set up, before any tests
    are."""
    if not _names:
        _names.update({alias: _name(alias) for alias in connections.settings})


def is_projects_own(alias: str) -> bool:
    """Whether tests run (Django's runner, pytest-django), but the alias has no test database."""
    return _tests_run() and _names.get(alias) == _name(alias)


def close_in_teardown(store: SQLStore, alias: str) -> None:
    """Close this store before the test database of that alias is destroyed."""
    _stores[store] = alias
    _install()


def is_in_teardown(alias: str) -> bool:
    """Whether the alias' test database is being destroyed: no connection may be opened."""
    return _name(alias) in _under_way


@functools.cache
def _install() -> None:
    original = BaseDatabaseCreation.destroy_test_db

    @functools.wraps(original)
    def destroy_test_db(self: BaseDatabaseCreation, *args: Any, **kwargs: Any) -> None:
        name = str(self.connection.settings_dict["NAME"])
        database = _database(self, kwargs.get("suffix"))
        _under_way.add(name)
        try:
            _close(name)
            original(self, *args, **kwargs)
        finally:
            _under_way.discard(name)
        if self.connection.vendor == "sqlite" and not os.path.exists(database):
            _remove_locks(database)

    BaseDatabaseCreation.destroy_test_db = destroy_test_db  # type: ignore[method-assign]


def _database(creation: BaseDatabaseCreation, suffix: str | None) -> str:
    """The name of the database that is destroyed: the test database, or a clone of it."""
    if suffix is None:
        return str(creation.connection.settings_dict["NAME"])
    return str(creation.get_test_db_clone_settings(suffix)["NAME"])


def _close(name: str) -> None:
    for store, alias in list(_stores.items()):
        if _name(alias) == name:
            store.close()


def _remove_locks(database: str) -> None:
    """Delete the lock file beside a test database that is gone. A database in memory had none."""
    path = path_beside(database)
    if path is None:
        return
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _tests_run() -> bool:
    """Whether ``setup_test_environment()`` was called: Django notes that in ``_TestState``."""
    module = sys.modules.get("django.test.utils")
    return hasattr(getattr(module, "_TestState", None), "saved_data")


def _name(alias: str) -> str:
    return str(connections.settings.get(alias, {}).get("NAME"))  # a test may have removed it
