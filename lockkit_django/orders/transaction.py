"""The order's own transaction around the view: its effects and its record commit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import connections, transaction

from lockkit.model.errors import BackendUnavailable, ConfigurationError, LeaseLost
from lockkit.model.log import log
from lockkit.orders import Forget, Keep, refusals
from lockkit.orders.record import refuses
from lockkit_django.orders.answers import refusal
from lockkit_django.orders.endings import (
    CONNECTION_ERRORS,
    FIRST_ERROR,
    Ending,
    is_conflict,
    unsaved,
)
from lockkit_django.orders.exceptions import is_of_exception, is_of_hook, status_of
from lockkit_django.orders.table import OrderStore

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.http import HttpResponseBase

    from lockkit.orders import Record
    from lockkit_django.orders.open_order import OpenOrder

__all__ = [
    "SharedTransaction",
    "conflict_answer",
    "is_broken",
    "is_rolled_back",
    "is_success",
]


OK_CLASS = 2
IN_ERROR = 3
"""Of libpq's PGTransactionStatusType."""


class SharedTransaction(Ending):
    """BEGIN and the record before the view, COMMIT after its response is rendered."""

    def __init__(self, opened: OpenOrder, store: OrderStore) -> None:
        super().__init__(opened)
        self._store = store
        self._using = self.database = store.using
        self._block: transaction.Atomic | None = None

    def begin(self) -> None:
        try:
            self._enter_block()
            running = self.opened.orders.running(self.opened.order)
            admitted = self.opened.admitted
            self._store.start(running, replaces=admitted.replaces, wait=admitted.patience)
        except BaseException:  # interrupted as well: nobody else would end the transaction
            self.abandon()
            raise

    def end(self, response: HttpResponseBase, *, failed: bool) -> HttpResponseBase:
        if self._block is None:
            return response
        self.undone = True  # until it is committed
        try:
            return self._conclude(response, failed=failed)
        except LeaseLost:
            return refusal(refusals.LEASE_LOST)
        finally:
            self.abandon()  # nothing, if it is committed

    def abandon(self) -> None:
        if self._block is not None:
            connections[self._using].needs_rollback = True
            self._leave_block()

    def answer_to(self, error: Exception) -> HttpResponseBase | None:
        return conflict_answer(error)

    def _conclude(self, response: HttpResponseBase, *, failed: bool) -> HttpResponseBase:
        verdict = self._verdict(response)
        if isinstance(verdict, Forget) or (isinstance(verdict, Keep) and self._raised_refusal()):
            return self._refuse(response, failed=failed)
        if not isinstance(verdict, Keep):
            return response
        record = verdict.record
        raised = failed or is_of_exception(response)
        if not (raised or is_rolled_back(self._using)):
            return self._commit(response, record)
        broken = not raised and is_broken(self._using)
        self.abandon()
        if response.status_code >= FIRST_ERROR:
            self.opened.check_leases()
            self._keep_refusal(self._store, record)
            return response
        if failed and is_success(response):
            broken = True
        return refusal(refusals.NOT_SAVED) if broken else response

    def _raised_refusal(self) -> bool:
        """Whether the view has refused, though what is made of it does not look like that."""
        error = self.opened.error
        return error is not None and refuses(status_of(error) or 0)

    def _refuse(self, response: HttpResponseBase, *, failed: bool) -> HttpResponseBase:
        """Save what would be saved if there were no orders: a guess that was counted counts."""
        error = self.opened.error
        if error is not None and status_of(error) is None:
            return response  # an accident: what is made of it does not change that
        self.undone = False  # a session may count guesses, too
        if failed and self.opened.in_request_block:
            return response  # as ATOMIC_REQUESTS rolls back
        if self._is_marked_by_drf(response):
            connections[self._using].set_rollback(False)
        if not is_rolled_back(self._using):
            return self._commit(response, None)
        if is_broken(self._using) or not self.opened.in_request_block:
            log.warning(
                "%r refuses after an error of the database outside of atomic(), or in an "
                "atomic(savepoint=False): what its view saved before is rolled back",
                self.opened.order.request,
            )
        return response

    def _is_marked_by_drf(self, response: HttpResponseBase) -> bool:
        """Whether DRF takes the order's transaction for that of ATOMIC_REQUESTS.

        The view is exempt from it: else its transaction would be a savepoint here, or be this one.
        """
        is_on = connections[self._using].settings_dict["ATOMIC_REQUESTS"]
        exempt = is_on and not self.opened.in_request_block
        return exempt and is_of_exception(response) and not is_broken(self._using)

    def _commit(self, response: HttpResponseBase, record: Record | None) -> HttpResponseBase:
        """``record``: None to delete what was written when the order began."""
        self.undone = True
        self.opened.check_leases()
        try:
            if record is None:
                self._store.forget(self.opened.order.key)
            else:
                self._store.finish(record)
            self._leave_block()
        except Exception as error:
            self.undone = not is_of_hook(error)
            if not (self.undone and isinstance(error, CONNECTION_ERRORS)):
                raise
            return refusal(unsaved(error))
        self.undone = False
        return response

    def _enter_block(self) -> None:
        connection = connections[self._using]
        block = transaction.Atomic(self._using, savepoint=True, durable=True)
        try:
            _refuse_manual_commits(connection)
            block.__enter__()
        except CONNECTION_ERRORS as error:
            raise BackendUnavailable("the database of the order is not available") from error
        self._block, self.begun = block, True
        vars(connection)["rollback_exc"] = None  # of an earlier transaction

    def _leave_block(self) -> None:
        """COMMIT. Hooks of ``on_commit`` run in here; what they raise is raised."""
        block, self._block = self._block, None
        self.begun = False
        if block is not None:
            block.__exit__(None, None, None)


def is_success(response: HttpResponseBase) -> bool:
    """Of a response that a middleware has made of an exception: then nothing is saved."""
    if response.status_code // 100 != OK_CLASS:
        return False
    log.error(
        "the view of an order raised, and a middleware makes %s of it: nothing was saved, so the "
        "client is told that",
        response.status_code,
    )
    return True


def conflict_answer(error: Exception) -> HttpResponseBase | None:
    """Repeating it is the remedy for a transaction that others have made impossible."""
    if not is_conflict(error):
        return None
    log.warning("an order was rolled back because of another transaction: %s", error)
    return refusal(refusals.NOT_SAVED)


def is_rolled_back(using: str) -> bool:
    """Whether the open transaction cannot commit any more."""
    connection = connections[using]
    return connection.needs_rollback or connection.closed_in_transaction or is_aborted(connection)


def is_broken(using: str) -> bool:
    """Whether the view says that all is well, and the database says that nothing is saved.

    A view that asks for the rollback itself, with ``set_rollback``, knows what it answers.
    """
    connection = connections[using]
    if connection.closed_in_transaction or is_aborted(connection):
        return True
    return _error_of(connection) is not None


def is_aborted(connection: BaseDatabaseWrapper) -> bool:
    """Whether PostgreSQL has given the transaction up, after an error in a cursor of the view's.

    Django knows of its models' errors only; and a COMMIT would roll back without an error.
    """
    if connection.vendor != "postgresql":
        return False
    info = getattr(connection.connection, "info", None)
    return getattr(info, "transaction_status", None) == IN_ERROR


def _error_of(connection: BaseDatabaseWrapper) -> Exception | None:
    """The database error that has doomed the transaction, if one has."""
    error: Exception | None = vars(connection).get("rollback_exc")
    return error


def _refuse_manual_commits(connection: BaseDatabaseWrapper) -> None:
    """With autocommit off the end of Django's outermost block is no COMMIT."""
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise ConfigurationError(
            f"orders need a database that commits: the alias {connection.alias!r} has AUTOCOMMIT "
            f"False, or set_autocommit(False) was called"
        )
