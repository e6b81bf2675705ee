"""The order of the current request: what the app may see of it, and how it ends in its store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, cast

from flask import current_app, has_request_context, request
from werkzeug.local import LocalProxy

from lockkit_flask import sessions

if TYPE_CHECKING:
    from flask import Flask, Response

    from lockkit.leases.until import Transaction
    from lockkit.orders import Orders, Proceed, ResponseFacts
    from lockkit_flask.order_stores import Store

__all__ = ["CurrentOrder", "Opened", "current_order", "of_request", "prepare"]

_ATTRIBUTE = "order"


class CurrentOrder(NamedTuple):
    """The order that the running view makes: ``request.order``."""

    order_id: str
    fencing_token: int  #: grows with each try: a resource elsewhere may refuse smaller ones
    orphan: bool = False  #: an earlier try was begun, and its end is not known: ORPHANS "retry"


class Opened(ABC):
    """One order while its request runs. It holds the lock of the order, and is used once."""

    active = False  #: the app's sessions work inside its transaction
    can_undo = True  #: what the view did; then an ``after_request`` hook may yet make it a failure
    checked = False  #: it was opened below the view's own checks, so they have passed
    store: Store  #: that it was opened in
    kept: Transaction | None = None  #: the leases that its end gives back: until="commit"

    def __init__(self, orders: Orders, proceed: Proceed) -> None:
        self.orders = orders
        self.proceed = proceed
        self.facts: ResponseFacts | None = None  #: what the view has answered
        self.status = 0  #: of the response that they were taken from
        self.of_guest = False  #: the request came without a user, or a token

    def attach(self) -> None:
        """From now on it is the order of the current request."""
        self.app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
        self.environ = request.environ
        self._outer = sessions.ORDER.get()
        sessions.ORDER.set(self)
        order, lease, orphan = self.proceed.order, self.proceed.lease, self.proceed.orphan
        current = CurrentOrder(order.order_id, int(lease.fencing_token), orphan)
        setattr(request, _ATTRIBUTE, current)

    def detach(self) -> None:
        """Idempotent. A view may have sent an app another order."""
        if sessions.ORDER.get() is self:
            sessions.ORDER.set(self._outer)

    @abstractmethod
    def begin(self) -> None:
        """Have the record there before the view runs.

        Raises DuplicateKeyError or BackendError; then nothing is open.
        """

    @abstractmethod
    def forgo(self) -> None:
        """The view is not called after all: nothing is left of this try."""

    @abstractmethod
    def note_failure(self, error: BaseException) -> None:
        """The view has raised."""

    @abstractmethod
    def conclude(self, response: Response) -> Response:
        """Make final what the view has answered, by ``facts``. Returns what to answer.

        Raises DuplicateKeyError: nothing of it is left, and the order is another runner's.
        """

    @abstractmethod
    def close(self) -> None:
        """Undo what was not concluded, if it can be undone. Idempotent."""


def prepare() -> None:
    """``request.order`` is None in a request that is no order."""
    vars(request._get_current_object()).setdefault(_ATTRIBUTE)  # type: ignore[attr-defined]


def of_request() -> Opened | None:
    """The order of this request. A view may send an app another one."""
    found = sessions.ORDER.get()
    if found is None or not has_request_context() or found.environ is not request.environ:
        return None
    return found


def _current() -> CurrentOrder:
    if not has_request_context() or getattr(request, _ATTRIBUTE, None) is None:
        raise RuntimeError("no order runs in this request")
    return cast(CurrentOrder, getattr(request, _ATTRIBUTE))


current_order: CurrentOrder = LocalProxy(_current)  # type: ignore[assignment]
"""The order that the running view makes; false when the request is none."""
