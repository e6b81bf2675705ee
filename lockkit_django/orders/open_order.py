"""An order in Django whose view runs, and what the view may ask of it.

Call its methods on the thread that has the request's connections.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.db import transaction

from lockkit.model.errors import ConfigurationError, LeaseLost
from lockkit.orders import gate, redis_records
from lockkit.orders.record import storable
from lockkit_django.orders.errors import (
    is_answer,
    is_made_by_drf,
    is_of_check,
    is_of_handler,
    status_of,
)
from lockkit_django.orders.request import tell_of_new_session

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from contextlib import AbstractContextManager

    from django.db.transaction import Atomic
    from django.http import HttpResponseBase

    from lockkit_django.orders.visit import Visit

MIDDLEWARE_RUNNER = "_lockkit_order_runner"
"""Attribute of a request that came through the middleware: the middleware's ``Runner``."""


class OpenOrder(gate.OpenOrder):
    """``request.order``. For the view: ``order_id``, ``fencing_token``, ``orphan``, and in a view
    that commits itself ``commit_in`` and ``respond_with``.
    """

    visit: Visit
    _marked_by: str | None = None  #: the module that called ``set_rollback``; "": several
    database: str | None = None  #: where the record is, once the order has begun; None: in Redis
    left = False  #: by an exception, so the transaction of ATOMIC_REQUESTS was rolled back
    in_request_block = False  #: the order's transaction is also that of ATOMIC_REQUESTS
    front: Any  #: the request that a view below ``@idempotent`` gets: Django's or DRF's

    def commit_in(self, block: Atomic) -> AbstractContextManager[None]:
        """``with request.order.commit_in(transaction.atomic(durable=True)): …``

        For a view below ``@idempotent(atomic=False)``, which commits itself: the order is done
        when this block commits, and not if it is rolled back. Use it for the one block that has
        the order's effects. Without ``respond_with`` inside, a process that is killed between
        this COMMIT and the response leaves an order that is done and has no response to repeat.

        Raises ConfigurationError for another block or database, and OrderStopped, which you must
        not catch, if this request cannot do the order.
        """
        raise ConfigurationError(
            "commit_in() is for views below @idempotent(atomic=False), with STORE 'database'"
        )

    def respond_with(self, response: Any) -> Any:
        """Store this response with the effects, inside ``commit_in``; returns it.

        It is rendered now, and it is what the client gets. Raises ConfigurationError outside of
        ``commit_in``, and for a status that is not stored.
        """
        raise ConfigurationError(
            "respond_with() is for views below @idempotent(atomic=False), with STORE 'database'"
        )

    @property
    def is_async(self) -> bool:
        """Whether the event loop that runs the view also ends the order. Under WSGI it does not."""
        return getattr(self.visit.request, MIDDLEWARE_RUNNER) is self.visit.loop

    async def resume(self, *, in_thread: bool) -> Any:
        """BEGIN, if that was left to the view's own lock. Returns what ``gate.begin`` returns."""
        return await gate.begin(self, self.visit.thread if in_thread else self.visit.loop)

    def besides(self, aliases: Iterable[str]) -> list[str]:
        """Those of the given databases that need a transaction of their own around the view."""
        aliases = list(aliases)
        self.in_request_block = self.database in aliases
        return [alias for alias in aliases if alias != self.database]

    def left_by(self, error: BaseException, blocks: Collection[str]) -> None:
        """Note what has left the transactions of ATOMIC_REQUESTS, which were begun around the view:
        they are rolled back, whatever code further out makes of it. ``blocks``: their databases,
        without that of the order."""
        if blocks:
            self.error = error

    def last_look(self, response: Any, blocks: Iterable[str]) -> Any:
        """Check the leases before the transactions of these databases, which are around the view,
        commit. Returns what to answer: if a lease is lost, they roll back, and the order fails."""
        try:
            for lease in self._watched:
                lease.check()
        except LeaseLost as error:
            self.error = error
            for alias in blocks:
                transaction.set_rollback(True, using=alias)
            return self.visit.refuse(self.lost)
        return response

    def before_render(self, response: HttpResponseBase) -> None:
        """Django is about to render what the view has answered."""

    def _is_marked(self, response: Any) -> bool:
        """Whether DRF made the response from an exception, and ``set_rollback`` was called."""
        return self._marked_by is not None and is_made_by_drf(response)

    @property
    def _watched(self) -> list[Any]:
        """The leases that the view must still have at its end."""
        return self.leases


class ClaimedOrder(redis_records.ClaimedOrder, OpenOrder):
    """An order with STORE "redis". Its claim stays behind, as an orphan, after an exception whose
    answer is not stored, after a cancelled request, and after a killed process."""

    _session_key: str | None = None  #: the key of the session before the view

    def begin(self) -> None:
        super().begin()
        self.error, self.failed = None, False  # of an earlier try
        session = getattr(self.visit.request, "session", None)
        self._session_key = getattr(session, "session_key", None)

    def close(self, response: HttpResponseBase) -> Any:
        if self.order.guest and storable(response.status_code):
            tell_of_new_session(self.visit.request, self._session_key)
        return super().close(response)

    def fail(self, error: BaseException) -> Any:
        if is_of_check(error):  # then the view has not run
            self.begun, self.refused = False, True
        return super().fail(error)

    @property
    def _watched(self) -> list[Any]:
        """The leases of the view's own locks, without the order's: its fence guards the record."""
        return self.leases[:-1]

    def _is_accident(self, response: HttpResponseBase) -> bool:
        if self.failed:  # without ``error``: somebody has reported an exception
            return self.error is not None or response.status_code >= HTTPStatus.BAD_REQUEST
        if is_made_by_drf(response) and not (self.error and is_answer(self.error)):
            return is_of_handler(response)
        return self.error is not None and not is_answer(self.error)

    def _raised_status(self) -> int | None:
        error = self.error
        return status_of(error) if error is not None and is_answer(error) else None

    def _shows_failure(self, response: HttpResponseBase) -> bool:
        return is_made_by_drf(response)
