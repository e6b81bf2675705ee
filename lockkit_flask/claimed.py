"""An order whose effects are in no database of ours: STORE = "redis".

The engine has claimed it, in the Redis of the locks, before the view is called. Nothing that the
view does can be rolled back here: what counts is what is known about it. See ``Orders.settle``.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from werkzeug.exceptions import HTTPException

from lockkit.model.errors import ConfigurationError
from lockkit.orders import ResponseFacts, drive
from lockkit.orders.redis_records import RedisRecords
from lockkit_flask.opened import Opened
from lockkit_flask.refusals import refused

if TYPE_CHECKING:
    from flask import Response

    from lockkit.leases.client import LockClient
    from lockkit.orders import Orders, Proceed, Reject

__all__ = ["Claimed", "RedisStore"]

NOT_RUN = ResponseFacts(HTTPStatus.SERVICE_UNAVAILABLE, (), b"")


class Claimed(Opened):
    """One order while its request runs. The claim is there before it and may outlive it."""

    can_undo = False

    def __init__(self, orders: Orders, proceed: Proceed, store: RedisStore) -> None:
        super().__init__(orders, proceed)
        self._store = store
        self._failed = False

    def begin(self) -> None:
        """The claim is written: the engine does it under the lock."""

    def forgo(self) -> None:
        self._settle(NOT_RUN)
        self.close()

    def note_failure(self, error: BaseException) -> None:
        """An HTTP exception is the view's answer; any other says nothing about what was done.

        Nor does what an error handler makes of that, unless it ends the order.
        """
        self._failed = not isinstance(error, HTTPException)

    def conclude(self, response: Response) -> Response:
        reject = self._settle(self.facts)
        return response if reject is None else refused(reject)

    def close(self) -> None:
        """A claim that was not settled stays: the order is an orphan."""
        self.detach()

    def _settle(self, facts: ResponseFacts | None) -> Reject | None:
        flow = self.orders.settle(self.proceed, facts, failed=self._failed)
        return drive(flow, self._store.records, self._store.locks)


class RedisStore:
    """The claims of one app, beside the locks of its orders."""

    def __init__(self, locks: LockClient) -> None:
        """Raises ConfigurationError if these locks are in no Redis."""
        self.locks = locks
        self.records = RedisRecords.of(locks)

    def of(self, using: str | None) -> RedisStore:
        if using is not None:
            raise ConfigurationError(
                f"@idempotent(using={using!r}) names a database, but LOCKKIT_ORDERS['STORE'] is "
                f"'redis': the effects of such an order are in none"
            )
        return self

    def open(self, orders: Orders, proceed: Proceed) -> Opened:
        return Claimed(orders, proceed, self)

    def create_table(self) -> None:
        """There is none."""
