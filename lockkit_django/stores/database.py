"""``django://alias``: locks in a database of the project, and the default without any setting.

SQLite: a file beside the database, so that a request's write transaction does not block renewals.
PostgreSQL: the table that ``manage.py migrate lockkit_django`` makes, over a private connection:
never the request's, which may be in a transaction, nor one of its pool.

The connection follows the *current* settings, which tests change, and is closed before a test
database is destroyed. In a test run without a test database the locks are in a temporary file.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

from lockkit.model.checks import unknown_key
from lockkit.model.errors import BackendUnavailable, ConfigurationError
from lockkit.model.settings import AliasSettings
from lockkit.stores.contract import HostLocal, ServerClock, reject_unknown_options
from lockkit.stores.sql.beside import TemporaryConnector, connector_beside
from lockkit.stores.sql.connector import Connection, Connector, Parameters, Result
from lockkit.stores.sql.dialect import Dialect, load_dialect
from lockkit.stores.sql.postgresql import descriptor_of, failure, no_connection
from lockkit.stores.sql.sqlite import busy_seconds, takes_over
from lockkit.stores.sql.store import SQLStore
from lockkit_django.stores.in_tests import close_in_teardown, is_in_teardown, is_projects_own

OPTIONS = ("timeout", "take_over_dead")
CONNECT_SECONDS = 5


class DatabaseStore(SQLStore):
    """Locks in the database ``alias`` of DATABASES. OPTIONS: ``timeout``, seconds a step waits for
    other writers; ``take_over_dead``, as of SQLite, where that is the database."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> DatabaseStore:
        reject_unknown_options(settings, OPTIONS)
        alias = settings.location.partition("://")[2] or DEFAULT_DB_ALIAS
        if alias not in connections.settings:
            raise unknown_key("DATABASES", alias, connections.settings)
        vendor = _vendor(alias)
        if vendor not in ("sqlite", "postgresql"):
            raise ConfigurationError(
                f"the lock alias {settings.alias!r}: lockkit keeps no locks in a {vendor} database "
                "yet; set LOCKKIT's LOCATION to 'redis://…', or to the 'django://…' of another"
            )
        is_file = vendor == "sqlite"
        store = (DatabaseFile if is_file else DatabaseServer)(
            DjangoConnector(alias),
            key_prefix=settings.key_prefix,
            busy_seconds=busy_seconds(settings),
            takes_over=takes_over(settings) and is_file,
        )
        close_in_teardown(store, alias)
        return store


class DatabaseFile(DatabaseStore, HostLocal):
    """A file beside an SQLite database."""


class DatabaseServer(DatabaseStore, ServerClock):
    """The table of the migrations, in a PostgreSQL database."""


class DjangoConnector(Connector):
    """Leads to wherever the settings of a database alias lead now."""

    closes_before_fork = True

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._key: tuple[str, ...] = ()
        self._target: Connector | None = None

    @property
    def dialect(self) -> Dialect:
        return self._current().dialect

    def connect(self) -> Connection:
        if is_in_teardown(self._alias):
            raise BackendUnavailable(f"the test database {self._alias!r} is being destroyed")
        connection = self._current().connect()
        connection.identity = self._key, connection.identity
        return connection

    def identity(self) -> object:
        target = self._current()
        return self._key, target.identity()

    def has_anything(self) -> bool:
        return self._current().has_anything()

    def described(self) -> str:
        return self._current().described()

    def forget(self) -> None:
        target, self._target, self._key = self._target, None, ()
        if target is not None:
            target.forget()

    def _current(self) -> Connector:
        key = _where(self._alias)
        target = self._target
        if target is None or key != self._key:
            self.forget()
            target = _connector(self._alias)
            self._target, self._key = target, key
        return target


def _where(alias: str) -> tuple[str, ...]:
    """What the connection depends on and a test changes."""
    settings = connections.settings[alias]
    names = tuple(str(settings.get(key)) for key in ("ENGINE", "NAME", "HOST", "PORT", "USER"))
    return (*names, str(is_projects_own(alias)))


def _connector(alias: str) -> Connector:
    if is_projects_own(alias):
        return TemporaryConnector()
    if _vendor(alias) == "sqlite":
        return connector_beside(str(connections.settings[alias]["NAME"]))
    return ServerConnector(alias)


def _vendor(alias: str) -> str:
    return _vendor_of(connections.settings[alias]["ENGINE"])


@functools.cache
def _vendor_of(engine: str) -> str:
    vendor: str = load_backend(engine).DatabaseWrapper.vendor
    return vendor


class ServerConnector(Connector):
    """Private connections of Django's kind to a PostgreSQL database."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    @property
    def dialect(self) -> Dialect:
        return load_dialect("postgresql")

    def identity(self) -> object:
        return None

    def described(self) -> str:
        settings = connections.settings[self._alias]
        return f"postgresql://{settings['HOST']}/{settings['NAME']}"

    def connect(self) -> Connection:
        wrapper = _private_wrapper(self._alias)
        try:
            wrapper.ensure_connection()
        except Error as error:
            raise no_connection(error) from error
        return DjangoConnection(wrapper, self._alias)


class DjangoConnection(Connection):
    """One connection of Django's, in autocommit mode; its debug log and wrappers are bypassed."""

    def __init__(self, wrapper: BaseDatabaseWrapper, alias: str) -> None:
        self.identity = None
        self.descriptor = descriptor_of(wrapper.connection)
        self._wrapper = wrapper
        self._error: type[Exception] = driver_of(wrapper).Error
        self._remedy = f"run 'manage.py migrate lockkit_django --database {alias}'"

    def execute(self, statement: str, parameters: Parameters) -> Result:
        try:
            with self._wrapper.create_cursor() as cursor:
                cursor.execute(_pyformat(statement), parameters or None)
                rows = cursor.fetchall() if cursor.description else ()
                return Result(rows, cursor.rowcount)
        except self._error as error:
            raise failure(error, statement, self._remedy) from error

    def close(self) -> None:
        try:
            self._wrapper.close()
        except Error:
            return


def driver_of(wrapper: Any) -> Any:
    """The DB-API module; django-stubs do not know the attribute."""
    return wrapper.Database


def _private_wrapper(alias: str) -> BaseDatabaseWrapper:
    """A connection of our own: another alias, for a pool is found by its alias; and no pool."""
    shared = connections.settings[alias]
    options: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, **shared.get("OPTIONS", {})}
    options.pop("pool", None)
    settings = {
        **shared,
        "OPTIONS": options,
        "ATOMIC_REQUESTS": False,
        "AUTOCOMMIT": True,
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": False,
    }
    backend = load_backend(shared["ENGINE"])
    wrapper: BaseDatabaseWrapper = backend.DatabaseWrapper(settings, f"lockkit:{alias}")
    wrapper.inc_thread_sharing()
    vars(wrapper)["ensure_connection"] = lambda: _ensure_connection(wrapper)
    return wrapper


def _ensure_connection(wrapper: BaseDatabaseWrapper) -> None:
    """As Django's, which pytest-django forbids to tests without a mark; locks need none."""
    if wrapper.connection is None:
        with wrapper.wrap_database_errors:
            wrapper.connect()


@functools.cache
def _pyformat(statement: str) -> str:
    """``:named`` parameters as ``%(named)s``."""
    return re.sub(r":(\w+)", r"%(\1)s", statement)
