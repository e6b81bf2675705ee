"""``LockKit``: sets lockkit up on an app."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from flask import request_started

from lockkit.leases import default_store
from lockkit.model.errors import ConfigurationError
from lockkit_flask.conf import default_location, read_config
from lockkit_flask.leases import db_session, request_leases
from lockkit_flask.operate import checks, command
from lockkit_flask.orders import forms
from lockkit_flask.orders.app_orders import AppOrders
from lockkit_flask.state import EXTENSION, AppLocks, app_locks
from lockkit_flask.web import refusals, view_functions

if TYPE_CHECKING:
    from flask import Flask


class LockKit:
    """Sets lockkit up on Flask apps. It keeps nothing itself, so one object serves several apps.

    >>> from flask import Flask
    >>> app = Flask("shop")
    >>> app.config["LOCKKIT_URL"] = "memory://"
    >>> lock_kit = LockKit(app)
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
        if locks["default"].settings.location == default_location(app):
            with contextlib.suppress(OSError):  # the first use of the file will raise
                Path(app.instance_path).mkdir(parents=True, exist_ok=True)
        if locks.config.orders is not None:
            locks.orders = AppOrders(app, locks.config.orders, locks)
        app.jinja_env.globals["order_id_field"] = forms.order_id_field
        request_leases.install(app)  # after the orders, whose transactions then end first
        db_session.watch_contexts(app)
        checks.tell_at_first_request(app)
        request_started.connect(view_functions.refuse_misplaced, app)
        app.cli.add_command(command.locks)  # also where no entry points are installed
        refusals.answer_lock_errors(app, locks.config.views.busy_status)
        app.extensions[EXTENSION] = locks
        default_store.adapter = "lockkit_flask"

    @staticmethod
    def create_tables() -> None:
        """Create the tables of lockkit for the current app, if they are missing.

        They are the tables of the locks, for aliases in a database, and of the orders' records.
        ``db.create_all()`` makes the table of records too, and Alembic sees it. The tables for
        ``@idempotent(using=…)`` are made only here.
        """
        locks = app_locks()
        for alias in locks:
            locks[alias].store.create_table()
        for table in locks.orders.tables() if locks.orders is not None else ():
            table.create()
