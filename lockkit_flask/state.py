"""The locks and orders of an app, by alias, as ``LockKit`` has set them up.

Modules that need the settings of the current app get them here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from flask import current_app
from werkzeug.local import LocalProxy

from lockkit.leases.decorated import LockedOptions
from lockkit.leases.decorator import locked_with
from lockkit.leases.enclosing import ClientsByAlias
from lockkit.model.errors import ConfigurationError
from lockkit_flask.conf import refuse_late_settings
from lockkit_flask.leases.client import FlaskLockClient
from lockkit_flask.leases.db_session import behind
from lockkit_flask.web.view_functions import note_place

if TYPE_CHECKING:
    from flask import Flask

    from lockkit_flask.conf import Config
    from lockkit_flask.leases.aio_client import AsyncClients
    from lockkit_flask.orders.app_orders import AppOrders

EXTENSION = "lockkit"


class AppLocks(ClientsByAlias[FlaskLockClient]):
    """The locks of one app, by alias: ``app.extensions["lockkit"]["default"]``.

    Raises ConfigurationError for an alias whose store cannot be made.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(lambda: config.aliases, FlaskLockClient)
        self.config = config
        self.orders: AppOrders | None = None  #: None: LOCKKIT_ORDERS is not set
        self.serves = False  #: a request has come, and no setting has changed since ``config``
        self._in_loop: AsyncClients | None = None
        for alias in self:
            self[alias]

    @property
    def in_loop(self) -> AsyncClients:
        """The async clients, by alias. They are made for the first coroutine that asks."""
        from lockkit_flask.leases.aio_client import AsyncClients, AsyncFlaskLockClient

        with self._mutex:
            self._in_loop = self._in_loop or AsyncClients(self, AsyncFlaskLockClient)
            return self._in_loop


def app_locks(app: Flask | None = None) -> AppLocks:
    """The locks of an app (default: the current one). Raises ConfigurationError without LockKit
    and, until the first request, for a setting that came after LockKit."""
    app = app or behind(current_app)
    found = app.extensions.get(EXTENSION)
    if not isinstance(found, AppLocks):
        raise ConfigurationError("lockkit is not set up on this app: LockKit(app)")
    if not found.serves:
        refuse_late_settings(app, found.config)
    return found


locks = cast(AppLocks, LocalProxy(app_locks))
"""The clients of the current app by alias, wherever there is an app context."""

alocks = cast("AsyncClients", LocalProxy(lambda: app_locks().in_loop))
"""The async clients of the running event loop. Flask gives every async view a loop of its own, so
a client lives as long as one request: use ``locks`` where blocking does no harm."""

locked = locked_with(
    lambda alias: locks[alias],
    lambda alias: alocks[alias],
    LockedOptions.__optional_keys__,
    note_place,
)
