"""The steps of an order through its request: enter, begin, close, leave.

They are the same for every framework, in threads and in event loops. Steps that may wait are
coroutines; with a ``ThreadRunner`` they never suspend, so they run like functions. An order whose
view may run is an ``OpenOrder``, which has its leases and ends it. An adapter adds transactions.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lockkit.leases.lease import give_back, value
from lockkit.model.errors import BackendError, LeaseLost, LockError
from lockkit.model.log import log
from lockkit.orders import refusals, rows
from lockkit.orders.admission import MOST_DUPLICATES
from lockkit.orders.decisions import Discard, Proceed
from lockkit.orders.failures import is_conflict, without_lock
from lockkit.orders.flow import Means
from lockkit.orders.order import Order
from lockkit.orders.record import DuplicateKeyError
from lockkit.web.refusal import Refusal

if TYPE_CHECKING:
    from lockkit.leases.client import LockClient
    from lockkit.orders.decisions import Decision, Forget, Keep, Replay
    from lockkit.orders.flow import Flow
    from lockkit.orders.record import Record
    from lockkit.orders.visit import Visit

R = TypeVar("R")


class Runner(Protocol):
    """How to wait: in the thread of the request, or in an event loop."""

    async def do(self, function: Callable[..., R], *args: object) -> R:
        """Call a function on the thread that has the request's database connections."""

    async def ask(self, flow: Flow[R], visit: Visit) -> R:
        """Run a flow. A flow releases only leases that it took itself."""

    async def give_back(self, lease: Any) -> None: ...


class ThreadRunner:
    """For blocking requests: calls functions at once. ``client``: the client of an alias."""

    def __init__(self, client: Callable[[str], LockClient]) -> None:
        self._client = client

    async def do(self, function: Callable[..., R], *args: object) -> R:
        return function(*args)

    async def ask(self, flow: Flow[R], visit: Visit) -> R:
        client = self._client(visit.orders.settings.alias)
        return await flow(Means(visit.records, client, visit.recover, give_back, value))

    async def give_back(self, lease: Any) -> None:
        give_back(lease)


class OrderStopped(LockError):
    """This request cannot make its order: another try has, a lease is lost, or a store failed.

    Nothing that it did in ``commit_in`` was saved, unless ``refusal`` says that this is not known.
    Do not catch it. ``refusal``: the answer; None: the record of another try has the answer.
    """

    def __init__(self, refusal: Refusal | None) -> None:
        super().__init__("another try has made this order" if refusal is None else refusal.title)
        self.refusal = refusal


class OpenOrder(ABC):
    """An order whose view may run: ``request.order``. The middleware or the app ends it."""

    begun = False  #: ``begin`` succeeded: the record is written, or ``commit_in`` is to write it
    ended = False  #: ``close`` was called, so there is nothing left to undo
    refused = False  #: a lock of the view, or the record, was refused; it has run only if ``begun``
    failed = False  #: the view has raised, whatever response became of that
    error: BaseException | None = None  #: what the view has raised, if it is known
    outer: Any = None  #: the open order whose view has sent the app this request

    def __init__(self, visit: Visit, decision: Proceed) -> None:
        self.visit, self.orders, self.order = visit, visit.orders, decision.order
        self.order_id = decision.order.order_id
        self.decision = decision  #: its lease is released at the end of this order
        self.leases = [decision.lease]  #: to be released after COMMIT or ROLLBACK, in this order
        visit.attach(self)

    def has_passed_by(self, response: Any) -> bool:
        """Whether there is a success without the transaction that was to be that of the order."""
        if self.begun or self.refused or response.status_code // 100 != HTTPStatus.OK // 100:
            return False
        log.warning(
            "%r succeeds without its view, or without its lock_view and its transaction",
            self.order.request,
        )
        return True

    @property
    def fencing_token(self) -> int:
        """Grows with each try at this order: a resource elsewhere may refuse smaller ones.

        Raises ConfigurationError if there is none: with LOCK "never", and in some stores.
        """
        return int(self.decision.lease.fencing_token)

    @property
    def orphan(self) -> bool:
        """Whether an earlier try was begun and its end is not known. Only with ORPHANS "retry"."""
        return self.decision.orphan

    def adopt(self, lease: Any) -> None:
        """Take over another lease that must outlive the transaction."""
        self.leases.insert(0, lease)

    def check_leases(self) -> None:
        """Raise LeaseLost if one of them is lost."""
        for lease in reversed(self.leases):
            lease.check()

    @abstractmethod
    def begin(self) -> None:
        """Write the record if it comes before the view. A second try at the same time stops here.

        Raises DuplicateKeyError or a BackendError; then nothing is open.
        """

    def fail(self, error: BaseException) -> Any:
        """Note that the view raised. Returns a better answer than 500; None if there is none."""
        self.failed, self.error = True, error
        if not isinstance(error, LeaseLost):
            return None
        log.warning("an order was given up: %s", error)
        return self.visit.refuse(self.lost)

    @property
    def lost(self) -> Refusal:
        """What to say if a lease was lost while the view ran."""
        return refusals.LEASE_LOST

    def close(self, response: Any) -> Any:
        """Make the effects final with their record, or undo them. Returns the response to send.

        Raises OrderStopped if another try has made the order.
        """
        try:
            return self._end(response)
        finally:
            self.ended = True

    @abstractmethod
    def abandon(self) -> None:
        """Undo an order without ``close``: its request was cancelled, or the process must end."""

    @abstractmethod
    def _end(self, response: Any) -> Any: ...

    def _verdict(self, response: Any) -> Keep | Forget | Discard:
        """What becomes of the order after this response."""
        answered = self.visit.answered(response)
        if isinstance(self.error, LockError):
            answered = without_lock(answered)
        return Discard() if answered is None else self.orders.conclude(self.order, answered)


class OrderInDatabase(OpenOrder):
    """An order whose record is in a database of the application."""

    def fail(self, error: BaseException) -> Any:
        """After a conflict with another transaction, the answer is to repeat the order."""
        answer = super().fail(error)
        if not is_conflict(error):
            return answer
        log.warning("a transaction was rolled back because of another one: %s", error)
        return self.visit.refuse(refusals.NOT_SAVED)

    def _insert(self, database: rows.Database, record: Record) -> None:
        """Insert the record. If another try has inserted it, wait for what is left of WAIT."""
        decision = self.decision
        wait = max(decision.until - time.monotonic(), 0.0)
        rows.insert(database, record, replaces=decision.replaces, wait=wait)

    def _write(self, database: rows.Database, record: Record | None) -> None:
        """Write the last statement of a transaction. ``record``: None to delete what was written
        when the order began."""
        if record is None:
            rows.forget(database, self.order.key, commit=True)
        else:
            rows.update(database, record, commit=True)

    def _keep_refusal(self, record: Record, response: R) -> R:
        """Write the record of an order that changed nothing, in a transaction of its own.

        If the database fails, nothing is raised, and the next try runs the view again. A lost lease
        replaces a refusal, but not a success, which may have saved something elsewhere.
        """
        try:
            if record.snapshot.status >= HTTPStatus.BAD_REQUEST:
                self.check_leases()
            with suppress(BackendError), self.visit.records.begin() as database:
                self._insert(database, record)
        except LeaseLost:
            refused: R = self.visit.refuse(refusals.LEASE_LOST)
            return refused
        except DuplicateKeyError:
            raise OrderStopped(None) from None
        return response


async def enter(visit: Visit, runner: Runner) -> Any:
    """An OpenOrder for ``begin``; None if the request is not an order; otherwise its answer."""
    order = await runner.do(visit.identify)
    if not isinstance(order, Order):
        return order
    flow = visit.orders.admit(order, key_decides=visit.options.atomic)
    decision = await runner.ask(flow, visit)
    if not isinstance(decision, Proceed):
        return await runner.do(_answer, visit, order, decision)
    opened = visit.open(decision)  # before awaiting: a cancellation must find it
    if decision.orphan:
        await runner.do(visit.tell, decision, order)
    return opened


async def begin(opened: OpenOrder, runner: Runner) -> Any:
    """None if the view may run now; otherwise the answer, and nothing was begun."""
    visit = opened.visit
    for _ in range(MOST_DUPLICATES):
        try:
            await runner.do(opened.begin)
        except DuplicateKeyError:
            decision = await _reconsidered(opened, runner)
        except BackendError as failure:
            decision = refusals.not_claimed(failure)
        else:
            return None
        opened.refused = True
        if not isinstance(decision, Proceed):
            return await runner.do(_answer, visit, opened.order, decision)
        opened.decision = decision
    return visit.refuse(refusals.running(1))


async def close(opened: OpenOrder, response: Any, runner: Runner) -> Any:
    """Make final what the view did, or undo it. Returns the response to send."""
    try:
        return await runner.do(opened.close, response)
    except OrderStopped as stop:
        return await stopped(opened, stop, runner)


async def stopped(opened: OpenOrder, stop: OrderStopped, runner: Runner) -> Any:
    """The answer to a request whose order has raised OrderStopped."""
    visit = opened.visit
    if stop.refusal is not None:
        return visit.refuse(stop.refusal)
    decision = await _reconsidered(opened, runner)
    if isinstance(decision, Proceed):  # the view does not run a second time in one request
        return visit.refuse(refusals.running(1))
    return await runner.do(_answer, visit, opened.order, decision)


async def leave(opened: OpenOrder, runner: Runner) -> None:
    """The last step, in every case: undo what was not made final, and release the leases."""
    try:
        if not opened.ended:
            await runner.do(opened.abandon)
    finally:
        opened.visit.detach(opened)
        for lease in opened.leases:
            if not lease.released:
                await runner.give_back(lease)


async def _reconsidered(opened: OpenOrder, runner: Runner) -> Decision:
    return await runner.ask(opened.orders.reconsider(opened.decision), opened.visit)


def _answer(visit: Visit, order: Order, decision: Replay | Refusal) -> Any:
    """The answer. The client gets a stored response or a location only if the checks pass."""

    def given() -> Any:
        visit.tell(decision, order)
        if isinstance(decision, Refusal):
            return visit.refuse(decision)
        return visit.replay(decision.snapshot)

    is_open = isinstance(decision, Refusal) and decision.location is None
    return given() if is_open else visit.guarded(given)
