"""An order whose view is running: its lease, what the view may ask of it, and its end.

One class for each place of its record: the order's own transaction around the view
(``transaction``), one that the view commits itself (``commit_in``), and Redis, for effects outside
a database (here). The methods belong on the thread that has the request's connections.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

from lockkit.leases.aio_client import AsyncLease
from lockkit.model.errors import ConfigurationError
from lockkit.orders import Forget, Keep, OrderResponse, drive
from lockkit.orders.redis_records import RedisRecords
from lockkit_django.leases.aliases import locks
from lockkit_django.orders.answers import asks_to_log_in, order_response, refusal
from lockkit_django.orders.errors import is_of_check, is_of_handler
from lockkit_django.orders.identity import in_signed_cookies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from django.db.transaction import Atomic
    from django.http import HttpRequest, HttpResponseBase

    from lockkit.orders import Discard, Order, Orders, Proceed, Record, Refusal
    from lockkit.orders.settings import ViewOptions
    from lockkit.web.view_lock import AnyAsyncLease, AnyLease

OPEN_ORDER = "_lockkit_open_order"
"""Attribute of a request: the order it has opened."""

REFUSED = 403
NOT_RUN = OrderResponse(503, (), None)

SESSION_DATA = "_session_cache"
"""Of a session that was loaded."""


class Visit(NamedTuple):
    """One request at its view. ``checked``: the view's own checks have passed."""

    request: HttpRequest
    view: Callable[..., Any]
    options: ViewOptions
    checked: bool


def open_order(request: HttpRequest) -> OpenOrder | None:
    """The order that this request has opened, until its transaction and its lock are gone."""
    return getattr(request, OPEN_ORDER, None)


class OpenOrder(ABC):
    """Attached to the request before anything is done, so that whatever happens it is undone.

    ``request.order`` is this object. For the view: ``order_id``, ``fencing_token``, and in a view
    that commits itself ``commit_in`` and ``respond_with``.
    """

    database: str | None = None  #: whose transaction around the view is the order's, or the view's
    begun = False  #: its record is there, or the view is to write it
    undone = False  #: after ``close``: what the view did was rolled back
    ended = False  #: nothing is open, and nothing is under way
    closed = False
    failed = False  #: the view has raised, whatever response was made of that
    error: Exception | None = None  #: that the view has raised, if it was seen
    in_request_block = False  #: the order's transaction is that of ATOMIC_REQUESTS, too

    def __init__(self, visit: Visit, orders: Orders, decision: Proceed) -> None:
        self.visit = visit
        self.orders = orders
        self.request = visit.request
        self.front: Any = visit.request  #: the request as the view sees it: DRF wraps one
        self.decision = decision  #: the lease is ours to release from here on
        self._adopted: list[AnyLease | AnyAsyncLease] = []
        self._before: _SessionBefore | None = None
        setattr(self.request, OPEN_ORDER, self)
        vars(self.request)["order"] = self

    @property
    def order_id(self) -> str:
        return self.order.order_id

    @property
    def fencing_token(self) -> int:
        """Grows with each try at this order: a resource outside the database may compare it."""
        return int(self.decision.lease.fencing_token)

    @property
    def orphan(self) -> bool:
        """Whether an earlier try was begun whose end is not known: with ORPHANS "retry"."""
        return self.decision.orphan

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
    def leases(self) -> list[Any]:
        """To be released after COMMIT or ROLLBACK, the last one first."""
        return [*reversed(self._adopted), self.decision.lease]

    @property
    def order(self) -> Order:
        return self.decision.order

    @property
    def is_async(self) -> bool:
        """Whether the event loop that runs the view also ends the order: not so under WSGI."""
        return isinstance(self.decision.lease, AsyncLease)

    @property
    def pending(self) -> bool:
        """Whether the transaction is still to be begun, under another lock of the view's."""
        return not (self.begun or self.closed)

    def adopt(self, lease: AnyLease | AnyAsyncLease) -> None:
        """Another lease that must outlive the transaction."""
        self._adopted.append(lease)

    def check_leases(self) -> None:
        """Raises LeaseLost."""
        for lease in reversed(self.leases):
            lease.check()

    def besides(self, aliases: Iterable[str]) -> list[str]:
        """Those databases that need a transaction of their own around the view."""
        aliases = list(aliases)
        self.in_request_block = self.database in aliases
        return [alias for alias in aliases if alias != self.database]

    def begin(self) -> None:
        """Insert the record: a stale second runner stops here, before its view.

        Raises DuplicateKeyError or a BackendError; then nothing is open.
        """
        self._before = _SessionBefore(self.request)
        self._begin()

    def fail(self, error: Exception) -> HttpResponseBase | None:
        """The view raised. Returns a better answer than 500, if there is one."""
        self.failed, self.error = True, error
        return self._answer_to(error)

    def close(self, response: HttpResponseBase) -> HttpResponseBase:
        """COMMIT the effects with their record, or ROLLBACK. Returns what to answer.

        Raises OrderStopped if somebody else has done the order.
        """
        try:
            return self._end(response)
        finally:
            self.ended = True
            if self._before is not None and self.undone:
                self._before.restore()

    @abstractmethod
    def abandon(self) -> None:
        """ROLLBACK, if it was not closed: the request was cancelled, or the process must end."""

    def detach(self) -> None:
        """The request has no open order any more."""
        self.closed = True
        with suppress(AttributeError):
            delattr(self.request, OPEN_ORDER)

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _end(self, response: HttpResponseBase) -> HttpResponseBase: ...

    def _answer_to(self, error: Exception) -> HttpResponseBase | None:
        return None

    def _verdict(self, response: HttpResponseBase) -> Keep | Forget | Discard:
        """What becomes of the order by this response. Sending somebody to log in is a refusal."""
        if asks_to_log_in(self.request, response):
            return Forget()
        return self.orders.conclude(self.order, order_response(self.request, response))

    def _record(self, response: HttpResponseBase) -> Record | None:
        """The record that this response makes; None: it does not end the order."""
        verdict = self._verdict(response)
        return verdict.record if isinstance(verdict, Keep) else None


class ClaimedOrder(OpenOrder):
    """STORE "redis": the response is stored by the fence of the claim, after the view.

    The engine claims the order when it lets it in. No transaction is opened here.

    An exception that becomes nothing to be stored, a request that is cancelled, and a process that
    is killed leave the claim as it is, an orphan: what the view did is not known, and it may be a
    payment.
    """

    _settled = False
    _refused = False  #: by a check of Django's, before the view

    def _begin(self) -> None:
        self.begun = True

    def _end(self, response: HttpResponseBase) -> HttpResponseBase:
        self._settled = True
        failed = (self.failed and self.begun and not self._refused) or is_of_handler(response)
        reject = self._settle(self._facts(response), failed=failed)
        return response if reject is None else refusal(reject)

    def abandon(self) -> None:
        """An orphan, if the view was begun; it may have waited for a lock of its own."""
        if not (self.begun or self._settled):
            self._settle(NOT_RUN, failed=False)

    def _answer_to(self, error: Exception) -> HttpResponseBase | None:
        self._refused = is_of_check(error)
        return None

    def _settle(self, answered: OrderResponse, *, failed: bool) -> Refusal | None:
        client = locks[self.orders.settings.alias]
        flow = self.orders.settle(self.decision, answered, failed=failed)
        return drive(flow, RedisRecords.of(client), client)

    def _facts(self, response: HttpResponseBase) -> OrderResponse:
        answered = order_response(self.request, response)
        if asks_to_log_in(self.request, response):
            return answered._replace(status=REFUSED)  # a refusal, whatever its status says
        return answered


class _SessionBefore:
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
