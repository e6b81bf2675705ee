"""``LockKit``: the extension, and the locks of each app it was set up on."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from flask import Flask, appcontext_pushed, current_app, request_started

from lockkit.model.errors import ConfigurationError, DriverMissing
from lockkit.model.settings import AliasSettings
from lockkit.model.values import unknown_key
from lockkit.per_loop import PerLoop
from lockkit.stores.registry import load_backend
from lockkit_flask import held, misplaced, refusals, sessions
from lockkit_flask.client import AsyncFlaskLockClient, FlaskLockClient
from lockkit_flask.conf import Config, default_location, read_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockkit.orders import OrderSettings
    from lockkit_flask.order_stores import Store
    from lockkit_flask.orders import AppOrders

__all__ = ["AppLocks", "LockKit", "app_locks"]

EXTENSION = "lockkit"


class LockKit:
    """Sets lockkit up on Flask apps; keeps nothing itself, so one serves any number of apps.

    >>> from flask import Flask
    >>> app = Flask("shop")
    >>> app.config["LOCKKIT_URL"] = "memory://"
    >>> lockkit = LockKit(app)
    """

    def __init__(self, app: Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Read the app's settings and make its clients. Nothing is connected.

        Raises ConfigurationError for a wrong setting, a missing driver, or a second set-up.
        """
        if EXTENSION in app.extensions:
            raise ConfigurationError(f"lockkit is set up on the app {app.name!r} already")
        locks = AppLocks(read_config(app))
        _make_instance_folder(app, locks)
        orders = _orders(app, locks)
        if orders is not None:
            orders.install(app)
        _install_forms(app, orders=orders is not None)
        held.install(app)  # after the orders: what stands before them in a list runs after them
        _watch_at_first_context(app)
        _check_at_first_request(app)
        request_started.connect(misplaced.refuse, app)
        _mount_command(app)
        refusals.answer_lock_errors(app, locks.config.views.busy_status)
        app.extensions[EXTENSION] = locks

    @staticmethod
    def create_tables() -> None:
        """Create the tables of lockkit for the current app, if they are not there.

        Those of the locks of ``sqlalchemy+…`` aliases, and those of the orders' records.
        ``db.create_all()`` makes the latter too, and Alembic sees it; those of
        ``@idempotent(using=…)`` are made only here.
        """
        locks = app_locks()
        for alias in locks:
            make = getattr(locks[alias].backend, "create_table", None)
            if make is not None:
                make()
        orders = locks.orders
        for store in orders.stores() if orders is not None else ():
            store.create_table()


class AppLocks:
    """The locks of one app, by alias: ``app.extensions["lockkit"]["default"]``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.orders: AppOrders | None = None  #: None: LOCKKIT_ORDERS is not set
        self._clients = {alias: _client(entry) for alias, entry in config.aliases.items()}
        self._in_loops = PerLoop(self._make_async)

    def __getitem__(self, alias: str) -> FlaskLockClient:
        try:
            return self._clients[alias]
        except KeyError:
            raise unknown_key("LOCKKIT", alias, self._clients) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def in_loop(self, alias: str) -> AsyncFlaskLockClient:
        """The async client of this alias for the running event loop, which closes it at its end."""
        return self._in_loops[alias]

    def _make_async(self, alias: str) -> AsyncFlaskLockClient:
        blocking = self[alias]
        return AsyncFlaskLockClient(
            blocking.backend.async_twin(blocking.settings), blocking.settings
        )

    def close(self) -> None:
        """Close the connections of the blocking clients. They open again when used."""
        for client in self._clients.values():
            client.close()


def app_locks(app: Flask | None = None) -> AppLocks:
    """The locks of an app (default: the current one). Raises ConfigurationError without LockKit."""
    found = (app or current_app).extensions.get(EXTENSION)
    if not isinstance(found, AppLocks):
        raise ConfigurationError("lockkit is not set up on this app: LockKit(app)")
    return found


def _client(settings: AliasSettings) -> FlaskLockClient:
    return FlaskLockClient(load_backend(settings), settings)


def _make_instance_folder(app: Flask, locks: AppLocks) -> None:
    """For the file that is used without settings. What cannot be made fails at its first use."""
    if locks["default"].settings.location == default_location(app):
        with contextlib.suppress(OSError):
            Path(app.instance_path).mkdir(parents=True, exist_ok=True)


def _orders(app: Flask, locks: AppLocks) -> AppOrders | None:
    settings = locks.config.orders
    if settings is None:
        return None
    from lockkit_flask.orders import AppOrders

    client = locks[settings.alias]
    store = _redis_store(client) if settings.claims else _database_store(app, settings)
    locks.orders = AppOrders(settings, locks.config.user_pk, client, store)
    return locks.orders


def _redis_store(client: FlaskLockClient) -> Store:
    from lockkit_flask.claimed import RedisStore

    return RedisStore(client)


def _database_store(app: Flask, settings: OrderSettings) -> Store:
    db = sessions.database_of(app)
    if db is None:
        if find_spec("flask_sqlalchemy") is None:
            raise DriverMissing(
                "LOCKKIT_ORDERS needs Flask-SQLAlchemy: pip install 'lockkit[flask-sqlalchemy]'. "
                "Or, for effects outside a database, STORE 'redis'"
            )
        raise ConfigurationError(
            "LOCKKIT_ORDERS needs Flask-SQLAlchemy: set db = SQLAlchemy(app) up before "
            "LockKit(app). Or, for effects outside a database, STORE 'redis'"
        )
    from lockkit_flask.order_stores import DatabaseStore

    return DatabaseStore(db, settings.using)


def _install_forms(app: Flask, *, orders: bool) -> None:
    from lockkit_flask import forms  # needs this module

    forms.install(app, orders=orders)


def _mount_command(app: Flask) -> None:
    """``flask locks``, also where the distribution's entry points are not installed."""
    from lockkit_flask import cli

    app.cli.add_command(cli.locks)


def _check_at_first_request(app: Flask) -> None:
    from lockkit_flask import checks  # needs this module

    checks.tell_at_first_request(app)


def _watch_at_first_context(app: Flask) -> None:
    """Flask-SQLAlchemy may be set up after lockkit, so it is looked for when it is used."""
    watched: list[object] = []

    def watch(sender: Flask, **_: object) -> None:
        db = None if watched else sessions.database_of(sender)
        if db is not None:
            watched.append(db)
            sessions.watch(db)

    appcontext_pushed.connect(watch, app, weak=False)
