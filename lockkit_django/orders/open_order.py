"""An order of Django's whose view runs: what the view may ask of it, and the request's session.

The methods belong on the thread that has the request's connections.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from lockkit.leases.aio_client import AsyncLease
from lockkit.model.errors import ConfigurationError
from lockkit.orders import gate, redis_records
from lockkit_django.orders.errors import is_of_check, is_of_handler
from lockkit_django.orders.request import in_signed_cookies
from lockkit_django.web.view_functions import OPEN_ORDER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from django.db.transaction import Atomic
    from django.http import HttpRequest, HttpResponseBase

    from lockkit.orders import Proceed
    from lockkit_django.orders.visit import Visit

SESSION_DATA = "_session_cache"
"""The attribute of a session that was loaded."""


def open_order(request: HttpRequest) -> OpenOrder | None:
    """The order that this request has opened, until its transaction and its lock are gone."""
    return getattr(request, OPEN_ORDER, None)


class OpenOrder(gate.OpenOrder):
    """``request.order``. For the view: ``order_id``, ``fencing_token``, ``orphan``, and in a view
    that commits itself ``commit_in`` and ``respond_with``.
    """

    visit: Visit
    database: str | None = None  #: whose transaction around the view is the order's, or the view's
    in_request_block = False  #: the order's transaction is that of ATOMIC_REQUESTS, too

    def __init__(self, visit: Visit, decision: Proceed) -> None:
        super().__init__(visit, decision)
        self.request = visit.request
        self.front: Any = visit.request  #: the request as the view sees it: DRF wraps one
        setattr(self.request, OPEN_ORDER, self)
        vars(self.request)["order"] = self

    def commit_in(self, block: Atomic) -> AbstractContextManager[None]:
        """``with request.order.commit_in(transaction.atomic(durable=True)): …``

        For a view below ``@idempotent(atomic=False)``, which commits itself: the order is done
        when this block commits, and not if it is rolled back. Use it for the one block that has
        the order's effects. Without ``respond_with`` inside, a process that is killed between
        this COMMIT and the response leaves an order that is done and has no response to repeat.

        Raises ConfigurationError for another block or database, and OrderStopped, which is not
        to be caught, if the order cannot be done by this request.
        """
        raise ConfigurationError("commit_in() is for views below @idempotent(atomic=False)")

    def respond_with(self, response: Any) -> Any:
        """Store this response with the effects, inside ``commit_in``; returns it.

        It is rendered now, and it is what the client gets. Raises ConfigurationError outside of
        ``commit_in``, and for a status that is not stored.
        """
        raise ConfigurationError("respond_with() is for views below @idempotent(atomic=False)")

    @property
    def is_async(self) -> bool:
        """Whether the event loop that runs the view also ends the order: not so under WSGI."""
        return isinstance(self.decision.lease, AsyncLease)

    async def resume(self, *, in_thread: bool) -> Any:
        """BEGIN, if that was left to a lock of the view's. Returns as ``gate.begin``."""
        return await gate.begin(self, self.visit.thread if in_thread else self.visit.loop)

    def besides(self, aliases: Iterable[str]) -> list[str]:
        """Those databases that need a transaction of their own around the view."""
        aliases = list(aliases)
        self.in_request_block = self.database in aliases
        return [alias for alias in aliases if alias != self.database]

    def detach(self) -> None:
        with suppress(AttributeError):
            delattr(self.request, OPEN_ORDER)


class ClaimedOrder(redis_records.ClaimedOrder, OpenOrder):
    """An exception that becomes nothing to be stored, a request that is cancelled, and a process
    that is killed leave the claim as it is, an orphan."""

    _refused = False  #: by a check of Django's, before the view

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._refused = is_of_check(error)

    def _is_accident(self, response: HttpResponseBase) -> bool:
        return (self.failed and not self._refused) or is_of_handler(response)


class SessionBefore:
    """What the session of a request was before its view: a cart that is emptied for an order comes
    back with it.

    Guarantee: after ``restore`` it is that again. Limit: what the view itself has saved, in a
    store that is not the order's database, stays there.
    """

    def __init__(self, request: HttpRequest) -> None:
        self._session: Any = getattr(request, "session", None)
        if self._session is not None:
            self._key = self._session.session_key
            self._modified = self._session.modified
            self._data = deepcopy(vars(self._session).get(SESSION_DATA))

    def restore(self) -> None:
        """Queries the store only if the view has given the session another key."""
        session = self._session
        if session is None or not self._is_undone():
            return
        vars(session).pop(SESSION_DATA, None)
        if self._data is not None:
            setattr(session, SESSION_DATA, self._data)
        session._session_key = self._key
        session.modified = self._modified

    def _is_undone(self) -> bool:
        """Whether a login or a logout of the view's was rolled back with its order."""
        session = self._session
        if session.session_key == self._key or in_signed_cookies(type(session)):
            return True
        if self._key is None:
            return not session.exists(session.session_key)
        return bool(session.exists(self._key))
