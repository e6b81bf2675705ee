"""``django://alias``: locks in a database of the project. Without any setting it is the default.

SQLite: a file beside the database, so that a request's write transaction does not block renewals.
PostgreSQL, MySQL and MariaDB: the table that ``manage.py migrate lockkit_django`` makes. It is used
over a private connection, never over the request's, which may be in a transaction, nor its pool.

The connection follows the *current* settings, which tests change, and is closed before a test
database is destroyed. In a test run without a test database the locks are in a temporary file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.utils import load_backend

from lockkit.model.checks import unknown_key
from lockkit.model.errors import BackendUnavailable, ConfigurationError, LockError
from lockkit.model.settings import AliasSettings
from lockkit.stores.contract import ServerClock, reject_unknown_options
from lockkit.stores.servers import raise_unless_of_connecting
from lockkit.stores.sql.beside import TemporaryConnector, connector_beside
from lockkit.stores.sql.connector import Connection, Connector, Ear
from lockkit.stores.sql.dialect import Dialect, load_dialect
from lockkit.stores.sql.driver import descriptor_of
from lockkit.stores.sql.guard import Begin, connecting
from lockkit.stores.sql.pushed import PushedTable
from lockkit.stores.sql.sqlite import SQLiteStore, table_over
from lockkit.stores.sql.store import SQLStore
from lockkit.stores.sql.vendors import cannot_send, connected, vendor_of
from lockkit_django.conf import need_settings
from lockkit_django.stores.in_tests import close_in_teardown, is_in_teardown, is_projects_own

OPTIONS = ("mode", "timeout", "take_over_dead")
CONNECT_SECONDS = 5
PLACE = ("ENGINE", "NAME", "HOST", "PORT", "USER")


class DatabaseStore(SQLStore):
    """Locks in a database of DATABASES. OPTIONS: ``timeout``, the seconds that a step waits for
    other writers; and, if the database is SQLite, ``take_over_dead`` as for ``sqlite://``."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> SQLStore:
        reject_unknown_options(settings, OPTIONS)
        alias = alias_of(settings)
        vendor = _vendor(alias)
        if vendor not in TABLES:
            why = f"lockkit keeps no locks in a {vendor} database"
            if vendor == "unknown":  # that of an empty entry
                why = f"DATABASES[{alias!r}] has no ENGINE"
            raise ConfigurationError(
                f"{settings.title}: {why}; set LOCKKIT's LOCATION to 'redis://…', or to the "
                "'django://…' of another"
            )
        store = table_over(TABLES[vendor], DjangoConnector(alias), settings)
        close_in_teardown(store, alias)
        return store


def alias_of(settings: AliasSettings) -> str:
    """The alias in ``django://alias?mode=…``. Raises ConfigurationError."""
    need_settings(settings.scheme)
    alias, _, query = settings.location.partition("://")[2].partition("?")
    for option in parse_qs(query, keep_blank_values=True):
        if option != "mode":
            raise unknown_key(settings.place, option, ["mode"])
    alias = alias or DEFAULT_DB_ALIAS
    if alias not in connections.settings:
        raise unknown_key("DATABASES", alias, connections.settings)
    return alias


class DatabasePostgreSQL(PushedTable, DatabaseStore, ServerClock):
    """The table of the migrations, in a PostgreSQL database."""


class DatabaseMySQL(DatabaseStore, ServerClock):
    """The table of the migrations, in a MySQL or MariaDB database."""


TABLES: Final[dict[str, type[SQLStore]]] = {
    "sqlite": SQLiteStore,
    "postgresql": DatabasePostgreSQL,
    "mysql": DatabaseMySQL,
}
"""The class for each vendor, as Django's backends name it."""


class DjangoConnector(Connector):
    """Connects to wherever the settings of a database alias lead now."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._key: tuple[object, ...] = ()
        self._targets: dict[tuple[object, ...], Connector] = {}  #: at most one, by its key

    @property
    def dialect(self) -> Dialect:
        return self._current().dialect

    def connect(self) -> Connection:
        connection = self._reachable().connect()
        connection.identity = self._key, connection.identity
        return connection

    def listen(self, channel: str) -> Ear:
        return self._reachable().listen(channel)

    def tell(self, channel: str, token: str) -> None:
        self._current().tell(channel, token)

    def suspicion(self) -> str:
        return self._current().suspicion()

    def identity(self) -> object:
        target = self._current()
        return self._key, target.identity()

    def has_anything(self) -> bool:
        return self._current().has_anything()

    def check_place(self) -> None:
        self._current().check_place()

    def is_within_process(self) -> bool:
        return self._current().is_within_process()

    def is_relative(self) -> bool:
        return self._current().is_relative()

    def described(self) -> str:
        return self._current().described()

    def forget(self) -> None:
        targets, self._targets = self._targets, {}
        for target in targets.values():
            target.forget()

    def _reachable(self) -> Connector:
        if is_in_teardown(self._alias):
            raise BackendUnavailable(f"the test database {self._alias!r} is being destroyed")
        return self._current()

    def _current(self) -> Connector:
        """The connector for the current settings. Threads that race to make it get the same one,
        because each temporary connector has a file of its own."""
        self._key = key = _where(self._alias)
        target = self._targets.get(key)
        if target is None:
            for other in [*self._targets]:  # the settings have changed
                if other != key and (old := self._targets.pop(other, None)) is not None:
                    old.forget()
            target = self._targets.setdefault(key, _connector(self._alias))
        return target


def _where(alias: str) -> tuple[object, ...]:
    """The settings that the connection depends on. Tests may change them."""
    return (*map(connections.settings[alias].get, PLACE), is_projects_own(alias))


def _connector(alias: str) -> Connector:
    if is_projects_own(alias):
        return TemporaryConnector()
    if _vendor(alias) == "sqlite":
        return connector_beside(str(connections.settings[alias]["NAME"]))
    return ServerConnector(alias)


def _vendor(alias: str) -> str:
    vendor: str = load_backend(connections.settings[alias]["ENGINE"]).DatabaseWrapper.vendor
    return vendor


class ServerConnector(Connector):
    """Private connections to a server, made by Django's backend."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        wrapper: Any = load_backend(connections.settings[alias]["ENGINE"]).DatabaseWrapper
        self._vendor = vendor_of(wrapper.vendor, wrapper.Database)

    @property
    def dialect(self) -> Dialect:
        return load_dialect(self._vendor.name)

    def described(self) -> str:
        settings = connections.settings[self._alias]
        port = f":{settings['PORT']}" if settings["PORT"] else ""
        return f"{self._vendor.name}://{settings['HOST']}{port}/{settings['NAME']}"

    def connect(self) -> Connection:
        """Django's debug log and wrappers are bypassed."""
        wrapper = _private_wrapper(self._alias)
        try:
            with _registered(wrapper), wrapper.wrap_database_errors:
                connecting(partial(_connect, wrapper))
        except LockError:
            raise
        except UnicodeError:
            raise cannot_send() from None
        except (Error, RuntimeError, OSError, TypeError) as error:
            raise_unless_of_connecting(error)
            raise self._vendor.no_connection(error.__cause__ or error) from error
        remedy = (
            f"run 'manage.py migrate lockkit_django --database {self._alias}', which makes it only "
            "where DATABASE_ROUTERS let it"
        )
        if apps.apps_ready and not apps.is_installed("lockkit_django"):
            remedy = f"add 'lockkit_django' to INSTALLED_APPS, and {remedy}"
        return connected(wrapper.connection, wrapper.Database, self._vendor, remedy)


def _connect(wrapper: Any, begin: Begin) -> None:
    """Have it connect. Django, and receivers of ``connection_created``, ask the server then."""
    make = wrapper.get_new_connection

    def made(parameters: Any) -> Any:
        driver = make(parameters)
        begin(descriptor_of(driver))
        return driver

    vars(wrapper)["get_new_connection"] = made
    wrapper.connect()


@contextmanager
def _registered(wrapper: Any) -> Iterator[None]:
    """Have it found by its alias while it connects: a receiver of ``connection_created`` may look
    it up there, as that of django.contrib.postgres does."""
    connections[wrapper.alias] = wrapper
    try:
        yield
    finally:
        with suppress(AttributeError):  # a receiver that uses a lock itself has deleted it
            del connections[wrapper.alias]


def _private_wrapper(alias: str) -> Any:
    """A private connection, without a pool. It has another alias, because Django finds a pool by
    the alias. ``Any``: django-stubs do not know that it has the module of its driver."""
    shared = connections.settings[alias]
    options: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, **shared.get("OPTIONS", {})}
    options.pop("pool", None)
    if _vendor(alias) == "mysql":
        patience = {"read_timeout": CONNECT_SECONDS, "write_timeout": CONNECT_SECONDS}
        options = patience | options  # otherwise it waits for ever for the server's greeting
        options["charset"] = "utf8mb4"  # every name can be written in it
    settings = {
        **shared,
        "OPTIONS": options,
        "ATOMIC_REQUESTS": False,
        "AUTOCOMMIT": True,
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": False,
    }
    backend = load_backend(shared["ENGINE"])
    wrapper = backend.DatabaseWrapper(settings, f"lockkit:{alias}")
    wrapper.inc_thread_sharing()
    # connect() calls this. In tests without its mark, pytest-django lets Django's own raise.
    vars(wrapper)["ensure_connection"] = lambda: None
    return wrapper
