"""The decisions of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from lockkit.model.errors import ConfigurationError
from lockkit.orders.order import Order
from lockkit.orders.record import Record, Snapshot
from lockkit.orders.refusals import DIFFERENT, ORPHANED
from lockkit.web.refusal import Refusal

REPLAYED_HEADER = ("Idempotent-Replayed", "true")


class NoLease:
    """Stands for the lease with LOCK "never": nothing is held, and nothing can be lost."""

    name = "no lock"
    released, lost = True, False

    def check(self) -> None: ...

    @property
    def fencing_token(self) -> int:
        raise ConfigurationError(
            "an order has no fencing token without a lock: LOCKKIT_ORDERS['LOCK'] is 'never'"
        )


NO_LEASE = NoLease()


class Proceed(NamedTuple):
    """Run the view. The caller now owns the lease, and releases it at the end."""

    order: Order
    lease: Any  #: a Lease or AsyncLease, of the client that the flow ran with; or NO_LEASE
    replaces: bool = False  #: its record replaces an expired one, or an orphan's
    orphan: bool = False  #: an earlier try was begun, and its end is not known: ORPHANS "retry"
    until: float = 0.0  #: ``time.monotonic()`` at which the WAIT seconds end


class Replay(NamedTuple):
    """Give the stored response again, with REPLAYED_HEADER."""

    snapshot: Snapshot
    orphan: bool = False  #: an earlier try left no answer, and RECOVER knew how it ended


Decision = Proceed | Replay | Refusal


class Keep(NamedTuple):
    """Commit the effects together with this record."""

    record: Record


class Discard(NamedTuple):
    """Roll back: the order did not take effect, and another try runs anew."""


class Forget(NamedTuple):
    """Commit what the view would have saved without an order, and delete the record in the same
    COMMIT: a counted guess of a password stays counted, and another try runs the view again."""


def news_of(decision: Decision) -> Iterator[str]:
    """The names of the signals to send for this decision."""
    code = decision.code if isinstance(decision, Refusal) else None
    if code == ORPHANED.code or getattr(decision, "orphan", False):
        yield "order_orphaned"
    if isinstance(decision, Replay):
        yield "order_replayed"
    if code == DIFFERENT.code:
        yield "order_conflict"
