"""How an order begins and ends: where its record is, and what makes it final.

One class for each place: the order's own transaction around the view (``shared``), a transaction
that the view commits itself (``own``), and Redis, for effects outside a database (``claim``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from lockkit.model.errors import BackendUnavailable, ConfigurationError, LockError
from lockkit.orders import DuplicateKeyError, Forget, Keep, refusals
from lockkit_django.orders.request import asks_to_log_in, response_facts

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from django.db.transaction import Atomic
    from django.http import HttpResponseBase

    from lockkit.orders import Discard, Record, Refusal
    from lockkit_django.orders.open_order import OpenOrder
    from lockkit_django.orders.table import OrderStore

__all__ = ["CONNECTION_ERRORS", "FIRST_ERROR", "Ending", "OrderStopped", "is_conflict", "unsaved"]

FIRST_ERROR = 400
CONNECTION_ERRORS = (OperationalError, InterfaceError)
CONFLICT_CLASS = "40"
"""Of SQLSTATE: the database has rolled back, because of other transactions."""

MYSQL_CONFLICTS = frozenset({1020, 1205, 1213})
"""Record changed since the snapshot, lock wait timeout, deadlock."""


class OrderStopped(LockError):
    """This request cannot do its order: somebody else has, or its lease or a store is gone.

    Nothing that it did in ``commit_in`` was saved, or that is not known. Not to be caught: the
    answer is made of it. ``reject``: that answer; None: look who was first.
    """

    def __init__(self, reject: Refusal | None) -> None:
        super().__init__("the order is done elsewhere" if reject is None else reject.title)
        self.reject = reject


class Ending(ABC):
    """Of one order. ``begun``: whether its record is there, or the view is to write it."""

    database: str | None = None  #: whose transaction around the view is the order's, or the view's
    begun = False
    undone = False  #: after ``end``: what the view did was rolled back

    def __init__(self, opened: OpenOrder) -> None:
        self.opened = opened

    @abstractmethod
    def begin(self) -> None:
        """Raises DuplicateKeyError or a BackendError; then nothing is open."""

    @abstractmethod
    def end(self, response: HttpResponseBase, *, failed: bool) -> HttpResponseBase:
        """What to answer. ``failed``: the response was made of an exception of the view's.

        Raises OrderStopped if somebody else has done the order.
        """

    @abstractmethod
    def abandon(self) -> None:
        """There is no response. After ``end``: nothing."""

    def answer_to(self, error: Exception) -> HttpResponseBase | None:
        """An exception of the view's that has a better answer than 500; None: it has not."""
        return None

    def commit_in(self, block: Atomic) -> AbstractContextManager[None]:
        raise ConfigurationError("commit_in() is for views below @idempotent(atomic=False)")

    def respond_with(self, response: Any) -> Any:
        raise ConfigurationError("respond_with() is for views below @idempotent(atomic=False)")

    def _keep_refusal(self, store: OrderStore, record: Record) -> None:
        """The record of an order that changed nothing, in a transaction of its own.

        A database that fails is allowed to: the next try is then refused anew. Raises
        OrderStopped if somebody else has done this order meanwhile.
        """
        try:
            with (
                suppress(DatabaseError, InterfaceError, BackendUnavailable),
                transaction.atomic(using=store.using, durable=True),
            ):
                admitted = self.opened.admitted
                store.start(record, replaces=admitted.replaces, wait=admitted.patience)
        except DuplicateKeyError:
            raise OrderStopped(None) from None

    def _verdict(self, response: HttpResponseBase) -> Keep | Forget | Discard:
        """What becomes of the order by this response. Sending somebody to log in is a refusal."""
        if asks_to_log_in(self.opened.request, response):
            return Forget()
        facts = response_facts(self.opened.request, response)
        return self.opened.orders.conclude(self.opened.order, facts)

    def _record(self, response: HttpResponseBase) -> Record | None:
        """The record that this response makes; None: it does not end the order."""
        verdict = self._verdict(response)
        return verdict.record if isinstance(verdict, Keep) else None


def is_conflict(error: BaseException) -> bool:
    """Whether the database rolled back because of others: a serialization failure, a deadlock."""
    cause = error.__cause__
    if not isinstance(error, DatabaseError) or cause is None:
        return False
    if str(getattr(cause, "sqlstate", None) or "").startswith(CONFLICT_CLASS):
        return True
    number = cause.args[0] if cause.args else None
    return type(cause).__module__.startswith(("MySQLdb", "pymysql")) and number in MYSQL_CONFLICTS


def unsaved(error: DatabaseError | InterfaceError) -> Refusal:
    """What to say when a COMMIT failed."""
    return refusals.NOT_SAVED if is_conflict(error) else refusals.outcome_unknown()
