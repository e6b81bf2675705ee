"""A transaction that the view commits itself: ``@idempotent(atomic=False)``, ``commit_in``.

The record is inserted in that transaction, and is done just before the COMMIT, without a response
to repeat. This stays true if the process dies after the COMMIT. ``respond_with`` adds the response
before the COMMIT; otherwise it is added when the view has answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, connections

from lockkit.model.errors import BackendUnavailable, ConfigurationError, LeaseLost
from lockkit.model.log import log
from lockkit.orders import DuplicateKeyError, Keep, Refusal, refusals, rows
from lockkit.orders.failures import unsaved
from lockkit.orders.gate import OrderStopped
from lockkit.orders.record import RecordState
from lockkit_django.leases.transactions import (
    is_broken,
    is_of_hook,
    is_rolled_back,
    watch_marks,
)
from lockkit_django.orders.errors import OK_CLASS, told_broken
from lockkit_django.orders.table import Sql, typed_errors
from lockkit_django.orders.transaction import FIRST_ERROR, OrderInDatabase
from lockkit_django.web.refusals import rendered

if TYPE_CHECKING:
    from django.db.transaction import Atomic
    from django.http import HttpResponseBase

    from lockkit.orders import Record

UNANSWERED = str(RecordState.TOMBSTONE)
"""The state of a record whose order is done, and whose response is not stored yet."""


class OwnTransaction(OrderInDatabase):
    """An order without a transaction around its view. Its record commits in the block that the view
    gives to ``commit_in``."""

    _inside = _entered = _committed = _broken = _stopped = False
    _rolled_back_by: BaseException | None = None
    _response: HttpResponseBase | None = None
    _running: Record
    _sealed: Record | None = None

    def begin(self) -> None:
        super().begin()
        self.begun = True

    @contextmanager
    def commit_in(self, block: Atomic) -> Iterator[None]:
        self._check(block)
        stage = "begin"
        try:
            with block:
                stage = "view"
                self._enter()
                yield
                stage = "commit"
                if not self._seal():
                    stage = "undone"
        except BaseException as error:  # the view's own, or interrupted
            self._committed = stage == "commit" and is_of_hook(error)
            self._rolled_back_by = None if self._committed else error
            refusal = unsaved(error)
            if self._committed or stage == "view" or refusal is None:
                raise
            raise self._stop(refusal if stage == "commit" else refusals.STORE_DOWN) from error
        finally:
            self._inside = False
            vars(connections[self._using]).pop("set_rollback", None)
        self._committed = stage == "commit"

    def respond_with(self, response: Any) -> Any:
        if not self._inside:
            raise ConfigurationError("respond_with() is called inside commit_in()")
        response = rendered(self.front, response)
        if callable(getattr(response, "render", None)):
            response.render()
        self._sealed = self._record(response)
        if self._sealed is None:
            raise ConfigurationError(
                f"respond_with() stores what ends an order, and {response.status_code} does not: "
                f"leave commit_in() by an exception"
            )
        self._response = response
        return response

    def _end(self, response: HttpResponseBase) -> HttpResponseBase:
        undone = self._has_raised(response) and self._entered and not self._committed
        self.undone = self._stopped or undone
        if self._stopped or not (self.begun or self._committed):
            return response if self._stopped else self._keep_unbegun(response)
        if self._committed:
            return self._answer(response)
        record = self._record(response)
        if record is None or self._raised_refusal():
            return response
        raised = self._has_raised(response)
        if response.status_code < FIRST_ERROR and (raised or self._entered):
            if told_broken(self._broken) or self._is_undone_success(response):
                return self.visit.refuse(refusals.NOT_SAVED)
            if not raised:
                log.warning(
                    "%r succeeded, although its commit_in() was rolled back: a repeat runs its "
                    "view again",
                    record.request,
                )
            return response
        return self._keep(record, response)

    def abandon(self) -> None:
        """Nothing is open: the view's own block has been left."""

    def last_look(self, response: Any, blocks: Iterable[str]) -> Any:
        """Nothing more: the last look was before the COMMIT of the view's own block."""
        return response

    def fail(self, error: BaseException) -> HttpResponseBase | None:
        """What the view saved outside its block stays, so do not claim that nothing was saved."""
        answer: HttpResponseBase | None = super().fail(error)
        is_undone = error is self._rolled_back_by and not self._committed
        return answer if is_undone else None

    def left_by(self, error: BaseException, blocks: Collection[str]) -> None:
        """Nothing is around the view. Note only what has undone the view's own block."""
        if error is self._rolled_back_by:
            self.failed, self.error = True, error

    def _check(self, block: Atomic) -> None:
        if not getattr(block, "durable", False):  # the stubs do not know it
            raise ConfigurationError("commit_in() takes transaction.atomic(durable=True)")
        using = block.using or DEFAULT_DB_ALIAS
        if using != self._using:
            raise ConfigurationError(
                f"commit_in() was given a transaction of the database {using!r}, and the records "
                f"of orders are in {self._using!r}: use atomic(using={self._using!r}, "
                f"durable=True), or @idempotent(using={using!r})"
            )
        if self._committed or self._inside:
            raise ConfigurationError(
                "commit_in() commits an order once: its block is open already, or has committed"
            )

    def _enter(self) -> None:
        connection = connections[self._using]
        watch_marks(connection)
        self._running = self.orders.running(self.order)
        try:
            # the whole WAIT, not what is left of it: the view may have paid, and must not fail soon
            replaces, wait = self.decision.replaces, self.orders.settings.wait
            with typed_errors(self._using):
                rows.insert(Sql(connection), self._running, replaces=replaces, wait=wait)
        except DuplicateKeyError:
            raise self._stop(None) from None
        except BackendUnavailable as error:
            raise self._stop(refusals.not_claimed(error)) from error
        self._inside, self._entered, self._broken = True, True, False
        self._sealed = self._response = self.error = None
        self.failed = False  # an earlier try of the view

    def _seal(self) -> bool:
        """The last look before the COMMIT. Returns whether there will be one. If the record is
        gone, the database has rolled back, and the view went on."""
        connection = connections[self._using]
        if is_rolled_back(connection):
            self._broken = is_broken(connection)
            return False
        try:
            self.check_leases()
        except LeaseLost as error:
            raise self._stop(refusals.LEASE_LOST) from error
        done = self._sealed or self._running._replace(state=RecordState.TOMBSTONE)
        rows.update(Sql(connection), done)
        return True

    def _stop(self, refusal: Refusal | None) -> OrderStopped:
        self._stopped = True
        return OrderStopped(refusal)

    def _answer(self, response: HttpResponseBase) -> HttpResponseBase:
        """The answer after the COMMIT: the stored response, or the view's, which is stored now. One
        that was made of an exception is not stored: it may say that the order has failed."""
        if self._response is not None:
            return self._response
        if self._has_raised(response):
            return response
        record = self._record(response)
        if record is not None:
            try:
                rows.update(Sql(connections[self._using]), record, UNANSWERED)
            except (DatabaseError, InterfaceError, RuntimeError) as error:
                log.warning("the response of the order %r is not kept: %s", record.order_id, error)
        return response

    def _keep(self, record: Record, response: HttpResponseBase) -> HttpResponseBase:
        """The view has answered without ``commit_in``, or refuses after it was rolled back."""
        if response.status_code // 100 == OK_CLASS:
            log.warning(
                "%r succeeded without commit_in(): if it saved anything, its order was not part "
                "of that transaction",
                record.request,
            )
        return self._keep_refusal(record, response)

    def _record(self, response: HttpResponseBase) -> Record | None:
        """The record that this response makes; None: it does not end the order."""
        verdict = self._verdict(response)
        return verdict.record if isinstance(verdict, Keep) else None
